"""Segments, arenas, reuse and conflicts of addresses."""

from __future__ import annotations

import random
from itertools import combinations

from tilegrad.analysis.addresses import find_addresses
from tilegrad.profile import Block

FAR = 2**30
REUSED = (
    Block("a", 10, 0, 2, address=0),
    Block("b", 10, 0, 2, address=10),
    Block("c", 10, 2, 4, address=5),  # over a and b, when both are gone
    Block("d", 4, 0, 4, address=FAR),
)


def test_addresses_that_are_used_again() -> None:
    found = find_addresses(REUSED)
    assert found is not None
    assert (found.blocks, found.total_bytes, found.union_bytes, found.starts) == (4, 34, 24, 4)
    assert [(s.start, s.end) for s in found.segments] == [(0, 20), (FAR, FAR + 4)]
    assert [(a.start, a.end, a.blocks) for a in found.arenas] == [(0, 20, 3), (FAR, FAR + 4, 1)]
    assert (found.overlapping_pairs, found.conflicts) == (2, ())
    assert found.reuse == 34 / 24
    assert found.to_json()["shared_bytes"] == 10


def test_near_segments_are_one_arena() -> None:
    found = find_addresses((Block("a", 4, 0, 1, address=0), Block("b", 4, 0, 1, address=1000)))
    assert found is not None
    assert (found.union_bytes, found.arena_bytes, len(found.arenas)) == (8, 1004, 1)


def test_blocks_that_overlap_while_both_are_alive() -> None:
    found = find_addresses((*REUSED, Block("e", 4, 1, 2, address=8)))
    assert found is not None
    assert sorted((a.name, b.name) for a, b in found.conflicts) == [("a", "e"), ("b", "e")]
    assert found.overlapping_pairs == 3  # c with a, b and e, at other times
    assert found.to_json()["conflict_count"] == 2


def test_a_block_inside_another_does_not_hide_it() -> None:
    """The neighbour below the last block is the one inside; the large one lies under both."""
    blocks = (Block("large", 100, 0, 9, address=0), Block("in", 5, 1, 9, address=10), Block("up", 5, 2, 9, address=50))
    found = find_addresses(blocks)
    assert found is not None
    assert [(a.name, b.name) for a, b in found.conflicts] == [("large", "in"), ("large", "up")]


def test_touching_is_no_conflict() -> None:
    blocks = (Block("a", 10, 0, 2, address=0), Block("b", 10, 1, 3, address=10), Block("c", 10, 2, 3, address=0))
    found = find_addresses(blocks)
    assert found is not None
    assert (found.conflicts, found.overlapping_pairs) == ((), 1)


def test_without_addresses_there_is_nothing_to_say() -> None:
    assert find_addresses((Block("a", 10, 0, 2),)) is None
    assert find_addresses((Block("a", 0, 0, 2, address=7), Block("b", 5, 2, 2, address=7))) is None


def test_the_same_as_looking_at_all_pairs() -> None:
    dice = random.Random(7)
    for _ in range(200):
        blocks = []
        for at in range(12):
            start = dice.randrange(6)
            blocks.append(
                Block(str(at), dice.randint(1, 8), start, start + dice.randint(1, 4), address=dice.randrange(20))
            )
        found = find_addresses(blocks)
        assert found is not None
        meet = [(a, b) for a, b in combinations(blocks, 2) if _cross(a.address, a.bytes, b.address, b.bytes)]
        both = {frozenset((a.name, b.name)) for a, b in meet if a.start < b.stop and b.start < a.stop}
        assert {frozenset((a.name, b.name)) for a, b in found.conflicts} == both
        assert found.overlapping_pairs == len(meet) - len(both)
        assert found.union_bytes == len(
            {byte for b in blocks for byte in range(b.address or 0, (b.address or 0) + b.bytes)}
        )


def _cross(a: int | None, a_bytes: int, b: int | None, b_bytes: int) -> bool:
    assert a is not None and b is not None
    return a < b + b_bytes and b < a + a_bytes
