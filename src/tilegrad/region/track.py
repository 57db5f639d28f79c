"""One interval per tile, all at once: what `Interval` and windows say of one, in arrays.

Rule K1  `track[t]` is what the same operation gives for the t-th interval; an empty one adds nothing to a hull.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .interval import Interval
from .window import Chain, Crop, Repeat, Slide, Spread, Window

Ends = NDArray[np.int64]


class Track(Sequence[Interval]):
    """`lo` and `hi` of every interval."""

    __slots__ = ("_sizes", "_total", "hi", "lo")

    def __init__(self, lo: Ends, hi: Ends):
        self.lo, self.hi = lo, hi
        self._sizes: Ends | None = None  # asked for again and again
        self._total: int | None = None

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> Track:
        found = np.array([*spans], np.int64).reshape(-1, 2)
        return cls(found[:, 0], found[:, 1])

    @classmethod
    def between(cls, cuts: Sequence[int]) -> Track:
        ends = np.array(cuts, np.int64)
        return cls(ends[:-1], ends[1:])

    @classmethod
    def nothing(cls, count: int, at: int = 0) -> Track:
        ends = np.full(count, at, np.int64)
        return cls(ends, ends)

    @property
    def empty(self) -> NDArray[np.bool_]:
        return self.hi <= self.lo

    @property
    def sizes(self) -> Ends:
        if self._sizes is None:
            self._sizes = np.maximum(self.hi - self.lo, 0)
        return self._sizes

    @property
    def total(self) -> int:
        if self._total is None:
            self._total = int(self.sizes.sum())
        return self._total

    def clip(self, n: int) -> Track:
        lo = np.minimum(np.maximum(self.lo, 0), n)
        return Track(lo, np.maximum(lo, np.minimum(self.hi, n)))

    def hull(self, other: Track) -> Track:
        mine, theirs = self.empty, other.empty
        if theirs.all():
            return self
        if mine.all() and not theirs.any():
            return other
        lo = np.where(theirs, self.lo, np.where(mine, other.lo, np.minimum(self.lo, other.lo)))
        return Track(lo, np.where(theirs, self.hi, np.where(mine, other.hi, np.maximum(self.hi, other.hi))))

    def meet(self, other: Interval) -> Track:
        lo = np.maximum(self.lo, other.lo)
        return Track(lo, np.maximum(lo, np.minimum(self.hi, other.hi)))

    @overload
    def __getitem__(self, at: int) -> Interval: ...

    @overload
    def __getitem__(self, at: slice) -> Track: ...

    def __getitem__(self, at: int | slice) -> Interval | Track:
        if isinstance(at, slice):
            return Track(self.lo[at], self.hi[at])
        return Interval(int(self.lo[at]), int(self.hi[at]))

    def __iter__(self) -> Iterator[Interval]:
        return map(Interval, self.lo.tolist(), self.hi.tolist())

    def __len__(self) -> int:
        return len(self.lo)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Track):
            return np.array_equal(self.lo, other.lo) and np.array_equal(self.hi, other.hi)
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Track({', '.join(f'{lo}:{hi}' for lo, hi in self)})"


def read_all(window: Window, made: Track) -> Track:
    """`window.reads` of every interval."""
    match window:
        case Chain(outer=outer, inner=inner):
            return read_all(inner, read_all(outer, made))
        case Crop(start=start, step=step):
            return read_all(Slide(1, step, -start), made)
        case Slide(stride=1, before=0, reach=1):
            return made
        case Slide(stride=stride, before=before, reach=reach):
            lo, hi = made.lo * stride - before, (made.hi - 1) * stride - before + reach
        case Spread(stride=stride, before=before, reach=reach):
            lo = -((-made.lo - before + reach - 1) // stride)
            hi = np.maximum(lo, (made.hi - 1 + before) // stride + 1)
        case Repeat(times=times):
            lo, hi = made.lo // times, (made.hi - 1) // times + 1
        case _:
            return Track.of([window.reads(*span) for span in made])
    empty = made.empty
    return Track(np.where(empty, 0, lo), np.where(empty, 0, hi)) if empty.any() else Track(lo, hi)


def made_from(window: Window, there: Ends, size: int, count: int) -> Ends:
    """How many outputs, of `count`, can be made where so many inputs, of `size`, are there. Both may go on behind their
    ends, at the same pace: what is padded there is waited for like anything else."""
    if isinstance(window, Slide):
        return np.maximum((there + window.before - window.reach) // window.stride + 1, 0)
    found, past = np.zeros_like(there), np.full_like(there, count + 1)
    while (past - found > 1).any():  # the more outputs, the further they read
        middle = (found + past) // 2
        fits = read_all(window, Track(np.zeros_like(middle), middle)).clip(size).hi <= there
        found, past = np.where(fits, middle, found), np.where(fits, past, middle)
    return found + np.maximum(there - size, 0) * count // max(1, size)
