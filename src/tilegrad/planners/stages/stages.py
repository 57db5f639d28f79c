"""What a recompute plan costs, stage by stage.

A solution is, for every stage, the set of values kept until the next one. Evaluating a stage is a walk over the forward
nodes it must run again, remembered by what comes in and what goes out. A value that a stage does not touch only adds
its bytes there, so that a trial move walks a few stages, however many it spans. Sets of values are bits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from ...progress import tick
from .problem import StageProblem

WALK = 10  # nodes that a walk costs before the first, and a trial before the first walk


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage costs, given what is kept before and after it."""

    runs: tuple[int, ...]
    seconds: float
    peak: int
    at_peak: int  # set of values alive at the peak
    touched: int  # set of values that it reads, makes, or does not hand on


class Stages:
    """Evaluates stages; sets of values are bits of an integer."""

    def __init__(self, problem: StageProblem):
        self.problem = problem
        self.makes = [_bits(made) for made in problem.makes]
        self.made_bytes = [sum(problem.bytes[v] for v in made) for made in problem.makes]
        self.reads = [_bits(read) for read in problem.reads]
        self.needs = [_bits(needed) for needed in problem.needs]
        self.handed = _bits(problem.kept)
        self.maker = problem.maker
        self.fused = problem.fused
        self.sizes = np.array(problem.bytes, dtype=np.int64)
        self._width = len(problem.values) // 8 + 1
        self._known: dict[tuple[int, int, int], Stage] = {}
        self.work = 0  # nodes walked over so far, and a little for every walk and trial: what searches have cost
        self._add_forward()

    def _add_forward(self) -> None:
        """The first stage runs everything: what is alive at each node if nothing is kept, and from where on a value
        adds to that if it is."""
        problem, n = self.problem, len(self.problem.forward)
        last = [readers[-1] if readers else maker for maker, readers in zip(self.maker, problem.readers, strict=True)]
        self.until = np.array(last, dtype=np.int64) + 1
        changes = np.zeros(n + 1, dtype=np.int64)
        for v, size in enumerate(problem.bytes):
            changes[self.maker[v]] += size
            changes[last[v] + 1] -= size
        self.live = np.cumsum(changes)[:n]
        self.made = [0, *accumulate(self.makes, int.__or__)]
        self.read_later = list(accumulate(reversed(self.reads[1:]), int.__or__, initial=0))[::-1]  # behind each node

    @cached_property
    def later(self) -> list[int]:
        """Stage -> the values that some later backward node reads."""
        return list(accumulate(self.needs[:0:-1], int.__or__, initial=0))[::-1]

    def evaluate(self, stage: int, kept: int, keep: int) -> Stage:
        """`kept`: values there when the stage begins; `keep`: values there when it ends."""
        key = (stage, kept, keep)
        if key not in self._known:
            self._known[key] = self._walk(stage, kept, keep) if stage else self._forward(keep)
        return self._known[key]

    def total(self, mask: int) -> int:
        return int(self._array(mask) @ self.sizes)

    def _array(self, mask: int) -> np.ndarray:
        packed = np.frombuffer(mask.to_bytes(self._width, "little"), dtype=np.uint8)
        return np.unpackbits(packed, count=len(self.sizes), bitorder="little")

    def reruns(self, wanted: int, kept: int) -> list[int]:
        """Forward nodes to run so that `wanted` is there, given what is kept."""
        runs = []
        missing = wanted & ~kept
        while missing:
            node = self.maker[missing.bit_length() - 1]
            runs.append(node)
            missing = (missing | (self.reads[node] & ~kept)) & ~self.makes[node]
        return runs[::-1]

    def _forward(self, keep: int) -> Stage:
        problem, wanted = self.problem, self.needs[0] | keep | self.handed
        n = len(problem.forward)
        longer = np.bincount(self.until, self._array(wanted) * self.sizes, n + 1)  # exact: far below 2**53 bytes
        alive = np.cumsum(longer).astype(np.int64)
        during = self.live + alive[:n] + problem.before[0]
        at, end = int(during.argmax()) if n else 0, int(alive[n]) + problem.during[0]
        if n and during[at] >= end:
            peak, at_peak = int(during[at]), self.made[at + 1] & (wanted | self.read_later[at] | self.reads[at])
            at_peak |= self.makes[at]
        else:
            peak, at_peak = end, wanted
        return Stage(tuple(range(n)), 0.0, peak, at_peak, 0)

    def _walk(self, stage: int, kept: int, keep: int) -> Stage:
        problem = self.problem
        sizes = problem.bytes
        runs = self.reruns(self.needs[stage] | keep, kept)
        self.work += WALK + len(runs)
        after = [0] * (len(runs) + 1)  # what is read after each run
        after[-1] = self.needs[stage] | keep
        touched = self.needs[stage] | (kept ^ keep)
        for at in reversed(range(len(runs))):
            after[at] = (after[at + 1] & ~self.makes[runs[at]]) | self.reads[runs[at]] | self.handed
            touched |= self.makes[runs[at]] | self.reads[runs[at]]
        alive = kept & after[0]
        now = self.total(alive)
        peak, at_peak = problem.before[stage] + now, alive
        for at, node in enumerate(runs):
            made = self.makes[node]
            now += self.made_bytes[node]
            if problem.before[stage] + now > peak:
                peak, at_peak = problem.before[stage] + now, alive | made
            if made & alive:  # made again while it was there
                now -= _sum(sizes, made & alive)
            gone = (alive | made) & ~after[at + 1]
            if gone:
                now -= _sum(sizes, gone)
                alive = (alive | made) & ~gone
            else:
                alive |= made
        if problem.during[stage] + now > peak:
            peak, at_peak = problem.during[stage] + now, alive
        return Stage(tuple(runs), sum(problem.seconds[i] for i in runs), peak, at_peak, touched)


def _bits(items: Iterable[int]) -> int:
    found = 0
    for item in items:
        found |= 1 << item
    return found


def _sum(sizes: tuple[int, ...], members: int) -> int:
    total = 0
    while members:
        low = members & -members
        total += sizes[low.bit_length() - 1]
        members ^= low
    return total


def members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass
class Solution:
    """What is kept from each stage to the next, with each stage's cost."""

    stages: Stages
    keep: list[int]

    def __post_init__(self) -> None:
        tick()
        self.costs = [self.cost(s) for s in range(len(self.keep))]
        self.peaks = np.array([c.peak for c in self.costs], dtype=np.int64)

    @cached_property
    def touching(self) -> list[int]:
        """Value -> the stages that touch it, as bits."""
        found = [0] * len(self.stages.problem.values)
        for s, c in enumerate(self.costs):
            for v in members(c.touched):
                found[v] |= 1 << s
        return found

    def copy(self) -> Solution:
        found = copy(self)
        found.keep, found.costs = list(self.keep), list(self.costs)
        found.peaks, found.__dict__["touching"] = self.peaks.copy(), list(self.touching)
        return found

    def trimmed(self) -> Solution:
        """The same runs, with nothing kept that none of them needs."""
        return Solution(self.stages, _needed(self.stages, [c.runs for c in self.costs]))

    @property
    def again(self) -> list[tuple[int, ...]]:
        """The forward nodes that run again before each backward node."""
        return [() if s == 0 else c.runs for s, c in enumerate(self.costs)]

    def cost(self, stage: int) -> Stage:
        return self.stages.evaluate(stage, self.keep[stage - 1] if stage else 0, self.keep[stage])

    @property
    def seconds(self) -> float:
        return sum(c.seconds for c in self.costs)

    @property
    def peak(self) -> int:
        return int(self.peaks.max())

    def trial(self, value: int, first: int, last: int, budget: int, *, drop: bool) -> tuple[float, int, int]:
        """What dropping a value that is kept after stages first..last (or keeping one that is not) changes: seconds,
        overflow; the peak there."""
        self.stages.work += WALK
        on, off = (0, 1 << value) if drop else (1 << value, 0)
        end = min(last + 2, len(self.keep))
        size = int(self.stages.sizes[value])
        peaks = self.peaks[first:end] + (-size if drop else size)
        seconds = 0.0
        for s in self._walked(value, first, last):
            before = self.keep[s - 1] if s else 0
            if s > first:
                before = (before | on) & ~off
            after = (self.keep[s] | on) & ~off if s <= last else self.keep[s]
            new = self.stages.evaluate(s, before, after)
            seconds += new.seconds - self.costs[s].seconds
            peaks[s - first] = new.peak
        old = np.maximum(self.peaks[first:end] - budget, 0).sum()
        return seconds, int(np.maximum(peaks - budget, 0).sum() - old), int(peaks.max())

    def _walked(self, value: int, first: int, last: int) -> list[int]:
        """Of the stages that a move over first..last concerns, those where it does more than add bytes."""
        inside = self.touching[value] >> (first + 1) & ((1 << (last - first)) - 1)
        found = [first, *(first + 1 + s for s in members(inside))]
        return found if last + 1 == len(self.keep) else [*found, last + 1]

    def apply(self, value: int, first: int, last: int, *, drop: bool) -> None:
        tick()
        bit = 1 << value
        walked = set(self._walked(value, first, last))
        for s in range(first, last + 1):
            self.keep[s] = self.keep[s] & ~bit if drop else self.keep[s] | bit
        size = -self.stages.problem.bytes[value] if drop else self.stages.problem.bytes[value]
        for s in range(first, min(last + 2, len(self.keep))):
            old = self.costs[s]
            if s not in walked:
                alive = old.at_peak & ~bit if drop else old.at_peak | bit
                new = Stage(old.runs, old.seconds, old.peak + size, alive, old.touched)
            else:
                new = self.cost(s)
                for v in members(old.touched ^ new.touched):
                    self.touching[v] ^= 1 << s
            self.costs[s], self.peaks[s] = new, new.peak

    def span(self, value: int, stage: int) -> tuple[int, int] | None:
        """The stages around `stage` after which a value is kept with nothing in between that needs it."""
        bit, needs = 1 << value, self.stages.needs
        first = last = stage
        if not self.keep[stage] & bit:
            if stage == 0 or not self.keep[stage - 1] & bit or needs[stage] & bit:
                return None
            first = last = stage - 1
        touched = self.touching[value]  # between two stages that touch it nothing changes
        while (at := (touched & ((2 << first) - 1)).bit_length() - 1) > 0:
            if not self.keep[at - 1] & bit or needs[at] & bit:
                return at, self._last(value, last)
            first = at - 1
        return 0, self._last(value, last)

    def _last(self, value: int, last: int) -> int:
        bit, needs = 1 << value, self.stages.needs
        for at in members(self.touching[value] >> (last + 1) << (last + 1)):
            if not self.keep[at] & bit or needs[at] & bit:
                return at - 1
        return len(self.keep) - 1


def keep_all(stages: Stages) -> Solution:
    """Everything that some later backward node reads is kept until then."""
    return keep_once(stages, {})


def keep_nothing(stages: Stages) -> Solution:
    """Everything is computed again from the inputs, every time."""
    return Solution(stages, [stages.handed] * len(stages.needs))


def keep_once(stages: Stages, allowed: Mapping[int, int]) -> Solution:
    """What was made is kept for as long as it is of use. `allowed`: the values that may be kept after a stage."""
    there, runs = -1, [list[int]()]
    for s in range(1, len(stages.needs)):
        there &= allowed.get(s - 1, -1)
        runs.append(stages.reruns(stages.needs[s], there))
        for node in runs[s]:
            there |= stages.makes[node]
    return Solution(stages, _needed(stages, runs))


def _needed(stages: Stages, runs: Sequence[Sequence[int]]) -> list[int]:
    """What must be kept after each stage, given what runs again in each."""
    found, wanted = [stages.handed], 0
    for s in reversed(range(1, len(runs))):
        wanted |= stages.needs[s]
        for node in reversed(runs[s]):
            wanted = wanted & ~stages.makes[node] | stages.reads[node]
        found.append(wanted | stages.handed)
    return found[::-1]
