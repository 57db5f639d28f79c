"""What a recompute plan costs, stage by stage.

A solution is, for every stage, the set of values kept until the next one. Evaluating a stage is a walk over the forward
nodes it must run again, remembered by what comes in and what goes out, so that a trial move costs only the stages it
touches. Sets of values are bits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...progress import tick
from .problem import StageProblem


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage costs, given what is kept before and after it."""

    runs: tuple[int, ...]
    seconds: float
    peak: int
    at_peak: int  # set of values alive at the peak


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
        self._known: dict[tuple[int, int, int], Stage] = {}

    def evaluate(self, stage: int, kept: int, keep: int) -> Stage:
        """`kept`: values there when the stage begins; `keep`: values there when it ends."""
        key = (stage, kept, keep)
        if key not in self._known:
            self._known[key] = self._walk(stage, kept, keep)
        return self._known[key]

    def reruns(self, wanted: int, kept: int) -> list[int]:
        """Forward nodes to run so that `wanted` is there, given what is kept."""
        runs = set()
        missing = wanted & ~kept
        while missing:
            node = self.maker[missing.bit_length() - 1]
            runs.add(node)
            missing = (missing | (self.reads[node] & ~kept)) & ~self.makes[node]
        return sorted(runs)

    def _walk(self, stage: int, kept: int, keep: int) -> Stage:
        problem = self.problem
        sizes = problem.bytes
        everything = list(range(len(problem.forward)))
        runs = everything if stage == 0 else self.reruns(self.needs[stage] | keep, kept)
        after = [0] * (len(runs) + 1)  # what is read after each run
        after[-1] = self.needs[stage] | keep
        for at in reversed(range(len(runs))):
            after[at] = (after[at + 1] & ~self.makes[runs[at]]) | self.reads[runs[at]] | self.handed
        alive = kept & after[0]
        now = _sum(sizes, alive)
        peak, at_peak = problem.before[stage] + now, alive
        for at, node in enumerate(runs):
            made = self.makes[node]
            now += self.made_bytes[node]
            if problem.before[stage] + now > peak:
                peak, at_peak = problem.before[stage] + now, alive | made
            if made & alive:  # made again while it was there
                now -= _sum(sizes, made & alive)
            gone = (alive | made) & ~after[at + 1]
            now -= _sum(sizes, gone)
            alive = (alive | made) & ~gone
        if problem.during[stage] + now > peak:
            peak, at_peak = problem.during[stage] + now, alive
        seconds = sum(problem.seconds[i] for i in runs) if stage else 0.0
        return Stage(tuple(runs), seconds, peak, at_peak)


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

    def copy(self) -> Solution:
        return Solution(self.stages, list(self.keep))

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
        return max(c.peak for c in self.costs)

    def overflow(self, budget: int) -> int:
        return sum(max(0, c.peak - budget) for c in self.costs)

    def trial(self, value: int, first: int, last: int, budget: int, *, drop: bool) -> tuple[float, int, int]:
        """What dropping (or keeping) a value after stages first..last changes: seconds, overflow; the peak there."""
        seconds, overflow, peak = 0.0, 0, 0
        on, off = (0, 1 << value) if drop else (1 << value, 0)
        for s in range(first, min(last + 2, len(self.keep))):
            before = self.keep[s - 1] if s else 0
            if s > first:
                before = (before | on) & ~off
            after = (self.keep[s] | on) & ~off if s <= last else self.keep[s]
            new, old = self.stages.evaluate(s, before, after), self.costs[s]
            seconds += new.seconds - old.seconds
            overflow += max(0, new.peak - budget) - max(0, old.peak - budget)
            peak = max(peak, new.peak)
        return seconds, overflow, peak

    def apply(self, value: int, first: int, last: int, *, drop: bool) -> None:
        tick()
        bit = 1 << value
        for s in range(first, last + 1):
            self.keep[s] = self.keep[s] & ~bit if drop else self.keep[s] | bit
        for s in range(first, min(last + 2, len(self.keep))):
            self.costs[s] = self.cost(s)

    def span(self, value: int, stage: int) -> tuple[int, int] | None:
        """The stages around `stage` after which a value is kept with nothing in between that needs it."""
        bit, needs = 1 << value, self.stages.needs
        first = last = stage
        if not self.keep[stage] & bit:
            if stage == 0 or not self.keep[stage - 1] & bit or needs[stage] & bit:
                return None
            first = last = stage - 1
        while first > 0 and self.keep[first - 1] & bit and not needs[first] & bit:
            first -= 1
        while last + 1 < len(self.keep) and self.keep[last + 1] & bit and not needs[last + 1] & bit:
            last += 1
        return first, last


def keep_all(stages: Stages) -> Solution:
    """Everything that some later backward node reads is kept until then."""
    last_need = stages.problem.last_need
    later = [_bits(tuple(v for v, last in enumerate(last_need) if last > s)) for s in range(len(stages.needs))]
    return Solution(stages, [mask | stages.handed for mask in later])


def keep_nothing(stages: Stages) -> Solution:
    """Everything is computed again from the inputs, every time."""
    return Solution(stages, [stages.handed] * len(stages.needs))
