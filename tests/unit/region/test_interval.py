"""Intervals against sets of integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilegrad.region import EMPTY, Interval

numbers = st.integers(-20, 20)
intervals = st.builds(Interval, numbers, numbers)


def members(span: Interval) -> set[int]:
    return set(range(span.lo, span.hi))


@given(intervals)
def test_size_and_empty_count_members(span: Interval) -> None:
    assert span.size == len(members(span))
    assert span.empty == (not members(span))


@given(intervals, st.integers(0, 15))
def test_clip_keeps_what_is_inside(span: Interval, n: int) -> None:
    clipped = span.clip(n)
    assert members(clipped) == members(span) & set(range(n))
    assert 0 <= clipped.lo <= clipped.hi <= n


def test_clip_of_what_lies_outside_is_empty_at_the_nearer_border() -> None:
    assert Interval(-7, -2).clip(5) == (0, 0)
    assert Interval(9, 12).clip(5) == (5, 5)


@given(intervals, st.integers(0, 15))
def test_overhang_counts_members_outside(span: Interval, n: int) -> None:
    """Even of an interval wholly in the padding: what is clipped away is what must be padded."""
    before, after = span.overhang(n)
    assert before == len([i for i in members(span) if i < 0])
    assert after == len([i for i in members(span) if i >= n])
    assert before + span.clip(n).size + after == span.size


@given(intervals, intervals)
def test_hull_and_meet(a: Interval, b: Interval) -> None:
    together = members(a) | members(b)
    assert members(a.hull(b)) == (set(range(min(together), max(together) + 1)) if together else set())
    assert members(a.meet(b)) == members(a) & members(b)


@given(intervals, intervals)
def test_holds_is_subset(a: Interval, b: Interval) -> None:
    assert a.holds(b) == (members(b) <= members(a))


@given(intervals, numbers)
def test_shift_moves_members(span: Interval, by: int) -> None:
    assert members(span.shift(by)) == {i + by for i in members(span)}


def test_empty_is_neutral_for_hull() -> None:
    assert EMPTY.hull(Interval(3, 5)) == Interval(3, 5) == Interval(3, 5).hull(EMPTY)
