"""Boxes: one interval per dimension of a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from .interval import Interval


class Box(tuple[Interval, ...]):
    """A product of half-open intervals. Empty when any of them is."""

    __slots__ = ()

    def __new__(cls, sides: Iterable[Interval | tuple[int, int]]) -> Box:
        return super().__new__(cls, [s if isinstance(s, Interval) else Interval(*s) for s in sides])

    @classmethod
    def full(cls, shape: Iterable[int]) -> Box:
        return cls(Interval(0, n) for n in shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(side.size for side in self)

    @property
    def volume(self) -> int:
        return prod(self.shape)

    @property
    def empty(self) -> bool:
        return any(side.empty for side in self)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(side.lo, side.hi) for side in self)

    def within(self, outer: Box) -> Box:
        """The same box in the coordinates of `outer`'s corner."""
        return Box(a.shift(-b.lo) for a, b in zip(self, outer, strict=True))

    def clip(self, shape: Iterable[int]) -> Box:
        return Box(side.clip(n) for side, n in zip(self, shape, strict=True))

    def meet(self, other: Box) -> Box:
        return Box(a.meet(b) for a, b in zip(self, other, strict=True))

    def hull(self, other: Box) -> Box:
        if self.empty:
            return other
        return self if other.empty else Box(a.hull(b) for a, b in zip(self, other, strict=True))

    def holds(self, other: Box) -> bool:
        return other.empty or all(a.holds(b) for a, b in zip(self, other, strict=True))

    def inside(self, shape: Sequence[int]) -> bool:
        """Is it a box of a value of this shape? It has the same rank, does not run backward and sticks out nowhere."""
        return len(self) == len(shape) and all(0 <= s.lo <= s.hi <= n for s, n in zip(self, shape, strict=True))

    @property
    def text(self) -> str:
        """`0:1,3:8`, or `-` where there are no sides."""
        return ",".join(f"{side.lo}:{side.hi}" for side in self) or "-"

    @classmethod
    def parse(cls, text: str) -> Box:
        """The inverse of `text`; `ValueError` where it is none."""
        sides = [side.split(":") for side in text.split(",")] if text != "-" else []
        return cls(Interval(int(lo), int(hi)) for lo, hi in sides)

    def __str__(self) -> str:
        return "[" + " ".join(f"{side.lo}:{side.hi}" for side in self) + "]"

    def __repr__(self) -> str:
        return f"Box({str(self)[1:-1]})"
