"""Offsets: never an overlap, the optimum where it can be counted out, the bound where networks allow it, on time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegrad.errors import InternalError
from tilegrad.sim.offsets import Layout, Lifetime, _Search, _Work, assign_offsets, check_layout

spans = st.tuples(st.integers(0, 7), st.integers(0, 6), st.integers(1, 4))


def lives(found: Sequence[tuple[int, int, int]]) -> list[Lifetime]:
    return [Lifetime(f"t{i}", size, start, start + length) for i, (size, start, length) in enumerate(found)]


def optimum(lifetimes: Sequence[Lifetime]) -> int:
    """By trying all orders. In the order of an optimal layout's offsets, stacking goes no higher than that layout."""
    return min(stack(order) for order in permutations(lifetimes))


def stack(order: Sequence[Lifetime]) -> int:
    """The range when each lies on top of all that went before it and lives with it."""
    tops: list[int] = []
    for i, life in enumerate(order):
        below = [tops[j] for j in range(i) if order[j].start < life.stop and life.start < order[j].stop]
        tops.append(max(below, default=0) + life.bytes)
    return max(tops, default=0)


def optimum_by_places(lifetimes: Sequence[Lifetime]) -> int:
    """By trying all offsets: for more tensors than orders can be tried of."""
    capacity = live_bytes(lifetimes)
    while not fits([], list(lifetimes), capacity):
        capacity += 1
    return capacity


def fits(placed: list[tuple[int, Lifetime]], left: list[Lifetime], capacity: int) -> bool:
    if not left:
        return True
    life, *later = left
    beside = [(to, to + b.bytes) for to, b in placed if b.start < life.stop and life.start < b.stop]
    return any(
        fits([*placed, (at, life)], later, capacity)
        for at in range(capacity - life.bytes + 1)
        if all(at + life.bytes <= lo or hi <= at for lo, hi in beside)
    )


def fill_strip(seed: int) -> list[Lifetime]:
    """Few tensors that leave little of a strip of addresses free: where small optima above the bound are found."""
    chance = random.Random(seed)
    steps, found = chance.randrange(5, 9), list[tuple[int, int, int]]()
    free = [chance.randrange(3, 7)] * steps
    for _ in range(60):
        start = chance.randrange(steps)
        stop = min(steps, start + chance.randrange(1, 5))
        room = min(free[start:stop])
        if room and len(found) < 10:
            size = chance.randrange(1, min(room, 3) + 1)
            free[start:stop] = [left - size for left in free[start:stop]]
            found.append((size, start, stop - start))
    return lives(found)


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    return max((sum(o.bytes for o in lifetimes if o.start <= l.start < o.stop) for l in lifetimes), default=0)  # noqa: E741


def overlapping(lifetimes: Sequence[Lifetime], layout: Layout) -> bool:
    """Rule A2, pair by pair: the slow way, to check the check."""
    places = [(at, a) for at, a in zip(layout.offsets, lifetimes, strict=True) if a.bytes and a.start < a.stop]
    return any(
        a.start < b.stop and b.start < a.stop and at < to + b.bytes and to < at + a.bytes
        for i, (at, a) in enumerate(places)
        for to, b in places[:i]
    )


def cut_rectangle(pieces: int, seed: int) -> list[Lifetime]:
    """A rectangle of addresses and steps, cut up: a layout without any gap exists."""
    chance, done = random.Random(seed), [(1 << 20, 0, 200)]
    while len(done) < pieces:
        size, start, stop = done.pop(max(chance.sample(range(len(done)), min(3, len(done)))))
        if chance.random() < 0.5 and size > 64:
            part = chance.randrange(16, size - 16)
            done += [(part, start, stop), (size - part, start, stop)]
        elif stop - start > 2:
            middle = chance.randrange(start + 1, stop)
            done += [(size, start, middle), (size, middle, stop)]
        else:
            done.insert(0, (size, start, stop))
    chance.shuffle(done)
    return [Lifetime(f"piece{i}", *piece) for i, piece in enumerate(done)]


def unet_step(depth: int, drop: float, seed: int) -> list[Lifetime]:
    """A training step of a U-Net: what is dropped after its last use comes back, by segments, before backward."""
    chance = random.Random(seed)
    levels = [*range(depth), *range(depth, -1, -1)]
    sizes = [(1 << (12 - level)) * chance.randrange(28, 36) for level in levels for _ in range(3)]
    reads = [[i - 1] if i else [] for i in range(len(sizes))]
    for level in range(depth):
        reads[3 * (len(levels) - 1 - level)].append(3 * level + 2)  # the skip
    dropped = {i for i in range(len(sizes)) if chance.random() < drop}
    steps = [("run", i) for i in range(len(sizes))]
    for first in range(len(sizes) - 6, -6, -6):
        segment = range(max(first, 0), first + 6)
        steps += [("run", i) for i in segment if i in dropped]
        steps += [("back", i) for i in reversed(segment)]
    return walk(steps, sizes, reads)


def walk(steps: Sequence[tuple[str, int]], sizes: Sequence[int], reads: Sequence[Sequence[int]]) -> list[Lifetime]:
    """Lifetimes of values and gradients: backward of `i` reads value `i`, its gradient, and makes those it read."""
    made: dict[tuple[str, int], list[int]] = {}
    found: list[Lifetime] = []

    def make(kind: str, i: int, at: int) -> None:
        if kind == "value" and (kind, i) in made:
            found.append(Lifetime(f"{kind}{i}", sizes[i], *made.pop((kind, i))))
        made.setdefault((kind, i), [at, at + 1])[1] = at + 1

    for at, (what, i) in enumerate(steps):
        for source in reads[i]:
            if what == "run" and ("value", source) in made:
                made["value", source][1] = max(made["value", source][1], at + 1)
            if what == "back":
                make("gradient", source, at)
        make("value" if what == "run" else "gradient", i, at)
        if what == "back":
            made["value", i][1] = at + 1
    return found + [Lifetime(f"{kind}{i}", sizes[i], *span) for (kind, i), span in made.items()]


def stacked(count: int, seed: int, transient: bool) -> list[Lifetime]:
    """Forward and backward of a chain: what is made first is freed last; gradients live for two steps."""
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 1000) for _ in range(count)]
    kept = [Lifetime(f"a{i}", size, i, 2 * count - i) for i, size in enumerate(sizes)]
    passing = [Lifetime(f"g{i}", size, 2 * count - i - 1, 2 * count - i + 1) for i, size in enumerate(sizes)]
    return kept + passing * transient


@settings(max_examples=300)
@given(st.lists(spans, max_size=6))
def test_tiny_ones_are_optimal(found: list[tuple[int, int, int]]) -> None:
    lifetimes = lives(found)
    layout = assign_offsets(lifetimes, effort=30_000_000)
    check_layout(lifetimes, layout)
    assert layout.exact and layout.range_bytes == optimum(lifetimes)


@pytest.mark.parametrize("seed", range(150))
def test_the_search_is_complete(seed: int) -> None:
    """Alone, as greedy and peeling settle most small cases before it: a layout from the optimum on, else none."""
    lifetimes = fill_strip(seed)
    least = optimum_by_places(lifetimes)
    for capacity in range(live_bytes(lifetimes), least + 3):
        found = _Search(lifetimes, capacity).solve(_Work(left=30_000_000))
        assert found is not None and bool(found) == (capacity >= least)
        if found:
            check_layout(lifetimes, Layout(tuple(found), capacity, least, exact=False, method="search"))


@pytest.mark.parametrize(
    "found",
    [
        [(3, 5, 1), (3, 3, 3), (3, 0, 2), (1, 1, 2), (2, 1, 4), (1, 2, 3), (3, 0, 1)],
        [(2, 0, 1), (1, 1, 2), (1, 1, 3), (2, 0, 2), (2, 3, 3), (2, 5, 1), (1, 2, 3), (1, 4, 1)],
    ],
)
def test_an_optimum_above_the_bound_is_proved(found: list[tuple[int, int, int]]) -> None:
    """Rare: no layout reaches the live bytes. The search has to say so, not the bound."""
    lifetimes = lives(found)
    layout = assign_offsets(lifetimes, effort=30_000_000)
    check_layout(lifetimes, layout)
    assert layout.exact and layout.range_bytes == optimum(lifetimes) == live_bytes(lifetimes) + 1
    assert layout.excess == pytest.approx(1 / live_bytes(lifetimes))


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 40), st.integers(0, 30)), max_size=60), st.integers(1, 64)
)
def test_every_layout_keeps_the_rules(found: list[tuple[int, int, int]], align: int) -> None:
    lifetimes = lives(found)
    layout = assign_offsets(lifetimes, effort=200_000, align=align)
    check_layout(lifetimes, layout)
    assert not overlapping(lifetimes, layout)
    assert all(offset % align == 0 for offset in layout.offsets)
    assert layout.range_bytes >= layout.live_bytes >= live_bytes(lifetimes)
    assert layout.excess >= 0


@settings(max_examples=200)
@given(st.lists(spans, min_size=2, max_size=6), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_the_check_finds_what_pairs_find(found: list[tuple[int, int, int]], offsets: list[int]) -> None:
    lifetimes = lives(found)
    layout = Layout(tuple(offsets[: len(lifetimes)]), 99, 1, exact=False, method="greedy")
    if overlapping(lifetimes, layout):
        with pytest.raises(InternalError, match="rule A2"):
            check_layout(lifetimes, layout)
    else:
        check_layout(lifetimes, layout)


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("count", [1, 2, 40, 250])
def test_stacks_are_exact(count: int, transient: bool) -> None:
    lifetimes = stacked(count, count, transient)
    layout = assign_offsets(lifetimes)
    check_layout(lifetimes, layout)
    assert layout.exact and layout.excess == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pieces", [30, 100])
def test_a_rectangle_is_put_together_again(pieces: int, seed: int) -> None:
    lifetimes = cut_rectangle(pieces, seed)
    layout = assign_offsets(lifetimes, effort=20_000_000)
    check_layout(lifetimes, layout)
    assert layout.range_bytes == layout.live_bytes == 1 << 20


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drop", [0.0, 0.3, 0.7, 1.0])
def test_unets_with_recompute_waste_nothing(drop: float, seed: int) -> None:
    lifetimes = unet_step(5, drop, seed)
    layout = assign_offsets(lifetimes, effort=20_000_000)
    check_layout(lifetimes, layout)
    assert layout.exact and layout.excess == 0


def test_unets_need_the_search() -> None:
    """Otherwise the tests above would say nothing about it."""
    methods = {assign_offsets(unet_step(5, drop, seed)).method for drop in (0.3, 0.7) for seed in range(4)}
    assert "search" in methods


def test_the_same_again() -> None:
    lifetimes = unet_step(5, 0.7, 1)
    assert assign_offsets(lifetimes) == assign_offsets(lifetimes)


def test_a_name_may_occur_twice() -> None:
    lifetimes = [Lifetime("x", 4, 0, 2), Lifetime("y", 4, 1, 5), Lifetime("x", 4, 4, 6)]
    layout = assign_offsets(lifetimes)
    check_layout(lifetimes, layout)
    assert layout.range_bytes == 8 and len(layout.offsets) == 3


def test_all_may_be_peeled() -> None:
    """Greedy is above the bound here, and at the bound nothing is left to search."""
    lifetimes = lives([(1, 5, 4), (1, 0, 4), (3, 0, 4), (2, 3, 3), (2, 5, 4), (1, 4, 2), (4, 6, 4)])
    layout = assign_offsets(lifetimes, effort=30_000_000)
    check_layout(lifetimes, layout)
    assert layout.method == "search" and layout.range_bytes == live_bytes(lifetimes)


def test_nothing_takes_no_room() -> None:
    assert assign_offsets([]) == Layout((), 0, 0, exact=True, method="greedy")
    assert assign_offsets([Lifetime("empty", 0, 0, 9), Lifetime("never", 8, 3, 3)]).range_bytes == 0
    assert assign_offsets([]).excess == 0


def test_bytes_are_rounded_up_to_the_alignment() -> None:
    layout = assign_offsets([Lifetime("x", 5, 0, 2), Lifetime("y", 8, 1, 3)], align=8)
    assert sorted(layout.offsets) == [0, 8]
    assert (layout.range_bytes, layout.live_bytes) == (16, 16)


@pytest.mark.parametrize("life", [Lifetime("x", -1, 0, 1), Lifetime("x", 1, 2, 1)])
def test_impossible_lifetimes_are_refused(life: Lifetime) -> None:
    with pytest.raises(InternalError, match="lifetime of 'x'"):
        assign_offsets([life])


def test_the_check_names_both_tensors() -> None:
    lifetimes = [Lifetime("conv1", 8, 0, 5), Lifetime("relu1", 8, 4, 6)]
    with pytest.raises(InternalError, match=r"rule A2: 'conv1' at \[0, 8\) and 'relu1' at \[4, 12\) overlap\n.*step 4"):
        check_layout(lifetimes, Layout((0, 4), 16, 16, exact=True, method="greedy"))


@pytest.mark.parametrize("offsets", [(0,), (0, -1), (0, 9)])
def test_the_check_wants_every_tensor_inside(offsets: tuple[int, ...]) -> None:
    lifetimes = [Lifetime("x", 8, 0, 1), Lifetime("y", 8, 1, 2)]
    with pytest.raises(InternalError, match="rule A1"):
        check_layout(lifetimes, Layout(offsets, 16, 16, exact=True, method="greedy"))


def test_effort_is_kept() -> None:
    """Random lifetimes of this density are out of reach."""
    chance = random.Random(0)
    starts = [chance.randrange(1500) for _ in range(1500)]
    lifetimes = [Lifetime(f"t{a}", chance.randrange(1, 1000), a, a + chance.randrange(1, 100)) for a in starts]
    begun = time.process_time()
    layout = assign_offsets(lifetimes, effort=500_000)
    assert time.process_time() - begun < 10  # of the processor's, mostly less than one
    check_layout(lifetimes, layout)
    assert 0 < layout.excess < 0.1 and not layout.exact


@pytest.mark.slow
def test_twenty_thousand() -> None:
    lifetimes = stacked(10_000, 0, transient=True)
    begun = time.monotonic()
    layout = assign_offsets(lifetimes, effort=5_000_000)
    assert time.monotonic() - begun < 15  # the first greedy pass is always finished
    check_layout(lifetimes, layout)
    assert layout.excess < 0.005
