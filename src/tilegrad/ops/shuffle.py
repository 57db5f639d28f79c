"""Pixel shuffle (channels to space) and unshuffle (space to channels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..region import POINT, Repeat, Slide, Whole
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op


@op("pixel_shuffle", "pixel_unshuffle")
class PixelShuffle(Op):
    def __init__(self, spatial: int = 0):
        super().__init__(2)

    def reads(self, call: Call) -> Reads:
        shape, up, down = call.inputs[0].shape, call.attr("upscale_factor"), call.attr("downscale_factor")
        window, rank = Repeat(up) if up else Slide(down, down), len(shape)
        lead = tuple(Read(d, POINT) for d in range(rank - 3))
        return ((*lead, Read(None, Whole(shape[-3], 1)), Read(rank - 2, window), Read(rank - 1, window)),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        if (factor := call.attr("upscale_factor")) is None:
            return super().run(call, tiles, place)
        y = F.pixel_shuffle(tiles[0], factor)
        for dim in (-2, -1):
            start = place.out[dim].lo - place.origin(call, 0, dim) * factor
            y = y.narrow(dim, start, place.out[dim].size)
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.pixel_shuffle(x, 2), ((2, 8, 3, 5),))
        yield Sample(lambda x: F.pixel_shuffle(x, 3), ((1, 9, 4, 3),))
        yield Sample(lambda x: F.pixel_unshuffle(x, 2), ((2, 2, 6, 8),))
