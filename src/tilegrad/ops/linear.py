"""Products over channels: linear, matmul, einsum. The contracted dimensions are read whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
import torch.nn.functional as F

from ..region import POINT, Whole
from .base import Call, Op, Read, Reads, Sample, along, pointwise, whole
from .registry import op


@op("linear")
class Linear(Op):
    dense = True

    def reads(self, call: Call) -> Reads:
        return (along(call, [-1]), *(whole(t.shape) for t in call.inputs[1:]))

    def flops(self, call: Call) -> float:
        return 2.0 * call.inputs[0].shape[-1]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w, b: F.linear(x.permute(0, 2, 3, 1), w, b), ((1, 3, 5, 6), (4, 3), (4,)))


@op("matmul", "mm", "bmm")
class Matmul(Op):
    dense = True

    def reads(self, call: Call) -> Reads | None:
        a, b = (t.shape for t in call.inputs)
        out = call.out.shape
        if len(a) < 2 or len(b) < 2:
            return None
        left = (*pointwise(a[:-2], out[:-2]), Read(len(out) - 2, POINT), Read(None, Whole(a[-1], 1)))
        right = (*pointwise(b[:-2], out[:-2]), Read(None, Whole(b[-2], 1)), Read(len(out) - 1, POINT))
        return left, right

    def flops(self, call: Call) -> float:
        return 2.0 * call.inputs[0].shape[-1]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w: x.permute(0, 2, 3, 1) @ w, ((1, 3, 5, 6), (3, 4)))
        yield Sample(lambda x, y: x @ y, ((1, 2, 5, 6), (1, 2, 6, 5)), "contracts an image axis")


@op("einsum")
class Einsum(Op):
    dense = True

    def _letters(self, call: Call) -> tuple[list[str], str] | None:
        equation = str(call.attr("equation")).replace(" ", "")
        if "." in equation or "->" not in equation:
            return None
        left, out = equation.split("->")
        terms = left.split(",")
        return None if any(len(set(t)) != len(t) for t in (*terms, out)) else (terms, out)

    def reads(self, call: Call) -> Reads | None:
        if (found := self._letters(call)) is None:
            return None
        terms, out = found
        return tuple(self._read(term, out, t.shape) for term, t in zip(terms, call.inputs, strict=True))

    @staticmethod
    def _read(term: str, out: str, shape: Sequence[int]) -> tuple[Read, ...]:
        return tuple(
            Read(out.index(letter), POINT) if letter in out and n > 1 else Read(None, Whole(n, 1))
            for letter, n in zip(term, shape, strict=True)
        )

    def flops(self, call: Call) -> float:
        if (found := self._letters(call)) is None:
            return 1.0
        sizes = {
            c: n for term, t in zip(found[0], call.inputs, strict=True) for c, n in zip(term, t.shape, strict=True)
        }
        return 2.0 * prod(sizes[letter] for letter in sizes.keys() - set(found[1]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w: torch.einsum("nchw,oc->nohw", x, w), ((1, 3, 5, 6), (4, 3)))
        yield Sample(lambda x, y: torch.einsum("nchw,nchw->nhw", x, y), ((1, 3, 5, 6), (1, 3, 5, 6)))
