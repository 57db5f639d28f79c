"""Covers: every index in exactly one piece, pieces alike but for the last ones."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.region import Box, cuts_of_count, cuts_of_size, tiles


def pieces(cuts: tuple[int, ...]) -> list[range]:
    return [range(a, b) for a, b in pairwise(cuts)]


@given(st.integers(0, 60), st.integers(1, 70))
def test_cuts_of_size_cover_once(n: int, size: int) -> None:
    found = pieces(cuts_of_size(n, size))
    assert [i for piece in found for i in piece] == list(range(n))
    assert all(len(piece) == size for piece in found[:-1])
    assert len(found) == max(1, -(-n // size))


@given(st.integers(0, 60), st.integers(1, 70))
def test_cuts_of_count_cover_once(n: int, count: int) -> None:
    found = pieces(cuts_of_count(n, count))
    assert len(found) == count
    assert [i for piece in found for i in piece] == list(range(n))
    lengths = [len(piece) for piece in found]
    assert lengths == sorted(lengths, reverse=True)
    assert len({length for length in lengths if length}) <= 2  # one interior shape, one last


def test_the_documented_cuts() -> None:
    assert cuts_of_size(10, 4) == (0, 4, 8, 10)
    assert cuts_of_count(10, 4) == (0, 3, 6, 9, 10)
    assert cuts_of_count(4, 3) == (0, 2, 4, 4)


@pytest.mark.parametrize("cut", [cuts_of_size, cuts_of_count])
@pytest.mark.parametrize("amount", [0, -1])
def test_no_tile_of_nothing(cut, amount: int) -> None:
    with pytest.raises(ValueError, match=f"at least one.*got.*{amount}"):
        cut(5, amount)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), min_size=1, max_size=3))
def test_tiles_hold_each_point_once_in_raster_order(axes: list[tuple[int, int]]) -> None:
    grid = list(tiles([cuts_of_count(n, count) for n, count in axes]))
    assert [index for index, _ in grid] == list(product(*(range(count) for _, count in axes)))
    seen = Counter(point for _, box in grid for point in product(*(range(*side) for side in box)))
    assert seen == Counter(product(*(range(n) for n, _ in axes)))
    assert all(isinstance(box, Box) for _, box in grid)
