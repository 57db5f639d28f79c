"""Segments: keep only what crosses from one stretch of the forward pass to another; run a stretch again when backward
reaches it. What gradient checkpointing does, with the cuts chosen.

The last stretch is not run again: backward begins there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..ir import Graph
from ..schedule import Schedule
from ..schedule.whole import list_steps, whole_schedule
from .problem import Effort, Planner, Problem, Proposal
from .stages.problem import StageProblem, make_problem
from .stages.stages import Solution, Stages

STARTS = 6
SHARE = 4  # of the effort for whole nodes, the part that cuts are worth
Cuts = tuple[int, ...]  # numbers of forward nodes before each cut


class Segments(Planner):
    name = "segments"
    whole = True
    effort = 1

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if (step := problem.step) is None:
            return
        stages = step.reruns.stages
        yield Proposal(_plan(segment(stages, sqrt_cuts(stages.problem))), "sqrt(n) stretches")
        if stages.problem.backward:
            best = best_segments(stages, problem.budget, step.effort.work // SHARE)
            if best.peak <= problem.budget:
                yield Proposal(_plan(best), "best cuts")

    def least(self, problem: Problem) -> Iterator[tuple[int, str]]:
        if (step := problem.step) is not None and step.stages.backward:
            yield best_segments(step.reruns.stages, 0, step.effort.work // SHARE).peak, "segments of the forward pass"


def plan_sqrt(graph: Graph, seconds: Mapping[str, float]) -> Schedule:
    """About as many stretches as each has nodes: the classic choice."""
    problem = make_problem(graph, seconds)
    return _plan(segment(Stages(problem), sqrt_cuts(problem)))


def plan_segments(
    graph: Graph, seconds: Mapping[str, float], budget: int, *, work: int = Effort.work
) -> Schedule | None:
    """The segmentation of least time found that fits, or None where none does."""
    problem = make_problem(graph, seconds)
    if not problem.backward:
        return None
    found = best_segments(Stages(problem), budget, work)
    return None if found.peak > budget else _plan(found)


def _plan(solution: Solution) -> Schedule:
    problem = solution.stages.problem
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
    made, read = [0] * (len(cuts) + 1), [0] * (len(cuts) + 1)  # stretch -> values
    crosses = 0
    for i, stretch in enumerate(part):
        made[stretch] |= stages.makes[i]
        read[stretch] |= stages.reads[i]
        crosses |= stages.reads[i] & ~made[stretch]
    reached = [len(cuts) if source is None else part[source] for source in problem.sources]
    there = len(cuts)  # the stretch whose values are all there
    keep = []
    for stage in range(len(problem.backward)):
        there = min(there, reached[stage])
        following = reached[stage + 1] if stage + 1 < len(reached) else -1
        wanted = stages.later[stage]
        for stretch in range(min(following, there - 1) + 1):
            wanted |= read[stretch]  # to run it again
        keep.append(stages.handed | crosses & wanted | (made[there] & stages.later[stage] if there == following else 0))
    return Solution(stages, keep)


def best_segments(stages: Stages, budget: int, work: int) -> Solution:
    """Even cuts of every count, then cuts moved, added and removed while that helps."""
    limit = stages.work + work
    n = len(stages.problem.forward)

    def worth(cuts: Cuts) -> tuple[int, float]:
        found = segment(stages, cuts)
        return max(0, found.peak - budget), found.seconds

    starts = sorted((_even(n, count) for count in range(1, max(1, min(n, 3 * round(n**0.5))) + 1)), key=worth)
    best = starts[0]
    for start in starts[:STARTS]:
        found = _climb(start, worth, n, lambda: stages.work < limit)
        best = min(best, found, key=worth)
    return segment(stages, best)


def _climb(cuts: Cuts, worth: Callable[[Cuts], tuple[int, float]], n: int, more: Callable[[], bool]) -> Cuts:
    """Go to the best neighbour until there is none, or no more work to be done."""
    score = worth(cuts)
    while more():
        nearby = [(worth(other), other) for other in _neighbours(cuts, n) if more()]
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
