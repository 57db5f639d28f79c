"""Interpolation: nearest, nearest-exact, linear, bilinear, trilinear and bicubic, by global coordinates.

A tile cannot be resized by itself: torch finds source coordinates from the sizes of the whole axis. So each axis
is a weighted sum of a few rows picked by index, with the indices and weights torch itself would use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..region import POINT, Interval, Resize
from .base import Call, Op, Place, Read, Reads, Sample
from .registry import op

Tap = tuple[Tensor, Tensor | None]  # global source index and weight, per output


@op(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
class Upsample(Op):
    def windows(self, call: Call) -> tuple[Resize, ...]:
        mode = next(m for m in ("nearest_exact", "nearest", "linear", "cubic") if m in call.node.op).replace("_", "-")
        given = call.attr("scale_factors") or [
            call.attr(f"scales_{axis}") or (call.attr("scales") if self.spatial == 1 else None)
            for axis in "dhw"[-self.spatial :]
        ]
        axes = zip(call.inputs[0].shape[-self.spatial :], call.out.shape[-self.spatial :], given, strict=True)
        align = bool(call.attr("align_corners", False))
        return tuple(Resize(n, m, mode, align, 1.0 / s if s and s > 0 else None) for n, m, s in axes)

    def reads(self, call: Call) -> Reads:
        rank = len(call.inputs[0].shape)
        lead = tuple(Read(d, POINT) for d in range(rank - self.spatial))
        return ((*lead, *(Read(rank - self.spatial + a, w) for a, w in enumerate(self.windows(call)))),)

    def flops(self, call: Call) -> float:
        per_axis = {"nearest": 0, "nearest-exact": 0, "linear": 3, "cubic": 7}[self.windows(call)[0].mode]
        return float(self.spatial * per_axis)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        fast = self._fast(call, x)
        for a, window in enumerate(self.windows(call)):
            dim = x.dim() - self.spatial + a
            out, origin = place.out[dim], place.origin(call, 0, dim)
            if window.n == window.n_out and (window.scale in (None, 1.0) or self._copies(window, x)):
                x = x.narrow(dim, out.lo - origin, out.size)  # every output is its own input
            else:
                x = _resize(x, dim, window, out, origin, fast)
        return x

    @staticmethod
    def _copies(window: Resize, x: Tensor) -> bool:
        """Given a scale such as 1.05 that leaves the size as it was, torch's linear kernel on CPU copies."""
        return window.mode == "linear" and x.device.type == "cpu"

    def _fast(self, call: Call, x: Tensor) -> bool:
        """Would torch take its vectorised kernel for the whole image? It finds indices in single precision."""
        if x.device.type != "cpu" or self.spatial == 1:
            return x.device.type != "cpu"
        layout = torch.channels_last if self.spatial == 2 else torch.channels_last_3d
        channels_last = x.dim() == self.spatial + 2 and x.shape[1] > 3 and x.is_contiguous(memory_format=layout)
        return channels_last or (self.spatial == 2 and sum(call.out.shape[-2:]) <= 128)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            yield Sample(lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), ((2, 2, 5, 6),), mode)
            yield Sample(lambda x, m=mode: F.interpolate(x, scale_factor=0.5, mode=m), ((1, 2, 8, 10),), f"{mode} down")
            yield Sample(lambda x, m=mode: F.interpolate(x, size=(13, 4), mode=m), ((1, 2, 6, 9),), f"{mode} odd")
        for mode in ("bilinear", "bicubic"):
            yield Sample(
                lambda x, m=mode: F.interpolate(x, size=(9, 5), mode=m, align_corners=True),
                ((1, 2, 5, 9),),
                f"{mode} corners",
            )
        yield Sample(lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"), ((1, 2, 7),))
        yield Sample(lambda x: F.interpolate(x, size=(6, 7, 8), mode="trilinear"), ((1, 1, 3, 4, 5),))


def _resize(x: Tensor, dim: int, window: Resize, out: Interval, origin: int, fast: bool) -> Tensor:
    total: Tensor | None = None
    for index, weight in _taps(window, out, torch.float64 if x.dtype == torch.float64 else torch.float32, fast):
        local = (index - origin).clamp(0, max(0, x.shape[dim] - 1)).to(x.device)
        picked = x.index_select(dim, local)
        if weight is not None:
            shape = [1] * x.dim()
            shape[dim] = -1
            picked = picked * weight.to(device=x.device, dtype=x.dtype).view(shape)
        total = picked if total is None else total + picked
    assert total is not None
    return total


def _taps(window: Resize, out: Interval, real: torch.dtype, fast: bool) -> list[Tap]:
    last = window.n - 1
    if window.mode.startswith("nearest"):
        return [(_nearest(window, out, real, fast).clamp(max=last), None)]
    at = torch.arange(out.lo, out.hi).to(real)
    if window.align_corners:
        step = torch.tensor(last, dtype=real) / max(1, window.n_out - 1)
        source = at * (step if window.n_out > 1 else 0)
    else:
        source = _step(window, real) * (at + 0.5) - 0.5
        source = source if window.mode == "cubic" else source.clamp(min=0)
    first = source.floor()
    t, index = source - first, first.to(torch.int64)
    if window.mode == "linear":
        # torch reads the last row twice instead of stepping over the border
        return [(index.clamp(0, last), 1 - t), ((index + 1).clamp(0, last), t)]
    weights = (_far(t + 1), _near(t), _near(1 - t), _far(2 - t))
    return [((index + k - 1).clamp(0, last), w) for k, w in enumerate(weights)]


def _step(window: Resize, real: torch.dtype) -> Tensor:
    """Inputs per output, rounded as torch does."""
    return torch.tensor(window.n / window.n_out if window.scale is None else window.scale, dtype=torch.float64).to(real)


def _nearest(window: Resize, out: Interval, real: torch.dtype, fast: bool) -> Tensor:
    """The index that torch picks; all is single precision in its fast kernels, and in the others at the last moment."""
    index = torch.arange(out.lo, out.hi)
    if fast and window.mode == "nearest" and window.n_out in (window.n, 2 * window.n):
        return index // (window.n_out // window.n)
    at = index.double()
    step = _step(window, torch.float32 if fast else real).double()
    if window.mode == "nearest":
        source = at * step
    elif fast:
        source = (at + 0.5) * step
    else:
        source = (step * (at + 0.5) - 0.5).to(real).clamp(min=0).double() + 0.5
    return source.float().floor().to(torch.int64)


_A = -0.75  # torch's cubic convolution coefficient


def _near(x: Tensor) -> Tensor:
    return ((_A + 2) * x - (_A + 3)) * x * x + 1


def _far(x: Tensor) -> Tensor:
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
