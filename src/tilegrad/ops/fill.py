"""Tensors of one value: zeros, ones, full and their `_like` forms"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import aten
from .base import Call, Op, Place, Reads, Sample, pointwise, whole
from .registry import op


@op("zeros", "ones", "full", "zeros_like", "ones_like", "full_like")
class Fill(Op):
    """Depends on no input's content: any box can be made anywhere. The `_like` forms are where their input is."""

    anywhere = True
    blind = True
    flops_each = 0.0

    def reads(self, call: Call) -> Reads | None:
        like = call.node.op.endswith("_like")
        return tuple(pointwise(t.shape, call.out.shape) if like else whole(t.shape) for t in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        value = aten.decode(call.attr("fill_value", 1.0 if "ones" in call.node.op else 0.0))
        device = place.device or next((t.device for t in tiles), aten.decode(call.attr("device")) or "cpu")
        return torch.full(place.out.shape, value, dtype=getattr(torch, call.out.dtype), device=device)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x + x.new_ones((1, 2, 5, 6)), ((1, 2, 5, 6),))
