"""Operators that pick elements by their number along a dimension: roll, flip, repeat.

Any box can be made from the whole dimension, but neighbours do not stay neighbours. Along a tiled axis the input is
stored, and each tile picks what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..region import POINT, Repeat, Whole
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op


class Picked(Op):
    """`picks` gives, for each dimension that moves, the input's number for each of the output's."""

    anywhere = True
    flops_each = 0.0

    def moved(self, call: Call) -> Mapping[int, int]:
        """Output dimensions that move, and by how much."""
        raise NotImplementedError  # pragma: no cover - every subclass has its own

    def pick(self, at: Tensor, n: int, amount: int) -> Tensor:
        raise NotImplementedError  # pragma: no cover

    def reads(self, call: Call) -> Reads | None:
        moved, shape = self.moved(call), call.inputs[0].shape
        lead = len(call.out.shape) - len(shape)
        reads = (Read(None, Whole(n, 1)) if k + lead in moved else Read(k + lead, POINT) for k, n in enumerate(shape))
        return (tuple(reads),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,), lead = tiles, len(call.out.shape) - len(call.inputs[0].shape)
        x = x[(None,) * lead]
        for dim, amount in self.moved(call).items():
            at = torch.arange(place.out[dim].lo, place.out[dim].hi)
            x = x.index_select(dim, self.pick(at, x.shape[dim], amount).to(x.device))
        return x


@op("roll")
class Roll(Picked):
    def moved(self, call: Call) -> dict[int, int]:
        shifts, dims, rank = call.attr("shifts"), call.attr("dims", []), len(call.out.shape)
        found: dict[int, int] = {}
        for dim, shift in zip(dims, shifts, strict=True):
            found[dim % rank] = found.get(dim % rank, 0) + shift
        return found

    def pick(self, at: Tensor, n: int, amount: int) -> Tensor:
        return (at - amount) % max(1, n)

    def reads(self, call: Call) -> Reads | None:
        return super().reads(call) if call.attr("dims") else None  # flattened: everything moves

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return super().run(call, tiles, place) if call.attr("dims") else Op.run(self, call, tiles, place)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: torch.roll(x, (2, -1), (2, 3)) * 2, ((1, 2, 5, 6),))
        yield Sample(lambda x: torch.roll(x, 1, 1) * 2, ((1, 3, 5, 6),), "channels")
        yield Sample(lambda x: torch.roll(x, 7) * 2, ((1, 3, 5, 6),), "flattened: whole")


@op("flip")
class Flip(Picked):
    def moved(self, call: Call) -> dict[int, int]:
        return {dim % len(call.out.shape): 0 for dim in call.attr("dims", [])}

    def pick(self, at: Tensor, n: int, amount: int) -> Tensor:
        return n - 1 - at

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: torch.flip(x, [1]) * 2, ((1, 4, 5, 6),))
        yield Sample(lambda x: x.flip(-1) * 2, ((1, 3, 5, 6),), "along the image")


@op("repeat")
class Tiled(Picked):
    """`x.repeat(1, 1, 2, 1)`."""

    def moved(self, call: Call) -> dict[int, int]:
        return {dim: times for dim, times in enumerate(call.attr("repeats")) if times != 1}

    def pick(self, at: Tensor, n: int, amount: int) -> Tensor:
        return at % max(1, n)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.repeat(1, 2, 1, 1) * 2, ((1, 3, 5, 6),), "channels")
        yield Sample(lambda x: x.repeat(2, 1, 1, 2, 1) * 2, ((1, 3, 5, 6),), "rows, and a new dimension")
        yield Sample(lambda x, y: x * y.mean((2, 3), keepdim=True).repeat(1, 1, 5, 6), ((1, 3, 5, 6), (1, 3, 4, 4)))


@op("repeat_interleave")
class Interleave(Op):
    """Each element so many times, along one dimension."""

    def reads(self, call: Call) -> Reads | None:
        if len(call.inputs) > 1 or call.attr("dim") is None:
            return None
        dim, times = call.dim(), call.attr("repeats")
        return (tuple(Read(k, Repeat(times) if k == dim else POINT) for k in range(len(call.out.shape))),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        if self.reads(call) is None:
            return super().run(call, tiles, place)
        dim, times = call.dim(), call.attr("repeats")
        found = tiles[0].repeat_interleave(times, dim)
        return found.narrow(dim, place.out[dim].lo - place.origin(call, 0, dim) * times, place.out[dim].size)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.repeat_interleave(3, 2) * 2, ((1, 3, 5, 6),), "rows")
