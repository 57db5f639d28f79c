"""Padding by constants, reflection and replication (negative amounts crop). With circular padding each border reads the
opposite one: along a tiled axis its input is stored, and each tile picks what it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..region import POINT, Crop, Mirror, Replicate, Whole, Window
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op


def amounts(call: Call) -> list[tuple[int, int]]:
    """(before, after) per dimension, front to back; torch lists them from the last dimension."""
    flat, rank = call.attr("pad"), len(call.inputs[0].shape)
    given = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    return [(0, 0)] * (rank - len(given)) + given[::-1]


@op("pad", "constant_pad_nd")
class Pad(Op):
    pads = True
    anywhere = True  # with circular padding, where each border reads the opposite one: from all of the dimension

    def mode(self, call: Call) -> str:
        return str(call.attr("mode", "constant"))

    def reads(self, call: Call) -> Reads:
        shape, out = call.inputs[0].shape, call.out.shape
        return (tuple(self._read(call, d, n, out[d], *amounts(call)[d]) for d, n in enumerate(shape)),)

    def _read(self, call: Call, dim: int, n: int, n_out: int, before: int, after: int) -> Read:
        if not before and not after:
            return Read(dim, POINT)
        window: Window
        match self.mode(call):
            case "constant":
                window = Crop(-before, n_out)
            case "reflect":
                window = Mirror(n, before, after, n_out)
            case "replicate":
                window = Replicate(n, before, after, n_out)
            case _:
                return Read(None, Whole(n, 1))
        return Read(dim, window)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        mode = self.mode(call)
        if mode == "constant":
            sides = place.pad(call)
            return F.pad(x, [p for pair in reversed(sides) for p in pair], value=call.attr("value", 0.0))
        for dim, (before, after) in enumerate(amounts(call)):
            if before or after:
                x = self._pick(call, x, place, dim, before, mode)
        return x

    @staticmethod
    def _pick(call: Call, x: Tensor, place: Place, dim: int, before: int, mode: str) -> Tensor:
        n, out, origin = call.inputs[0].shape[dim], place.out[dim], place.origin(call, 0, dim)
        if mode == "circular":
            return x.index_select(dim, (torch.arange(out.lo - before, out.hi - before) % n).to(x.device))
        if out.lo >= before and out.hi - before <= n:
            return x.narrow(dim, out.lo - before - origin, out.size)
        at = torch.arange(out.lo - before, out.hi - before)
        at = at.abs() if mode == "reflect" else at.clamp(0, n - 1)
        at = torch.where(at >= n, 2 * (n - 1) - at, at)
        return x.index_select(dim, (at - origin).to(x.device))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.pad(x, (1, 2, 0, 3)), ((2, 2, 6, 5),))
        yield Sample(lambda x: F.pad(x, (2, 2, 1, 0), value=3.0), ((1, 2, 6, 5),), "value")
        yield Sample(lambda x: F.pad(x, (-1, 2, -2, -1)), ((1, 2, 8, 7),), "negative")
        yield Sample(lambda x: F.pad(x, (2, 1, 3, 2), mode="reflect"), ((1, 2, 6, 5),), "reflect")
        yield Sample(lambda x: F.pad(x, (2, 1, 3, 2), mode="replicate"), ((1, 2, 6, 5),), "replicate")
        yield Sample(lambda x: F.pad(x, (2, 1, 3, 2), mode="circular"), ((1, 2, 6, 5),), "circular")
        yield Sample(lambda x: F.pad(x, (0, 0, 2, 2), mode="reflect"), ((1, 2, 6, 5),), "rows only")
