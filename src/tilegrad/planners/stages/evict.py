"""The heuristic for recompute: evict what frees most for least until the budget holds, then keep again what fits.

It starts from a rounded solution of the outline, or from keeping everything. A plan is bettered by keeping a few more
values by chance and starting from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

import numpy as np

from .stages import Solution, Stages, keep_all, keep_nothing, members

CANDIDATES = 40  # values tried per eviction
BLUR = 1.5  # how far apart two evictions may be for chance to take the worse
SHAKEN = (1, 2, 4, 8)  # values kept by chance
TINY = 1e-12  # seconds: not worth a move


def fit(start: Solution, budget: int, limit: float = inf, chance: Random | None = None) -> Solution | None:
    """A solution that fits, found from this one; None where none is found. `limit`: of the work of these
    stages, from which on nothing more is kept."""
    found = start.copy()
    if not _evict(found, budget, chance):
        return None
    found = found.trimmed()
    _fill(found, budget, limit)
    return found


def shaken(solution: Solution, chance: Random) -> Solution:
    """The same with a few more values kept, whether they fit or not."""
    found = solution.copy()
    again = _made_again(found)
    for value in chance.sample(again, min(len(again), chance.choice(SHAKEN))):
        if spans := list(_rerun_spans(found, value)):
            found.apply(value, *chance.choice(spans), drop=False)
    return found


def _made_again(solution: Solution) -> list[int]:
    """The values that could be kept instead."""
    stages = solution.stages
    again = {v for cost in solution.costs[1:] for i in cost.runs for v in stages.problem.makes[i]}
    return sorted(again - stages.fused - stages.problem.kept)


def _evict(solution: Solution, budget: int, chance: Random | None) -> bool:
    """Drop values, one gap between two needs at a time, from the last stage that is over the budget backwards."""
    while len(over := np.flatnonzero(solution.peaks > budget)):
        stage = int(over[-1])
        best: tuple[float, int, int, int] | None = None
        for value in _largest(solution, solution.costs[stage].at_peak):
            span = solution.span(value, stage)
            if span is None:
                continue
            seconds, change, _ = solution.trial(value, *span, budget, drop=True)
            if change < 0:
                price = seconds / -change * (chance.uniform(1 / BLUR, BLUR) if chance else 1.0)
                if best is None or price < best[0]:
                    best = (price, value, *span)
        if best is None:
            return False
        solution.apply(*best[1:], drop=True)
    return True


def _largest(solution: Solution, alive: int) -> list[int]:
    """The values that are worth a try, the largest first."""
    sizes = solution.stages.problem.bytes
    return sorted(members(alive & ~solution.stages.handed), key=lambda v: -sizes[v])[:CANDIDATES]


def _fill(solution: Solution, budget: int, limit: float) -> None:
    """Keep again whatever saves time and fits, the greatest saving first, until nothing does."""
    stages, moved = solution.stages, True
    while moved and stages.work < limit:
        options = []
        for value in _made_again(solution):
            for first, last in _rerun_spans(solution, value) if stages.work < limit else ():
                seconds, _, peak = solution.trial(value, first, last, budget, drop=False)
                if peak <= budget and seconds < -TINY:
                    options.append((seconds, value, first, last))
        moved = False
        for _, value, first, last in sorted(options):
            if any(solution.keep[s] >> value & 1 for s in range(first, last + 1)):
                continue
            seconds, _, peak = solution.trial(value, first, last, budget, drop=False)
            if peak <= budget and seconds < -TINY:
                solution.apply(value, first, last, drop=False)
                moved = True


def _rerun_spans(solution: Solution, value: int) -> Iterator[tuple[int, int]]:
    """Spans over which a value could be kept instead of being made again: from the nearest stage that makes it, and
    from the furthest, to each stage that makes it again."""
    bit, maker = 1 << value, solution.stages.maker[value]
    made = [0]
    for s in members(solution.touching[value]):
        if solution.keep[s - 1] & bit:
            made = [s]  # it is there anyway
        elif maker in solution.costs[s].runs:
            for first in {made[0], made[-1]}:
                yield first, s - 1
            made.append(s)


def smallest_peak(stages: Stages) -> Solution:
    """The smallest peak that is found quickly: keep nothing, then keep what lowers the worst stage; or keep all, where
    what runs again is itself what needs most."""
    solution = keep_nothing(stages)
    while trials := _lowering(solution):
        solution.apply(*min(trials)[2:], drop=False)
    return min(solution, keep_all(stages), key=lambda each: each.peak)


def _lowering(solution: Solution) -> list[tuple[int, int, int, int, int]]:
    """Values whose keeping lowers the worst stage without lifting another to its height."""
    worst, peak = int(solution.peaks.argmax()), solution.peak
    cost, maker, found = solution.costs[worst], solution.stages.maker, list[tuple[int, int, int, int, int]]()
    if not worst:
        return found
    runs = set(cost.runs)
    late = max((maker[v] for v in members(cost.at_peak) if maker[v] in runs), default=len(maker))
    for value in members(cost.touched & ~solution.stages.handed):  # what is made before the peak is there or gone
        if maker[value] < late or maker[value] not in runs:
            continue
        for first in range(worst - 1, max(0, worst - 3) - 1, -1):
            if solution.keep[first] >> value & 1:
                break
            _, change, there = solution.trial(value, first, worst - 1, peak - 1, drop=False)
            if change < 0 and there < peak:
                found.append((there, change, value, first, worst - 1))
    return found
