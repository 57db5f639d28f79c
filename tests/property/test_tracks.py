"""Tracks say of all intervals what `Interval` and windows say of each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.region import (
    EMPTY,
    Adaptive,
    Chain,
    Crop,
    Interval,
    Mirror,
    Repeat,
    Slide,
    Spread,
    Track,
    Window,
    made_from,
    read_all,
)

small = st.integers(1, 5)
spans = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: Interval(p[0], p[0] + p[1]))
tracks = st.lists(spans, min_size=1, max_size=6)
slides = st.builds(Slide, small, small, st.integers(0, 3), st.integers(0, 3), small)
spreads = st.builds(Spread, small, small, st.integers(0, 3), st.integers(0, 1), small)
crops = st.builds(Crop, st.integers(-3, 5), st.integers(1, 50), small)
simple = slides | spreads | crops | st.builds(Repeat, small)
windows = simple | st.builds(Chain, simple, simple) | st.just(Adaptive(40, 50)) | st.just(Mirror(40, 1, 1, 42))


def same(found: Track, wanted: list[Interval]) -> bool:
    """Where an empty interval lies means nothing."""
    return [EMPTY if span.empty else span for span in found] == [EMPTY if span.empty else span for span in wanted]


@given(windows, tracks)
def test_windows_read_alike(window: Window, made: list[Interval]) -> None:
    assert same(read_all(window, Track.of(made)), [window.reads(*span) for span in made])


@given(tracks, st.data(), st.integers(1, 40))
def test_intervals_meet_alike(first: list[Interval], data: st.DataObject, n: int) -> None:
    second = data.draw(st.lists(spans, min_size=len(first), max_size=len(first)))
    a, b = Track.of(first), Track.of(second)
    assert same(a.hull(b), [x.hull(y) for x, y in zip(first, second, strict=True)])
    assert [*a.clip(n)] == [span.clip(n) for span in first]
    assert same(a.meet(Interval(3, n)), [span.meet(Interval(3, n)) for span in first])
    assert a.sizes.tolist() == [span.size for span in first] and a.total == sum(span.size for span in first)
    assert a == first and a != [*first, EMPTY] and a[0] == first[0] and [*a[1:]] == first[1:]


@given(windows, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_as_much_is_made_as_can_be(window: Window, there: list[int]) -> None:
    """Of what is there, and no output more; behind the end no less is made of more."""
    size, count = 40, 50
    found = made_from(window, np.array(sorted(there)), size, count)
    for ends, made in zip(sorted(there), found.tolist(), strict=True):
        able = [n for n in range(count + 1) if window.reads(0, n).clip(size).hi <= ends]
        assert min(made, count) <= able[-1]
        assert ends >= size or min(made, count) == able[-1]
    assert np.all(np.diff(found) >= 0)
