"""Recompute under a budget: any forward node may run again before any backward node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ir import Graph
from ..schedule import Schedule
from ..schedule.whole import list_steps, whole_schedule
from .problem import Effort, Planner, Problem, Proposal
from .stages.problem import make_problem
from .stages.search import RecomputeSearch


class Recompute(Planner):
    name = "recompute"
    whole = True
    effort = 2

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if (step := problem.step) is None:
            return
        found = schedule_reruns(step.reruns, problem.budget, step.effort)
        if found is not None:
            yield Proposal(found, "optimal" if found.gap == 0 else "reruns")

    def least(self, problem: Problem) -> Iterator[tuple[int, str]]:
        if problem.step is not None and (stages := problem.step.stages).backward:
            low = problem.step.reruns.least
            yield low.peak, f"recompute alone, before {stages.backward[int(low.peaks.argmax())]}"


def plan_recompute(
    graph: Graph, seconds: Mapping[str, float], budget: int, effort: Effort | None = None
) -> Schedule | None:
    """The schedule of least time that fits by running forward nodes again, or None where none is found."""
    return schedule_reruns(RecomputeSearch(make_problem(graph, seconds)), budget, effort or Effort())


def schedule_reruns(search: RecomputeSearch, budget: int, effort: Effort) -> Schedule | None:
    """The same, where plans for other budgets may have been found before."""
    found = search.solve(budget, effort)
    if found is None:
        return None
    graph = search.problem.graph
    steps = list_steps(graph, search.problem.runs(found.solution.again))
    return whole_schedule(graph, "recompute", steps, found.notes, found.gap)
