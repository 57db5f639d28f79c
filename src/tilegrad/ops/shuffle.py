"""Pixel shuffle (channels to space) and unshuffle (space to channels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..region import Repeat, Slide
from .base import Call, Op, Place, Reads, Sample, imagelike
from .registry import op


@op("pixel_shuffle", "pixel_unshuffle")
class PixelShuffle(Op):
    def __init__(self, spatial: int = 0):
        super().__init__(2)

    def reads(self, call: Call) -> Reads:
        up, down = call.attr("upscale_factor"), call.attr("downscale_factor")
        return (imagelike(call, [Repeat(up) if up else Slide(down, down)] * 2),)

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
