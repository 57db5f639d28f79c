"""Max and average pooling with fixed windows (`ceil_mode`, `count_include_pad`, `divisor_override`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ir import Build
from ..region import Slide
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op

MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVG = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def windows(call: Call, axes: int) -> tuple[Slide, ...]:
    kernel = call.tuple("kernel_size", axes, 1)
    stride = call.tuple("stride", axes, 0)
    stride = stride if any(stride) else kernel
    padding, dilation = call.tuple("padding", axes, 0), call.tuple("dilation", axes, 1)
    ceil = bool(call.attr("ceil_mode", False))
    return tuple(Slide(k, s, p, p, d, ceil) for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True))


class _Pool(Op):
    fresh_gradient = True
    reach = 0.25
    pads = True
    adaptive: ClassVar[str]

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        """A window as large as the image is a global pool, which can be folded tile by tile."""
        slides, axes = windows(call, self.spatial), self.spatial
        image = call.inputs[0].shape[-axes:]
        everything = all(s.kernel == s.reach == n and not s.before for s, n in zip(slides, image, strict=True))
        if not everything or call.attr("divisor_override") is not None or set(call.out.shape[-axes:]) != {1}:
            return None
        attrs = {"output_size": [1] * axes}
        return build.emit(f"{self.adaptive}{axes}d", [("self", call.node.inputs[0].value)], call.out, attrs)

    def reads(self, call: Call) -> Reads:
        slides = windows(call, self.spatial)
        rank = len(call.inputs[0].shape)
        lead = tuple(Read(d, Slide()) for d in range(rank - self.spatial))
        return ((*lead, *(Read(rank - self.spatial + a, s) for a, s in enumerate(slides))),)

    def flops(self, call: Call) -> float:
        return float(prod(slide.kernel for slide in windows(call, self.spatial)))

    def padded(self, call: Call, x: Tensor, place: Place, value: float) -> tuple[Tensor, list[int]]:
        """A tile with a frame of `value` where the pool's own padding, which is given too, does not make it."""
        padding, frame = [], list[int]()
        least = 1 if self.spatial < 3 else max(s.kernel for s in windows(call, 3))  # torch asks that of volumes
        for slide, (before, after), size, out in zip(
            windows(call, self.spatial),
            place.pad(call)[-self.spatial :],
            x.shape[-self.spatial :],
            place.out.shape[-self.spatial :],
            strict=True,
        ):
            alike = before <= slide.kernel // 2 and size >= least and slide.symmetric_is(before, size, out)
            padding.append(before if alike else 0)
            frame = [0, 0, *frame] if alike else [before, after, *frame]
        return F.pad(x, frame, value=value) if any(frame) else x, padding


@op("max_pool1d", "max_pool2d", "max_pool3d")
class MaxPool(_Pool):
    reach = 0.65  # by our own kernel (`kernels/comparing_pool.py`)
    serial = True
    adaptive = "adaptive_max_pool"

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        slides = windows(call, self.spatial)
        x, padding = self.padded(call, x, place, float("-inf"))
        kernel, stride, dilation = zip(*((s.kernel, s.stride, s.dilation) for s in slides), strict=True)
        return MAX[self.spatial - 1](x, kernel, stride, padding, dilation)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.max_pool2d(x, 2), ((2, 2, 9, 8),))
        yield Sample(lambda x: F.max_pool2d(x, 3, 2, 1), ((1, 2, 9, 10),), "padded")
        yield Sample(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), ((1, 2, 9, 10),), "ceil")
        yield Sample(lambda x: F.max_pool2d(x, 2, 1, 0, 2), ((1, 2, 9, 7),), "dilation")
        yield Sample(lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True), ((1, 2, 10, 11),), "stride over kernel")
        yield Sample(lambda x: F.max_pool1d(x, 3, 2), ((1, 2, 12),))
        yield Sample(lambda x: F.max_pool3d(x, 2), ((1, 2, 5, 4, 6),))
        yield Sample(lambda x: F.max_pool3d(x, 3, 2, 1), ((1, 1, 3, 4, 3),), "tiles below the kernel")


@op("avg_pool1d", "avg_pool2d", "avg_pool3d")
class AvgPool(_Pool):
    adaptive = "adaptive_avg_pool"

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        axes, slides = self.spatial, windows(call, self.spatial)
        x, padding = self.padded(call, x, place, 0.0)
        kernel, stride = zip(*((s.kernel, s.stride) for s in slides), strict=True)
        counts = [self._counts(call, s, place, a - axes) for a, s in enumerate(slides)]
        override = call.attr("divisor_override")
        if override is None and all(min(c) == s.kernel for c, s in zip(counts, slides, strict=True)):
            return AVG[axes - 1](x, kernel, stride, padding)
        if axes == 1:  # only the others can be told to divide by one
            wide = x.unsqueeze(-2), (1, *kernel), (1, *stride), (0, *padding)
            total = F.avg_pool2d(*wide, divisor_override=1).squeeze(-2)
        else:
            total = (F.avg_pool2d if axes == 2 else F.avg_pool3d)(x, kernel, stride, padding, divisor_override=1)
        if override is not None:
            return total / override
        divisor = torch.ones((), dtype=torch.float64)
        for a, c in enumerate(counts):
            divisor = divisor * torch.tensor(c, dtype=torch.float64).view(-1, *(1 for _ in range(axes - 1 - a)))
        return total / divisor.to(device=x.device, dtype=x.dtype)

    @staticmethod
    def _counts(call: Call, slide: Slide, place: Place, dim: int) -> list[int]:
        """How many elements each output along `dim` averages over."""
        n = call.inputs[0].shape[dim]
        padded = bool(call.attr("count_include_pad", True))
        low, high = (-slide.before, n + slide.before) if padded else (0, n)
        starts = (o * slide.stride - slide.before for o in range(*place.out[dim]))
        return [min(s + slide.kernel, high) - max(s, low) for s in starts]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.avg_pool2d(x, 2), ((2, 2, 9, 8),))
        yield Sample(lambda x: F.avg_pool2d(x, 4, 2, 2), ((1, 2, 9, 10),), "padded")
        yield Sample(lambda x: F.avg_pool2d(x, 4, 2, 1, count_include_pad=False), ((1, 2, 9, 10),), "valid only")
        yield Sample(lambda x: F.avg_pool2d(x, 4, 3, 1, ceil_mode=True), ((1, 2, 9, 10),), "ceil")
        yield Sample(lambda x: F.avg_pool2d(x, 2, divisor_override=3), ((1, 2, 9, 10),), "override")
        yield Sample(lambda x: F.avg_pool1d(x, 4, 2, 2), ((1, 2, 11),))
        yield Sample(lambda x: F.avg_pool3d(x, 2), ((1, 2, 5, 4, 6),))
        yield Sample(lambda x: F.avg_pool3d(x, 2, 2, 1, ceil_mode=True), ((1, 1, 2, 2, 2),), "tiles below the kernel")
        yield Sample(lambda x: F.lp_pool2d(x.abs(), 2.0, 2), ((1, 2, 9, 8),), "lp pooling")
