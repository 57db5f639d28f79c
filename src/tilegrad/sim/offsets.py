"""Static memory offsets: one address for every tensor, as an ideal allocator would choose it that knows the whole step.
Analysis: nothing runs at these addresses.

A tensor lives from step `start` up to, not including, step `stop`, and fills its bytes at one offset all that time. Two
tensors that live at the same step must not overlap in address. The smallest possible range cannot be below the largest
sum of bytes alive at one step; a layout that reaches this bound is exact. How:

- Greedy: tensors in several orders, each at the lowest offset where it fits.
- Peel: a tensor that fits under the range wherever its neighbours lie is set aside and placed at the end.
- Search for the rest, under a given range: the address space is filled from the bottom. Steps are merged to *sections*
  (maximal sets of tensors that live together); every section has a floor, below which all is decided, and a slack, the
  bytes it may still waste. In a *valley*, a run of equal floors between higher ones, either a tensor that lives there
  alone covers the floor of a section, or this floor rises at the cost of slack. Sections that share no undecided tensor
  are searched apart, failed states are remembered, and random restarts leave bad beginnings.
- Range: first the bound itself; when that takes too long, between the bound and the best so far, by halves.

Rules of a layout, checked by `check_layout`:

    Rule A1  every tensor has an offset and lies in `[0, range_bytes)`
    Rule A2  tensors that live at the same step do not overlap in address
Limits: optimal only where the bound is reached or the search ends; greedy alone where 2,000 cannot be peeled.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias

import numpy as np

from ..errors import InternalError

_MOST_SEARCHED = 2000  # a node of the search costs time in proportion to the undecided tensors
_PEEL_ROUNDS = 64  # each costs a sort; later rounds find little
_Work = SimpleNamespace  # `left`: how many tensors may still be looked at
_FAR = 1 << 62  # above every address
EFFORT = 5_000_000  # tensors that a search looks at: some seconds
_FIT = 50  # what placing one tensor counts


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`bytes` of memory under one address during the steps `[start, stop)`. A recomputed tensor has several."""

    name: str
    bytes: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets parallel to the lifetimes they were made for. Bytes count as rounded up to the alignment."""

    offsets: tuple[int, ...]
    range_bytes: int
    live_bytes: int  # the largest sum alive at one step: no layout has a smaller range
    exact: bool  # no layout has a smaller range than this one
    method: str  # "greedy" or "search"

    @property
    def excess(self) -> float:
        """The share of the range that live tensors never fill, against `live_bytes`."""
        return self.range_bytes / self.live_bytes - 1 if self.live_bytes else 0.0


def assign_offsets(lifetimes: Sequence[Lifetime], *, effort: int = EFFORT, align: int = 1) -> Layout:
    """Offsets, multiples of `align`, with the smallest range that a search of this effort finds."""
    work = _Work(left=effort)
    for life in lifetimes:
        if life.bytes < 0 or life.stop < life.start:
            raise InternalError(f"lifetime of {life.name!r}: {life.bytes} bytes in steps [{life.start}, {life.stop})")
    real = [i for i, life in enumerate(lifetimes) if life.bytes and life.start < life.stop]
    rounded = [-(-lifetimes[i].bytes // align) * align for i in real]
    unit = math.gcd(*rounded) or 1  # offsets are sums of sizes: nothing between multiples need be looked at
    blocks = [replace(lifetimes[i], bytes=size // unit) for i, size in zip(real, rounded, strict=True)]
    bound = _live_bytes(blocks)
    greedy = _greedy(blocks, bound, work)
    found, proved = _narrow(blocks, greedy, bound, work)
    placed, top = dict(zip(real, found, strict=True)), _top(blocks, found)
    offsets = tuple(placed.get(i, 0) * unit for i in range(len(lifetimes)))
    return Layout(offsets, top * unit, bound * unit, top == proved, "greedy" if found is greedy else "search")


def check_layout(lifetimes: Sequence[Lifetime], layout: Layout) -> None:
    """Raise InternalError naming the tensors that break rules A1 and A2."""
    offsets = layout.offsets
    if len(offsets) != len(lifetimes):
        raise InternalError(f"rule A1: {len(offsets)} offsets for {len(lifetimes)} lifetimes")
    spans = [f"{life.name!r} at [{at}, {at + life.bytes})" for at, life in zip(offsets, lifetimes, strict=True)]
    events: list[tuple[int, bool, int]] = []
    for i, life in enumerate(lifetimes):
        if not life.bytes or life.start == life.stop:
            continue  # takes no room
        if not 0 <= offsets[i] <= layout.range_bytes - life.bytes:
            raise InternalError(f"rule A1: {spans[i]} is outside [0, {layout.range_bytes})")
        events += [(life.start, True, i), (life.stop, False, i)]
    alive: list[tuple[int, int]] = []  # offset, index: without overlap so far, so only neighbours can clash
    for step, born, i in sorted(events):
        at = bisect_left(alive, (offsets[i], i))
        if not born:
            del alive[at]
            continue
        for offset, j in alive[max(at - 1, 0) : at + 1]:
            if offset < offsets[i] + lifetimes[i].bytes and offsets[i] < offset + lifetimes[j].bytes:
                raise InternalError(f"rule A2: {spans[j]} and {spans[i]} overlap", where=f"step {step}")
        alive.insert(at, (offsets[i], i))


def _live_bytes(blocks: Sequence[Lifetime]) -> int:
    changes = sorted([(b.start, b.bytes) for b in blocks] + [(b.stop, -b.bytes) for b in blocks])  # deaths first
    return max(accumulate(change for _, change in changes), default=0)


def _top(blocks: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    return max((offset + block.bytes for offset, block in zip(offsets, blocks, strict=True)), default=0)


class _Arena:
    """Blocks placed so far, kept in the order of their offsets, so that gaps are found in one pass."""

    def __init__(self, room: int):
        self.count = 0
        self.rows = np.zeros((4, room), np.int64)  # offset, end, start, stop

    def fit(self, block: Lifetime) -> int:
        """Place a block at the lowest offset where it fits."""
        rows = self.rows[:, : self.count]
        beside = rows[:, (rows[2] < block.stop) & (rows[3] > block.start)]
        covered = np.concatenate(((0,), np.maximum.accumulate(beside[1])))  # all below is taken, or too small a gap
        gaps = np.append(beside[0], _FAR) - covered
        return self.add(block, int(covered[(gaps >= block.bytes).argmax()]))

    def add(self, block: Lifetime, offset: int) -> int:
        at, n = int(self.rows[0, : self.count].searchsorted(offset)), self.count
        self.rows[:, at + 1 : n + 1] = self.rows[:, at:n]
        self.rows[:, at] = offset, offset + block.bytes, block.start, block.stop
        self.count += 1
        return offset


def _greedy(blocks: Sequence[Lifetime], bound: int, work: _Work) -> list[int]:
    """The best of several orders. The first is always finished, the others while effort is left."""
    ranks = [(-b.bytes, -b.bytes * (b.stop - b.start), b.start - b.stop, b.start) for b in blocks]
    best: list[int] = []
    for by in range(4):
        arena, offsets = _Arena(len(blocks)), [0] * len(blocks)
        for i in sorted(range(len(blocks)), key=lambda i: (ranks[i][by], ranks[i])):
            offsets[i] = arena.fit(blocks[i])
        best = min(best or offsets, offsets, key=lambda found: _top(blocks, found))
        work.left -= _FIT * len(blocks)
        if _top(blocks, best) == bound or work.left < 0:
            break
    return best


def _narrow(blocks: Sequence[Lifetime], best: list[int], bound: int, work: _Work) -> tuple[list[int], int]:
    """Search for smaller ranges. Returns the best offsets and the range that no layout can go below."""
    whole, share = work.left, 0.4
    proved = given_up = aim = bound
    while proved < (high := _top(blocks, best)) and work.left > 0:
        core, peeled = _peel(blocks, aim)
        if len(core) > _MOST_SEARCHED:
            break
        found = _Search([blocks[i] for i in core], aim).solve(work, max(0.0, work.left - share * whole))
        if found is None:
            given_up = aim + 1
        elif len(found) < len(core):
            proved = aim + 1
        else:
            best = _complete(blocks, dict(zip(core, found, strict=True)), peeled)
            high = _top(blocks, best)
        low = max(proved, given_up)
        aim, share = (low + high) // 2, 0.1
        if given_up > proved and (high - low) * 1000 < high:
            aim, share = proved, 1.0  # no step is worth taking: all that is left to the smallest range
    return best, proved


def _complete(blocks: Sequence[Lifetime], core: dict[int, int], peeled: list[int]) -> list[int]:
    """The offsets found for the core, and then the peeled blocks where they fit."""
    arena = _Arena(len(blocks))
    offsets = {i: arena.add(blocks[i], at) for i, at in core.items()} | {i: arena.fit(blocks[i]) for i in peeled[::-1]}
    return [offsets[i] for i in range(len(blocks))]


def _peel(blocks: Sequence[Lifetime], capacity: int) -> tuple[list[int], list[int]]:
    """Those to search, and those that fit wherever the ones before them lie, to be placed last to first."""
    size, start, stop = np.array([(b.bytes, b.start, b.stop) for b in blocks], np.int64).T
    left, peeled = np.arange(len(blocks)), list[int]()
    for _ in range(_PEEL_ROUNDS):
        z, a, b = size[left], start[left], stop[left]
        births, deaths = np.argsort(a), np.argsort(b)
        born, dead = a[births].searchsorted(b, "left"), b[deaths].searchsorted(a, "right")
        sums = [np.concatenate(((0,), z[order].cumsum())) for order in (births, deaths)]
        beside = sums[0][born] - sums[1][dead] - z
        # k neighbours leave at most k + 1 gaps (born - dead counts the block too): are all smaller than the block?
        free = beside + (born - dead) * (z - 1) < capacity
        if not free.any():
            break
        peeled += left[free].tolist()
        left = left[~free]
    return left.tolist(), peeled


def _find_sections(blocks: Sequence[Lifetime]) -> tuple[list[tuple[int, int]], int]:
    """For each block the sections `[lo, hi)` it lives in, and their number."""
    starts, stops = {b.start for b in blocks}, {b.stop for b in blocks}
    number: dict[int, int] = {}  # step -> sections that begin at or before it
    last, after_death = 0, True
    for step in sorted(starts | stops):
        after_death |= step in stops
        if step in starts and after_death:  # only a birth after a death makes a new maximal set
            last, after_death = last + 1, False
        number[step] = last
    # Where a section begins at the very step of a death, the dead is not in it.
    return [(number[b.start] - 1, number[b.stop] - (b.stop in starts)) for b in blocks], last


class _Part(NamedTuple):
    """Neighbouring sections, from `lo` on, that share no undecided block with others, and the frame that made them."""

    lo: int
    floor: list[int]
    slack: list[int]
    undecided: list[int]  # in the order of their first sections
    parent: int


class _Valley(NamedTuple):
    """A run of equal floors, the lower of the floors around it, and the undecided blocks that live in it alone."""

    lo: int
    hi: int
    level: int
    wall: int
    inside: list[int]


_Todo: TypeAlias = "tuple[_Part, _Todo] | None"
_Choice: TypeAlias = tuple[int, int, int, int]  # block, level, sections of the part it lies on; block -1: floors rise


class _Frame(NamedTuple):
    """A part being decided, and what comes after it."""

    part: _Part
    state: int
    choices: Iterator[_Choice]
    rest: _Todo


class _Search:
    """Lay blocks within a capacity: depth first, restarted in other orders. Complete, given enough effort."""

    def __init__(self, blocks: Sequence[Lifetime], capacity: int):
        self.sections, number = _find_sections(blocks)
        self.sizes = [block.bytes for block in blocks]
        self.offsets = [0] * len(blocks)
        slack = [capacity] * number
        for (lo, hi), size in zip(self.sections, self.sizes, strict=True):
            slack[lo:hi] = [spare - size for spare in slack[lo:hi]]
        self.whole = _Part(0, [0] * number, slack, sorted(range(len(blocks)), key=self.sections.__getitem__), -1)
        self.failed: set[int] = set()  # hashes of states; at 64 bits a wrong match is a matter of theory
        self.blame = [1] * number  # of sections: how often a contradiction was found there
        self.heed_blame, self.rank = False, list[float]()  # rank of blocks: which to try first

    def solve(self, work: _Work, spare: float = 0.0) -> list[int] | None:
        """Offsets; an empty list: there are none; None: no more than `spare` effort is left."""
        chance, found = random.Random(0), None
        for turn in count():  # large blocks first, then large areas, in turn; after the first time disturbed
            areas = [z * (b - a if turn % 2 else 1) for z, (a, b) in zip(self.sizes, self.sections, strict=True)]
            self.rank = [-area * (1 + chance.random() * (turn > 0)) for area in areas]
            self.heed_blame = turn % 4 > 1  # both ways: each is stuck where the other is not
            found = self._attempt(int(10 * (len(areas) + 1) * 1.05**turn), work, spare)
            if found is not None or work.left <= spare:
                break
        return found

    def _attempt(self, limit: int, work: _Work, spare: float) -> list[int] | None:
        """Search at most `limit` states; returns as `solve`, and None also when the limit is reached."""
        frames: list[_Frame] = []
        todo = self._split(self.whole, None)
        for _ in range(limit):
            if todo is None:
                return self.offsets
            part, rest = todo
            work.left -= len(part.undecided)
            if work.left <= spare:
                return None
            state = hash((part.lo, tuple(part.floor), tuple(part.undecided)))
            choices = [] if state in self.failed else self._propose(part)
            frames.append(_Frame(part, state, iter(choices), rest))
            while (choice := next(frames[-1].choices, None)) is None:
                self.failed.add(frames[-1].state)
                # Frames between it and its parent belong to parts decided apart from it: no use in changing those.
                del frames[frames[-1].part.parent + 1 :]
                if not frames:
                    return []
            todo = self._decide(choice, frames[-1].part._replace(parent=len(frames) - 1), frames[-1].rest)
        return None

    def _decide(self, choice: _Choice, part: _Part, rest: _Todo) -> _Todo:
        """What is left of a part, on top of the rest."""
        block, level, lo, hi = choice
        floor, slack = part.floor.copy(), part.slack.copy()
        if block < 0:
            slack[lo:hi] = [spare - (level - floor[lo]) for spare in slack[lo:hi]]
            floor[lo:hi] = [level] * (hi - lo)
            return part._replace(floor=floor, slack=slack), rest
        self.offsets[block] = level
        floor[lo:hi] = [level + self.sizes[block]] * (hi - lo)
        return self._split(part._replace(floor=floor, undecided=[i for i in part.undecided if i != block]), rest)

    def _split(self, whole: _Part, todo: _Todo) -> _Todo:
        """Cut sections where no undecided block crosses, and leave out those that are done."""
        groups, end = list[list[int]](), -1
        for i in whole.undecided:
            lo, hi = self.sections[i]
            if lo >= end:
                groups.append([])
            groups[-1].append(i)
            end = max(end, hi)
        for group in groups:
            lo, hi = self.sections[group[0]][0], max(self.sections[i][1] for i in group)
            inner = slice(lo - whole.lo, hi - whole.lo)
            todo = _Part(lo, whole.floor[inner], whole.slack[inner], group, whole.parent), todo
        return todo

    def _propose(self, part: _Part) -> list[_Choice]:
        """All that may happen at one section: with few possibilities, much blame, little slack."""
        width, home = len(part.floor), _find_valleys(part.floor)
        if home[0] is not None and home[0].hi == width:
            # On even ground a block that spans the part may lie at the bottom: what is below it can go on top of it.
            spanning = [i for i in part.undecided if self.sections[i] == (part.lo, part.lo + width)]
            if spanning:
                return [(spanning[0], home[0].level, 0, width)]
        covers, fills, crosses = ([0] * (width + 1) for _ in range(3))
        for i in part.undecided:
            lo, hi = self.sections[i][0] - part.lo, self.sections[i][1] - part.lo
            valley = home[lo]
            if valley is not None and hi <= valley.hi:
                valley.inside.append(i)
                covers[lo] += 1
                covers[hi] -= 1
                fills[lo] += self.sizes[i]
                fills[hi] -= self.sizes[i]
            else:
                crosses[lo] += 1
                crosses[hi] -= 1
        sums = zip(home, accumulate(covers), accumulate(fills), accumulate(crosses), part.slack, strict=False)
        weights: list[tuple[float, int, int, _Valley]] = []
        for at, (valley, covering, fill, crossing, slack) in enumerate(sums):
            if valley is None:
                continue
            # What crosses a wall lies no deeper than the wall: the valley must be filled up to there, or wasted.
            if crossing and fill + slack < valley.wall - valley.level:
                self.blame[part.lo + at] += 1
                return []
            blame = self.blame[part.lo + at] if self.heed_blame else 1
            weights.append(((covering + (slack > 0)) / blame, slack, at, valley))
        _, _, section, chosen = min(weights)
        return self._list_choices(part, chosen, section)

    def _list_choices(self, part: _Part, valley: _Valley, section: int) -> list[_Choice]:
        """Who may lie on the floor of a section, and how far the floor rises if nobody does."""
        covering, rise = dict[tuple[int, int, int], int](), valley.wall
        for i in valley.inside:
            lo, hi = self.sections[i][0] - part.lo, self.sections[i][1] - part.lo
            if lo <= section < hi:
                covering.setdefault((lo, hi, self.sizes[i]), i)  # equal blocks: one stands for all
            else:
                rise = min(rise, valley.level + self.sizes[i])
        order = sorted(covering.items(), key=lambda item: self.rank[item[1]])
        choices = [(i, valley.level, lo, hi) for (lo, hi, _), i in order]
        if rise - valley.level <= part.slack[section]:
            lo, hi = (section, section + 1) if valley.inside else (valley.lo, valley.hi)
            choices.append((-1, rise, lo, hi))
        self.blame[part.lo + section] += not choices
        return choices


def _find_valleys(floor: Sequence[int]) -> list[_Valley | None]:
    """For each section the valley it is in, if any."""
    home, begin, before = list[_Valley | None](), 0, _FAR
    while begin < len(floor):
        level, end = floor[begin], begin + 1
        while end < len(floor) and floor[end] == level:
            end += 1
        after = floor[end] if end < len(floor) else _FAR
        valley = _Valley(begin, end, level, min(before, after), []) if before > level < after else None
        home += [valley] * (end - begin)
        begin, before = end, level
    return home
