"""Windows: which inputs an output reads, along one axis.

Everything local is a *monotone interval map*. Four laws hold for every window, and the property tests
check them against torch itself:

Rule W1  `reads(lo, hi)` holds every input that outputs `[lo, hi)` read, and both its ends are
         non-decreasing in `lo` and in `hi`.
Rule W2  `read_by(lo, hi)` holds every output that reads an input in `[lo, hi)`; likewise monotone.
Rule W3  `count(n)` is the number of outputs that `n` inputs give.
Rule W4  Nothing is clipped here. What sticks out of `[0, n)` is padding; clipping is done once, in `bounds`.
         (A window that itself clamps, such as a resize, stays inside because its operator does.)

An empty interval reads nothing and is read by nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import Protocol

import numpy as np

from .interval import EMPTY, Interval


class Window(Protocol):
    """The one-dimensional box rule of an operator."""

    def reads(self, lo: int, hi: int) -> Interval: ...

    def read_by(self, lo: int, hi: int) -> Interval: ...

    def count(self, n: int) -> int: ...


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Slide:
    """Convolution and pooling: output `o` reads `o*stride - before + dilation*j` for `j < kernel`."""

    kernel: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def reach(self) -> int:
        """From the first input a window reads to one past its last."""
        return self.dilation * (self.kernel - 1) + 1

    def reads(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        return Interval(lo * self.stride - self.before, (hi - 1) * self.stride - self.before + self.reach)

    def read_by(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        # The first and last taps decide. With dilation and stride this is a hull: the map itself is not monotone.
        first = ceil_div(lo + self.before - self.reach + 1, self.stride)
        return Interval(first, max(first, (hi - 1 + self.before) // self.stride + 1))

    def count(self, n: int) -> int:
        room = n + self.before + self.after - self.reach
        if room < 0 and not self.ceil_mode:
            return 0
        out = (ceil_div(room, self.stride) if self.ceil_mode else room // self.stride) + 1
        if self.ceil_mode and (out - 1) * self.stride >= n + self.before:
            out -= 1  # the last window must start inside the input or its front padding
        return max(0, out)

    def symmetric_is(self, before: int, size: int, out: int) -> bool:
        """Would padding `before` on both sides of `size` inputs give just these `out` outputs?"""
        return (size + 2 * before - self.reach) // self.stride + 1 == out and size + 2 * before >= self.reach


@dataclass(frozen=True, slots=True)
class Spread:
    """Transposed convolution: input `i` writes outputs `i*stride - before + dilation*j` for `j < kernel`."""

    kernel: int
    stride: int = 1
    before: int = 0
    output_padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    def reads(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        first = ceil_div(lo + self.before - self.reach + 1, self.stride)
        return Interval(first, max(first, (hi - 1 + self.before) // self.stride + 1))

    def read_by(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        return Interval(lo * self.stride - self.before, (hi - 1) * self.stride - self.before + self.reach)

    def count(self, n: int) -> int:
        return (n - 1) * self.stride - 2 * self.before + self.reach + self.output_padding


@dataclass(frozen=True, slots=True)
class Repeat:
    """Each input gives `times` outputs (pixel shuffle along one axis)."""

    times: int

    def reads(self, lo: int, hi: int) -> Interval:
        return EMPTY if hi <= lo else Interval(lo // self.times, (hi - 1) // self.times + 1)

    def read_by(self, lo: int, hi: int) -> Interval:
        return EMPTY if hi <= lo else Interval(lo * self.times, hi * self.times)

    def count(self, n: int) -> int:
        return n * self.times


@dataclass(frozen=True, slots=True)
class Crop:
    """A slice `[start : start + size*step : step]`; a negative start is constant padding."""

    start: int
    size: int
    step: int = 1

    def reads(self, lo: int, hi: int) -> Interval:
        return Slide(1, self.step, -self.start).reads(lo, hi)

    def read_by(self, lo: int, hi: int) -> Interval:
        return Slide(1, self.step, -self.start).read_by(lo, hi)

    def count(self, n: int) -> int:
        return self.size


class _Finite:
    """Windows between axes of known length: `read_by` by bisection over the outputs."""

    __slots__ = ()
    n_out: int

    def reads(self, lo: int, hi: int) -> Interval:
        raise NotImplementedError  # pragma: no cover - every subclass has its own

    def count(self, n: int) -> int:
        return self.n_out

    def read_by(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        outputs = range(self.n_out)
        first = bisect_left(outputs, lo + 1, key=lambda o: self.reads(o, o + 1).hi)
        last = bisect_left(outputs, hi, key=lambda o: self.reads(o, o + 1).lo)
        return Interval(first, max(first, last))


@dataclass(frozen=True, slots=True)
class Whole(_Finite):
    """No local rule: every output reads the whole axis. Planners see a barrier."""

    n: int
    n_out: int

    def reads(self, lo: int, hi: int) -> Interval:
        return EMPTY if hi <= lo else Interval(0, self.n)


@dataclass(frozen=True, slots=True)
class Adaptive(_Finite):
    """Adaptive pooling: output `o` of `m` reads `[floor(o*n/m), ceil((o+1)*n/m))`."""

    n: int
    n_out: int

    def reads(self, lo: int, hi: int) -> Interval:
        return EMPTY if hi <= lo else Interval(lo * self.n // self.n_out, ceil_div(hi * self.n, self.n_out))


@dataclass(frozen=True, slots=True)
class Mirror(_Finite):
    """Reflecting padding. Indices run backwards in the margins, so this is the monotone hull of the map:
    what the outputs up to `hi` need at most, and what the outputs from `lo` need at least."""

    n: int
    before: int
    after: int
    n_out: int

    def reads(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        lo_in = min(lo - self.before, self.n - 1 - max(0, self.after))
        hi_in = max(hi - 1 - self.before, max(0, self.before)) + 1
        return Interval(max(0, lo_in), min(self.n, hi_in))


@dataclass(frozen=True, slots=True)
class Replicate(_Finite):
    """Padding that repeats the border element."""

    n: int
    before: int
    after: int
    n_out: int

    def reads(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        last = self.n - 1
        return Interval(min(max(lo - self.before, 0), last), min(max(hi - 1 - self.before, 0), last) + 1)


@dataclass(frozen=True, slots=True)
class Resize(_Finite):
    """Interpolation from `n` to `n_out`: `nearest`, `nearest-exact`, `linear` or `cubic`.

    torch finds the source coordinate in floating point, and its kernels round differently (by dtype, layout, size and
    device); the integer rule covers them all.
    """

    n: int
    n_out: int
    mode: str
    align_corners: bool = False
    scale: float | None = None  # inputs per output, where the caller gave a scale factor

    def reads(self, lo: int, hi: int) -> Interval:
        if hi <= lo:
            return EMPTY
        return Interval(self._taps(lo).lo, self._taps(hi - 1).hi)

    def _taps(self, o: int) -> Interval:
        return _resize_taps(self.n, self.n_out, self.mode, self.align_corners, self.scale, o)


@lru_cache(maxsize=1 << 16)
def _resize_taps(n: int, n_out: int, mode: str, align: bool, scale: float | None, o: int) -> Interval:
    if n_out == n and mode != "cubic" and scale in (None, 1.0):
        return Interval(o, o + 1)
    starts = {floor(at) for at in _sources(n, n_out, mode, align, scale, o)}
    if n_out == n and mode in ("nearest", "linear"):
        starts.add(o)  # where no size changes some kernels just copy, whatever the scale
    if n_out == 2 * n and mode == "nearest":
        starts.add(o // 2)
    before, after = {"linear": (0, 1), "cubic": (1, 2)}.get(mode, (0, 0))
    last = n - 1
    lo, hi = min(starts) - before, max(starts) + after
    return Interval(min(max(lo, 0), last), min(max(hi, 0), last) + 1)


def _sources(n: int, n_out: int, mode: str, align: bool, scale: float | None, o: int) -> Iterator[float]:
    """The source coordinate in every way torch may round it: by dtype, fused or not, and to single before `floor`."""
    for real in (np.float32, np.float64):
        for at in _coordinates(n, n_out, mode, align, scale, o, real):
            yield at
            yield float(np.float32(at))


def _coordinates(
    n: int, n_out: int, mode: str, align: bool, scale: float | None, o: int, real: type[np.floating]
) -> tuple[float, ...]:
    if align:
        return (float(real(o) * (real(n - 1) / real(n_out - 1))) if n_out > 1 else 0.0,)
    step = real(n) / real(n_out) if scale is None else real(scale)
    if mode == "nearest":
        return (float(real(o) * step),)
    fused, plain = float(step) * (o + 0.5) - 0.5, float(step * real(o + 0.5) - real(0.5))
    if mode == "cubic":
        return fused, plain
    if mode == "linear":
        return max(fused, 0.0), max(plain, 0.0)
    return max(fused, 0.0) + 0.5, max(plain, 0.0) + 0.5, float(step) * (o + 0.5)


@dataclass(frozen=True, slots=True)
class Chain:
    """`outer` reads from the outputs of `inner`: the composition of two windows."""

    outer: Window
    inner: Window

    def reads(self, lo: int, hi: int) -> Interval:
        return self.inner.reads(*self.outer.reads(lo, hi))

    def read_by(self, lo: int, hi: int) -> Interval:
        return self.outer.read_by(*self.inner.read_by(lo, hi))

    def count(self, n: int) -> int:
        return self.outer.count(self.inner.count(n))


POINT = Slide()
"""Output `o` reads input `o`."""
