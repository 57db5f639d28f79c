"""Boxes against sets of points."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.region import Box, Interval

sides = st.builds(Interval, st.integers(-3, 6), st.integers(-3, 6))
boxes = st.builds(lambda *s: Box(s), sides, sides)
shapes = st.tuples(st.integers(0, 5), st.integers(0, 5))


def points(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(side.lo, side.hi) for side in box)))


@given(boxes)
def test_shape_volume_and_empty(box: Box) -> None:
    assert box.volume == len(points(box))
    assert box.empty == (not points(box))
    assert box.shape == tuple(len(range(*side)) for side in box)


@given(boxes, shapes)
def test_clip_and_meet_keep_common_points(box: Box, shape: tuple[int, int]) -> None:
    assert points(box.clip(shape)) == points(box) & points(Box.full(shape))
    assert points(box.meet(Box.full(shape))) == points(box) & points(Box.full(shape))


@given(boxes, boxes)
def test_hull_is_the_smallest_box_around_both(a: Box, b: Box) -> None:
    both = points(a) | points(b)
    hull = a.hull(b)
    if both:
        columns = list(zip(*both, strict=True))
        assert hull == Box((min(c), max(c) + 1) for c in columns)
    else:
        assert hull.empty


@given(boxes, boxes)
def test_holds_is_subset(a: Box, b: Box) -> None:
    assert a.holds(b) == (points(b) <= points(a))


@given(boxes, boxes)
def test_within_moves_to_the_corner_of_the_other(a: Box, b: Box) -> None:
    corner = tuple(side.lo for side in b)
    assert points(a.within(b)) == {tuple(p - c for p, c in zip(point, corner, strict=True)) for point in points(a)}


def test_sides_may_be_pairs_and_slices_cut_tensors() -> None:
    box = Box([(0, 2), Interval(1, 4)])
    assert box.slices == (slice(0, 2), slice(1, 4))
    assert all(isinstance(side, Interval) for side in box)
    assert repr(box) == "Box(0:2 1:4)"


def test_ranks_must_agree() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Box.full((2, 3)).meet(Box.full((2,)))
