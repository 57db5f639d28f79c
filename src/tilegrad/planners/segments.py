"""Segments: keep only what crosses from one stretch of the forward pass to another; run a stretch again when backward
reaches it. What gradient checkpointing does, with the cuts chosen.

The last stretch is not run again: backward begins there.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..ir import Graph
from ..schedule import Schedule
from ..schedule.whole import list_steps, whole_schedule
from .problem import Planner, Problem, Proposal
from .stages.problem import StageProblem, make_problem
from .stages.stages import Solution, Stages

STARTS = 6
Cuts = tuple[int, ...]  # numbers of forward nodes before each cut


class Segments(Planner):
    name = "segments"
    effort = 1

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if (step := problem.step) is None:
            return
        yield Proposal(plan_sqrt(step.graph, step.seconds), "sqrt(n) stretches")
        best = plan_segments(step.graph, step.seconds, problem.budget, search_s=step.effort.heuristic_s)
        if best is not None:
            yield Proposal(best, "best cuts")

    def least(self, problem: Problem) -> Iterator[tuple[int, str]]:
        if problem.step is not None and problem.step.stages.backward:
            found = best_segments(problem.step.stages, 0, problem.step.effort.heuristic_s)
            yield found.peak, "segments of the forward pass"


def plan_sqrt(graph: Graph, seconds: Mapping[str, float]) -> Schedule:
    """About as many stretches as each has nodes: the classic choice."""
    problem = make_problem(graph, seconds)
    return _plan(problem, segment(Stages(problem), sqrt_cuts(problem)))


def plan_segments(graph: Graph, seconds: Mapping[str, float], budget: int, *, search_s: float = 2.0) -> Schedule | None:
    """The segmentation of least time found that fits, or None where none does."""
    problem = make_problem(graph, seconds)
    if not problem.backward:
        return None
    found = best_segments(problem, budget, search_s)
    return None if found.peak > budget else _plan(problem, found)


def _plan(problem: StageProblem, solution: Solution) -> Schedule:
    return whole_schedule(problem.graph, "segments", list_steps(problem.graph, problem.runs(solution.again)))


def sqrt_cuts(problem: StageProblem) -> Cuts:
    """Evenly many nodes in each of about sqrt(n) stretches."""
    n = len(problem.forward)
    return _even(n, max(1, round(n**0.5)))


def _even(n: int, count: int) -> Cuts:
    return tuple(round(n * k / count) for k in range(1, count))


def segment(stages: Stages, cuts: Sequence[int]) -> Solution:
    """What is kept after each stage, given the cuts."""
    problem = stages.problem
    part = [bisect_right(cuts, i) for i in range(len(problem.forward))]  # node -> stretch
    made_in = [part[maker] for maker in problem.maker]
    crosses = [any(part[i] > made_in[v] for i in problem.readers[v]) for v in range(len(problem.values))]
    position = {name: i for i, name in enumerate(problem.forward)}
    sources = [problem.graph.node[b].attrs.get("of") for b in problem.backward]
    reached = [
        part[position[of]] if of is not None else len(cuts) for of in sources
    ]  # what seeds backward has no source
    there = len(cuts)  # the stretch whose values are all there
    keep = []
    for stage in range(len(problem.backward)):
        there = min(there, reached[stage])
        following = reached[stage + 1] if stage + 1 < len(reached) else -1
        mask = stages.handed
        for v, last in enumerate(problem.last_need):
            inside = made_in[v] == there == following and last > stage
            rerun = any(part[i] <= following and (part[i] < there) for i in problem.readers[v])
            if inside or (crosses[v] and (last > stage or rerun)):
                mask |= 1 << v
        keep.append(mask)
    return Solution(stages, keep)


def best_segments(problem: StageProblem, budget: int, search_s: float) -> Solution:
    """Even cuts of every count, then cuts moved, added and removed while that helps."""
    stages = Stages(problem)
    deadline = time.monotonic() + search_s
    n = len(problem.forward)

    def worth(cuts: Cuts) -> tuple[int, float]:
        found = segment(stages, cuts)
        return max(0, found.peak - budget), found.seconds

    starts = sorted((_even(n, count) for count in range(1, max(1, min(n, 3 * round(n**0.5))) + 1)), key=worth)
    best = starts[0]
    for start in starts[:STARTS]:
        found = _climb(start, worth, n, deadline)
        best = min(best, found, key=worth)
    return segment(stages, best)


def _climb(cuts: Cuts, worth: Callable[[Cuts], tuple[int, float]], n: int, deadline: float) -> Cuts:
    """Go to the best neighbour until there is none."""
    score = worth(cuts)
    while time.monotonic() < deadline:
        nearby = [(worth(other), other) for other in _neighbours(cuts, n)]
        if not nearby or min(nearby)[0] >= score:
            break
        score, cuts = min(nearby)
    return cuts


def _neighbours(cuts: Cuts, n: int) -> Iterator[Cuts]:
    for at in range(len(cuts)):
        yield cuts[:at] + cuts[at + 1 :]
        for shift in (-4, -2, -1, 1, 2, 4):
            moved = cuts[at] + shift
            if 0 < moved < n and moved not in cuts:
                yield tuple(sorted((*cuts[:at], moved, *cuts[at + 1 :])))
    for cut in range(1, n):
        if cut not in cuts:
            yield tuple(sorted((*cuts, cut)))
