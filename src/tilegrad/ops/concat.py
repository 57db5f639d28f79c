"""Concatenation and stacking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..region import POINT, Crop
from .base import Call, Op, Place, Read, Reads, Sample, whole
from .registry import op


@op("cat", "concat", "concatenate")
class Concat(Op):
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        """Along `dim` an input begins where those before it end: what lies outside of it is not its business."""
        dim, n_out, start, found = call.dim(), call.out.shape[call.dim()], 0, []
        for t in call.inputs:
            if len(t.shape) != len(call.out.shape):  # torch lets empty tensors of any rank through
                found.append(whole(t.shape))
                continue
            found.append(tuple(Read(k, Crop(-start, n_out) if k == dim else POINT) for k in range(len(t.shape))))
            start += t.shape[dim]
        return tuple(found)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: torch.cat([x, y, x], 1), ((1, 2, 5, 6), (1, 3, 5, 6)))
        yield Sample(lambda x, y: torch.cat([x, y], -2), ((1, 2, 5, 6), (1, 2, 4, 6)), "rows")


@op("stack")
class Stack(Op):
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        rank = len(call.out.shape)
        dim = int(call.attr("dim", 0)) % rank
        kept = [d for d in range(rank) if d != dim]
        return tuple(tuple(Read(d, POINT) for d in kept) for _ in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return torch.stack(list(tiles), int(call.attr("dim", 0)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: torch.stack([x, y], 1).sum(1), ((1, 2, 5, 6), (1, 2, 5, 6)))
        yield Sample(lambda x, y: torch.stack([x, y], -1).mean(-1), ((1, 2, 5, 6), (1, 2, 5, 6)))
