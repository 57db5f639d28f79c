"""Concatenation and stacking. Along a tiled axis they run whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..region import POINT, Whole
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op


@op("cat", "concat", "concatenate")
class Concat(Op):
    saves = ()

    def reads(self, call: Call) -> Reads:
        dim = call.dim()
        return tuple(
            tuple(Read(None, Whole(n, 1)) if k == dim else Read(k, POINT) for k, n in enumerate(t.shape))
            for t in call.inputs
        )

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: torch.cat([x, y, x], 1), ((1, 2, 5, 6), (1, 3, 5, 6)))
        yield Sample(lambda x, y: torch.cat([x, y], -2), ((1, 2, 5, 6), (1, 2, 4, 6)), "rows: whole")


@op("stack")
class Stack(Op):
    saves = ()

    def reads(self, call: Call) -> Reads:
        rank = len(call.out.shape)
        dim = int(call.attr("dim", 0)) % rank
        kept = [d for d in range(rank) if d != dim]
        return tuple(tuple(Read(d, POINT) for d in kept) for _ in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return torch.stack(list(tiles), int(call.attr("dim", 0)))

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: torch.stack([x, y], 1).sum(1), ((1, 2, 5, 6), (1, 2, 5, 6)))
        yield Sample(lambda x, y: torch.stack([x, y], -1).mean(-1), ((1, 2, 5, 6), (1, 2, 5, 6)))
