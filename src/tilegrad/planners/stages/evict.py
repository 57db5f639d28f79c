"""The heuristic for recompute: evict what frees most for least until the budget holds, then keep again what fits.

It starts from keeping everything, or from a rounded solution of the linear relaxation where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from .problem import StageProblem
from .stages import Solution, Stages, keep_all, keep_nothing, members

CANDIDATES = 40  # values tried per eviction
TINY = 1e-12  # seconds: not worth a move


def fit(starts: Iterable[Solution], budget: int, deadline: float) -> Solution | None:
    """The best solution that fits, found from several starts; None where none is found."""
    best: Solution | None = None
    for start in starts:
        found = _evict(start.copy(), budget, deadline)
        if found is None:
            continue
        _fill(found, budget, deadline)
        if best is None or found.seconds < best.seconds:
            best = found
        if time.monotonic() > deadline:
            break
    return best


def plain_starts(stages: Stages) -> list[Solution]:
    return [keep_all(stages), keep_nothing(stages)]


def _evict(solution: Solution, budget: int, deadline: float) -> Solution | None:
    """Drop values, one gap between two needs at a time, from the last stage that is over the budget backwards."""
    while over := [s for s, cost in enumerate(solution.costs) if cost.peak > budget]:
        best: tuple[float, int, int, int] | None = None
        for value in _largest(solution, solution.costs[over[-1]].at_peak):
            span = solution.span(value, over[-1])
            if span is None:
                continue
            seconds, change, _ = solution.trial(value, *span, budget, drop=True)
            if change < 0 and (best is None or seconds / -change < best[0]):
                best = (seconds / -change, value, *span)
        if best is None or time.monotonic() > deadline:
            return None
        solution.apply(*best[1:], drop=True)
    return solution


def _largest(solution: Solution, alive: int) -> list[int]:
    """The values that are worth a try, the largest first."""
    sizes = solution.stages.problem.bytes
    return sorted(members(alive & ~solution.stages.handed), key=lambda v: -sizes[v])[:CANDIDATES]


def _fill(solution: Solution, budget: int, deadline: float) -> None:
    """Keep again whatever saves time and fits, the greatest saving first."""
    worth = [v for v in range(len(solution.stages.problem.values)) if v not in solution.stages.fused]
    while time.monotonic() < deadline:
        best: tuple[float, int, int, int] | None = None
        for value in worth:
            for first, last in _rerun_spans(solution, value):
                seconds, _, peak = solution.trial(value, first, last, budget, drop=False)
                if peak <= budget and seconds < min(-TINY, best[0] if best else 0.0):
                    best = (seconds, value, first, last)
        if best is None:
            return
        solution.apply(*best[1:], drop=False)


def _rerun_spans(solution: Solution, value: int) -> Iterator[tuple[int, int]]:
    """Spans over which a value could be kept instead of being made again: from the nearest stage that makes it, and
    from the furthest, to each stage that makes it again."""
    bit, maker = 1 << value, solution.stages.maker[value]
    made = [0]
    for s in range(1, len(solution.keep)):
        if solution.keep[s - 1] & bit:
            made = [s]  # it is there anyway
            continue
        if maker in solution.costs[s].runs:
            for first in {made[0], made[-1]}:
                yield first, s - 1
            made.append(s)


def smallest_peak(problem: StageProblem, *, seconds: float = 1.0) -> Solution:
    """The smallest peak that is found quickly: keep nothing, then keep what lowers the worst stage."""
    stages = Stages(problem)
    deadline = time.monotonic() + seconds
    solution = keep_nothing(stages)
    while time.monotonic() < deadline:
        peak = solution.peak
        worst = next(s for s, cost in enumerate(solution.costs) if cost.peak == peak)
        trials = _lowering(solution, worst, peak)
        best = min(trials, default=None)
        if best is None:
            break
        solution.apply(*best[2:], drop=False)
    return solution


def _lowering(solution: Solution, worst: int, peak: int) -> Sequence[tuple[int, int, int, int, int]]:
    """Values whose keeping lowers the worst stage without lifting another to its height."""
    found = []
    for value in range(len(solution.stages.problem.values)):
        for first in range(max(0, worst - 3), worst):
            _, change, there = solution.trial(value, first, worst - 1, peak - 1, drop=False)
            if change < 0 and there < peak:
                found.append((there, change, value, first, worst - 1))
    return found
