"""Recompute under a budget: the heuristic first, then the mixed-integer program until gap or clock say stop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from ..errors import InputError
from ..ir import Graph
from ..schedule import Schedule
from ..schedule.whole import list_steps, whole_schedule
from .problem import Effort, Planner, Problem, Proposal
from .stages.evict import fit, plain_starts, smallest_peak
from .stages.problem import StageProblem, make_problem
from .stages.program import INTERRUPTED, Program
from .stages.stages import Solution, Stages

THRESHOLDS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
EXACT_CELLS = 8_000  # stages x units up to which the program is solved in seconds, its relaxation in one
PATIENCE = 4.0  # times longer for graphs larger than that, at most
TIGHT, TIGHT_S = 1e-4, 20.0  # the gap that is tried for first, and for how long


class Recompute(Planner):
    name = "recompute"
    effort = 2

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if (step := problem.step) is None:
            return
        found = plan_recompute(step.graph, step.seconds, problem.budget, step.effort)
        if found is not None:
            yield Proposal(found, "optimal" if found.gap == 0 else "reruns")

    def least(self, problem: Problem) -> Iterator[tuple[int, str]]:
        if problem.step is not None and (stages := problem.step.stages).backward:
            low = smallest_peak(stages)
            worst = max(range(len(low.costs)), key=lambda s: low.costs[s].peak)
            yield low.peak, f"recompute alone, before {stages.backward[worst]}"


def plan_recompute(
    graph: Graph, seconds: Mapping[str, float], budget: int, effort: Effort | None = None
) -> Schedule | None:
    """The schedule of least time that fits by running forward nodes again, or None where none is found."""
    problem = make_problem(graph, seconds)
    found = solve_recompute(problem, budget, effort or Effort())
    if found is None:
        return None
    steps = list_steps(graph, problem.runs(found.solution.again))
    return whole_schedule(graph, "recompute", steps, found.notes, found.gap)


@dataclass(frozen=True)
class RecomputePlan:
    """A solution, how far from the best it may be, and how it was come by."""

    solution: Solution
    gap: float | None
    notes: tuple[str, ...]


def solve_recompute(problem: StageProblem, budget: int, effort: Effort) -> RecomputePlan | None:
    """Several starts for the heuristic, then the exact program where it is small enough."""
    if not problem.backward or budget < max(problem.before + problem.during):
        return None  # nothing to run again for, or gradients alone do not fit
    stages = Stages(problem)
    cells = len(problem.backward) * len(problem.units)
    program, bound, starts, notes = None, problem.base_seconds, list[Solution](), list[str]()
    if cells <= EXACT_CELLS and bound > 0:
        try:
            program = Program(problem, budget)
            relaxed = program.relax(effort.heuristic_s)
        except InputError as error:
            program = None
            notes.append(f"{error.what}: this is the heuristic's plan")
        else:
            if relaxed.status == "Infeasible":
                return None
            if relaxed.values is not None:  # else the clock stopped it
                bound = relaxed.bound
                starts = [program.read(stages, relaxed.values, threshold) for threshold in THRESHOLDS]
    patience = effort.heuristic_s * min(PATIENCE, max(1.0, cells / EXACT_CELLS))
    best = fit(_all(starts, stages), budget, time.monotonic() + patience)
    if best is None:
        best = fit([smallest_peak(problem)], budget, time.monotonic() + patience)
    if program is not None and effort.exact_s > 0:
        best, bound = _improve(program, stages, best, bound, effort, notes)
    if best is None:
        return None
    gap = (problem.base_seconds + best.seconds) / bound - 1 if bound > 0 else 0.0
    return RecomputePlan(best, max(0.0, gap), tuple(notes))


def _all(starts: list[Solution], stages: Stages) -> Iterator[Solution]:
    yield from starts
    yield from plain_starts(stages)


def _improve(
    program: Program, stages: Stages, best: Solution | None, bound: float, effort: Effort, notes: list[str]
) -> tuple[Solution | None, float]:
    """The exact program, started from the heuristic's solution. Its answer is evaluated like any other."""
    base, budget, begun = program.problem.base_seconds, program.budget, time.monotonic()
    for gap, limit in ((TIGHT, min(TIGHT_S, effort.exact_s)), (effort.gap, effort.exact_s)):
        left = begun + limit - time.monotonic()
        if left <= 0 or (best is not None and (base + best.seconds) / bound - 1 <= gap):
            continue
        solved = program.solve(left, gap, best)
        bound = max(bound, solved.bound) if solved.bound < inf else bound
        if solved.values is not None:
            found = program.read(stages, solved.values)
            if found.peak > budget:  # by what counts as nothing there
                program = program.stricter()
                found = fit([found], budget, time.monotonic() + effort.heuristic_s) or found
            if found.peak <= budget and (best is None or found.seconds < best.seconds):
                best = found
        if solved.status == INTERRUPTED:
            break
    if best is not None and (base + best.seconds) / bound - 1 > effort.gap:
        notes.append(f"the solver was stopped after {time.monotonic() - begun:.0f} s: this is the best plan found")
    return best, bound
