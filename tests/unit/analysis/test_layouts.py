"""Blocks placed by simple offline planners and by ours, against the bound."""

from __future__ import annotations

import random

import pytest

from tilegrad.analysis import layouts
from tilegrad.analysis.addresses import find_addresses
from tilegrad.analysis.layouts import GREEDY, best_fit, find_layouts
from tilegrad.analysis.live import find_live
from tilegrad.profile import Block

X, Y, Z = Block("x", 2, 0, 3), Block("y", 4, 0, 1), Block("z", 6, 1, 2)  # alive at once: 6, 8, 2 bytes


@pytest.mark.parametrize(
    ("way", "need"),
    [
        ("by_size", 8),  # z at 0; y at 0, before it; x above z
        ("by_size_512", 1024),  # the same in units of 512
        ("by_time", 12),  # y at 0, x on top; z fits neither below x nor into what y left, but above
        ("by_area", 8),  # x at 0, z on top; y where z comes later
    ],
)
def test_best_fit(way: str, need: int) -> None:
    key, align = GREEDY[way]
    assert best_fit((X, Y, Z), key, align) == need


def test_the_smallest_gap_is_taken() -> None:
    """Gaps of 3 (from 2 to 5) and of 2 (from 7 to 9): two bytes go into the second, then three into the first."""
    walls = [Block("w", 2, 0, 9), Block("g", 3, 0, 1), Block("v", 2, 0, 9), Block("h", 2, 0, 1), Block("u", 2, 0, 9)]
    late = [Block("two", 2, 1, 9), Block("three", 3, 1, 9)]
    assert best_fit([*walls, *late], lambda block: block.start) == 11


def test_all_ways_and_the_bound() -> None:
    found = find_layouts((X, Y, Z), 8, None)
    assert found is not None
    assert (found.bound_bytes, found.ours, found.exact) == (8, 8, True)
    assert found.greedy == {"by_size": 8, "by_size_512": 1024, "by_time": 12, "by_area": 8}
    assert (found.recorded_union, found.excess(found.recorded_union)) == (None, None)
    assert found.excess(12) == 0.5


def test_what_was_recorded_counts_only_where_every_block_has_an_address() -> None:
    placed = [Block("x", 2, 0, 3, address=6), Block("y", 4, 0, 1, address=0), Block("z", 6, 1, 2, address=0)]
    found = find_layouts(placed, 8, find_addresses(placed))
    assert found is not None
    assert (found.recorded_union, found.recorded_span, found.to_json()["recorded_excess"]) == (8, 8, 0)
    more = [*placed, Block("unplaced", 1, 0, 1)]
    found = find_layouts(more, 8, find_addresses(more))
    assert found is not None and found.recorded_union is None


def test_of_too_many_blocks_only_the_recorded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MOST", 2)
    found = find_layouts((X, Y, Z), 8, None)
    assert found is not None
    assert (found.ours, found.greedy) == (None, {})


def test_no_blocks_no_layout() -> None:
    assert find_layouts((), 0, None) is None
    assert find_layouts((Block("empty", 0, 0, 3), Block("gone", 5, 1, 1)), 0, None) is None


def test_nobody_needs_less_than_is_alive() -> None:
    dice = random.Random(3)
    for _ in range(50):
        blocks = []
        for at in range(15):
            start = dice.randrange(8)
            blocks.append(Block(str(at), dice.randint(1, 9), start, start + dice.randint(1, 5)))
        bound = find_live(blocks, 13).peak_bytes
        found = find_layouts(blocks, bound, None, effort=50_000)
        assert found is not None and found.ours is not None
        assert min(found.ours, *found.greedy.values()) >= bound
