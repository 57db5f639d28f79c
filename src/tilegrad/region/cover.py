"""Covers: cut an axis, or a box, so that every index lies in exactly one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

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
