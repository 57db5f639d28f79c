"""Half-open intervals of integers, `[lo, hi)`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """The integers from `lo` up to, not including, `hi`. Empty when `hi <= lo`."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        return max(0, self.hi - self.lo)

    @property
    def empty(self) -> bool:
        return self.hi <= self.lo

    def clip(self, n: int) -> Interval:
        """The part inside `[0, n)`; an interval wholly outside becomes empty at the nearer border."""
        lo, hi = min(max(self.lo, 0), n), min(max(self.hi, 0), n)
        return Interval(lo, max(lo, hi))

    def overhang(self, n: int) -> tuple[int, int]:
        """How much of the interval sticks out of `[0, n)`, before and after: with the clipped part, all of it."""
        return max(0, min(self.hi, 0) - self.lo), max(0, self.hi - max(self.lo, n))

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that holds both; an empty one adds nothing."""
        if self.empty:
            return other
        return self if other.empty else Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def meet(self, other: Interval) -> Interval:
        lo = max(self.lo, other.lo)
        return Interval(lo, max(lo, min(self.hi, other.hi)))

    def holds(self, other: Interval) -> bool:
        return other.empty or (self.lo <= other.lo and other.hi <= self.hi)

    def shift(self, by: int) -> Interval:
        return Interval(self.lo + by, self.hi + by)


EMPTY = Interval(0, 0)


def overlapping_pairs(spans: Sequence[tuple[int, int]]) -> int:
    """How many pairs of spans overlap. `spans` are in the order of their starts, and none is empty: each overlaps with
    those before it that have not ended."""
    ends = sorted(end for _, end in spans)
    return sum(at - bisect_right(ends, start) for at, (start, _) in enumerate(spans))
