"""Pixel shuffle (channels to space) and unshuffle (space to channels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..region import POINT, Repeat, Slide, Whole
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op


class _Shuffle(Op):
    factor: str

    def window(self, factor: int) -> Repeat | Slide:
        raise NotImplementedError  # pragma: no cover - both subclasses have their own

    def __init__(self, spatial: int = 0):
        super().__init__(2)

    def reads(self, call: Call) -> Reads:
        shape, window = call.inputs[0].shape, self.window(call.attr(self.factor))
        rank = len(shape)
        lead = tuple(Read(d, POINT) for d in range(rank - 3))
        return ((*lead, Read(None, Whole(shape[-3], 1)), Read(rank - 2, window), Read(rank - 1, window)),)


@op("pixel_shuffle")
class PixelShuffle(_Shuffle):
    factor = "upscale_factor"

    def window(self, factor: int) -> Repeat:
        return Repeat(factor)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        factor = call.attr(self.factor)
        y = F.pixel_shuffle(x, factor)
        for dim in (-2, -1):
            start = place.out[dim].lo - place.origin(call, 0, dim) * factor
            y = y.narrow(dim, start, place.out[dim].size)
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.pixel_shuffle(x, 2), ((2, 8, 3, 5),))
        yield Sample(lambda x: F.pixel_shuffle(x, 3), ((1, 9, 4, 3),))


@op("pixel_unshuffle")
class PixelUnshuffle(_Shuffle):
    factor = "downscale_factor"

    def window(self, factor: int) -> Slide:
        return Slide(factor, factor)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.pixel_unshuffle(x, 2), ((2, 2, 6, 8),))
