"""Attention: every query by itself, all keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.nn.functional as F

from ..region import POINT, Whole
from .base import Call, Op, Read, Reads, Sample, pointwise
from .registry import op


@op("scaled_dot_product_attention")
class Attention(Op):
    """Local in queries (and in samples and heads). A causal mask counts from the first query, so that runs whole."""

    dense = True

    def reads(self, call: Call) -> Reads | None:
        out = call.out.shape
        if call.attr("is_causal", False) or call.attr("enable_gqa", False) or len(out) < 3:
            return None
        return tuple(self._read(t.shape, out, slot.arg) for t, slot in zip(call.inputs, call.node.inputs, strict=True))

    @staticmethod
    def _read(shape: Sequence[int], out: Sequence[int], arg: str) -> tuple[Read, ...]:
        rows = len(out) - 2
        if arg == "attn_mask":
            return (*pointwise(shape[:-1], out[:-1]), Read(None, Whole(shape[-1], 1)))
        row = Read(rows, POINT) if arg == "query" else Read(None, Whole(shape[-2], 1))
        return (*pointwise(shape[:-2], out[:-2]), row, Read(None, Whole(shape[-1], 1)))

    def flops(self, call: Call) -> float:
        keys = call.inputs[1].shape
        return 2.0 * keys[-2] * (1 + call.inputs[0].shape[-1] / max(1, call.out.shape[-1]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        heads = (2, 3, 6, 4)
        yield Sample(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (heads, (2, 3, 5, 4), (2, 3, 5, 7)))
        yield Sample(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (heads, heads, heads, (1, 1, 6, 6)), "mask"
        )
        yield Sample(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (heads,), "causal: whole")
