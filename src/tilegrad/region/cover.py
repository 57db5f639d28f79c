"""Covers: cut an axis, or a box, so that every index lies in exactly one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from random import Random

from .box import Box
from .interval import Interval


def cuts_of_size(n: int, size: int) -> tuple[int, ...]:
    """Cut `[0, n)` into tiles of `size`; the last may be smaller: `cuts_of_size(10, 4) == (0, 4, 8, 10)`."""
    if size < 1:
        raise ValueError(f"a tile must hold at least one element, got size {size}")
    return (*range(0, n, size), n) if n else (0, 0)


def cuts_of_count(n: int, count: int) -> tuple[int, ...]:
    """Cut `[0, n)` into `count` equal tiles of `ceil(n / count)`.

    All tiles but the last ones are alike, so that the runtime meets few shapes; the last tiles are
    smaller or empty: `cuts_of_count(10, 4) == (0, 3, 6, 9, 10)`, `cuts_of_count(4, 3) == (0, 2, 4, 4)`.
    """
    if count < 1:
        raise ValueError(f"a grid must have at least one tile, got {count}")
    size = -(-n // count)
    return tuple(min(n, t * size) for t in range(count + 1))


def tiles(cuts: Sequence[Sequence[int]]) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Every tile of a grid, as its index and its box, in raster order (the last axis runs fastest)."""
    sides = [[Interval(a, b) for a, b in pairwise(axis)] for axis in cuts]
    for index in product(*(range(len(side)) for side in sides)):
        yield index, Box(side[i] for side, i in zip(sides, index, strict=True))


def covers_once(parts: Sequence[Box], whole: Box) -> bool:
    """Is every element of a box in just one of the parts? Elements are weighed, each side of a box with random weights,
    so that no overlap can make up for a gap; the odds of a mistake are one in 2**60."""
    if any(not whole.holds(part) for part in parts):
        return False
    if sum(part.volume for part in parts) != whole.volume:
        return False
    total, weighed = 1, 0
    for side in whole:
        total *= _weight(side.hi) - _weight(side.lo)
    for part in parts:
        weight = 1
        for side in part:
            weight *= _weight(side.hi) - _weight(side.lo)
        weighed += weight
    return weighed == total


_weights: list[int] = [0]
_random = Random(0)


def _weight(upto: int) -> int:
    """Of all elements before one, along any side."""
    while len(_weights) <= upto:
        _weights.append(_weights[-1] + _random.randrange(1, 1 << 60))
    return _weights[upto]
