"""The search for what to run again: outlines and the heuristic, then the exact program where that is small enough.

Effort is counted, never timed. All that was found for one budget serves the others: a plan for less is a plan for more,
a bound for more is a bound for less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from random import Random

import numpy as np

from ...errors import InputError
from .evict import fit, shaken, smallest_peak
from .model import INTERRUPTED
from .outline import Outline
from .problem import StageProblem
from .program import Program
from .stages import Solution, Stages, keep_all, keep_once

THRESHOLDS = (0.5, 0.1, 0.9)
EXACT_CELLS = 8_000  # stages x units up to which the program stage by stage is worth a try
LOOKS = 8  # outlines, each with one stage more
NODES = 20  # of an outline's tree
COLUMN = 250  # work that there must be for each column and look of an outline, to ask for whole numbers
ITERATION = 40  # work that one iteration of a solver is
CLOSER = 4  # times nearer to the optimum, while there is work left to do
SHAKES = 200  # attempts to better a plan


@dataclass(frozen=True)
class Effort:
    """How hard to look for a plan. Counted in what is done, so that a plan does not depend on how busy a machine is."""

    work: int = 600_000  # nodes that the heuristic walks over in search of something better: about a second
    nodes: int = 200  # of the exact search's tree; 0: the heuristic alone
    gap: float = 1e-3  # of a step's time, at which a search may stop

    def less_than(self, other: Effort) -> bool:
        """May the other find what this one does not?"""
        return self.work < other.work or self.nodes < other.nodes or self.gap > other.gap

    def part(self, of: int) -> Effort:
        """The heuristic alone, with a part of its effort."""
        return Effort(self.work // of, 0, self.gap)


@dataclass(frozen=True)
class RecomputePlan:
    """A solution, how far from the best it may be, and how it was come by."""

    solution: Solution
    gap: float | None
    notes: tuple[str, ...]


class RecomputeSearch:
    """Plans for one problem at any budgets."""

    def __init__(self, problem: StageProblem):
        self.problem = problem
        self._answers: dict[int, tuple[Effort, RecomputePlan | None]] = {}
        self._solutions: list[Solution] = []
        self._bounds: dict[int, float] = {}  # budget -> seconds

    @cached_property
    def stages(self) -> Stages:
        return Stages(self.problem)

    @cached_property
    def least(self) -> Solution:
        """The smallest peak that the heuristic knows a plan for: it refuses all that is less, and nothing else."""
        return smallest_peak(self.stages)

    def solve(self, budget: int, effort: Effort) -> RecomputePlan | None:
        """The plan of least time found that fits, or None."""
        if budget not in self._answers or self._answers[budget][0].less_than(effort):
            self._answers[budget] = effort, self._solve(budget, effort)
        return self._answers[budget][1]

    def _solve(self, budget: int, effort: Effort) -> RecomputePlan | None:
        problem = self.problem
        if not problem.backward or budget < problem.floor:
            return None  # nothing to run again for, or gradients alone do not fit
        exact = 0 < len(problem.backward) * len(problem.units) <= EXACT_CELLS and effort.nodes > 0
        if budget < self.least.peak and not exact:
            return None
        attempt = _Attempt(self, budget, effort)
        attempt.outline()
        if attempt.bound < inf:
            attempt.shake()
            if exact and problem.base_seconds > 0:
                attempt.prove(effort.nodes)
        self._bounds[budget] = attempt.bound
        if attempt.best is None:
            return None
        self._solutions.append(attempt.best)
        return RecomputePlan(attempt.best, attempt.gap, tuple(attempt.notes))

    def known(self, budget: int) -> Iterator[Solution]:
        """What was found for other budgets, those that fit first, the fastest of them first."""
        yield from sorted(self._solutions, key=lambda s: (s.peak > budget, s.seconds))

    def bound(self, budget: int) -> float:
        bounds = (bound for other, bound in self._bounds.items() if other >= budget)
        return max(bounds, default=self.problem.base_seconds)


class _Attempt:
    """The search at one budget: the best so far, and a bound on what there is."""

    def __init__(self, search: RecomputeSearch, budget: int, effort: Effort):
        self.search, self.budget, self.enough = search, budget, effort.gap
        self.problem, self.stages = search.problem, search.stages
        self.limit = self.stages.work + effort.work
        self.looking = self.limit - 2 * effort.work // 3  # until then stages are added to what is looked at
        self.bound = search.bound(budget)
        self.best: Solution | None = None
        self.notes: list[str] = []
        for solution in search.known(budget):
            self._take(solution)

    @property
    def gap(self) -> float:
        if self.best is None:
            return inf
        seconds = self.problem.base_seconds + self.best.seconds
        return max(0.0, round(seconds / self.bound - 1, 9)) if self.bound > 0 else 0.0

    @property
    def proved(self) -> bool:
        return self.gap <= self.enough

    @property
    def done(self) -> bool:
        return self.gap <= self.enough / CLOSER or (self.best is not None and self.stages.work > self.limit)

    def _try(self, start: Solution, chance: Random | None = None) -> None:
        if not self.done:
            self._take(fit(start, self.budget, self.limit, chance))

    def _take(self, solution: Solution | None) -> None:
        if solution is None or solution.peak > self.budget:
            return
        if self.best is None or solution.seconds < self.best.seconds:
            self.best = solution

    def outline(self) -> None:
        """Look at memory where it is worst, round what the solver says, look also where that is over the budget."""
        everything = keep_all(self.stages)
        self._take(everything)
        looks = [int(everything.peaks.argmax())]
        while len(looks) <= LOOKS and self.problem.base_seconds > 0 and not self.done:
            outline = Outline(self.problem, self.budget, looks)
            whole = COLUMN * len(outline.cost) * len(looks) <= self.limit - self.stages.work
            try:
                solved = outline.solve(NODES, self.enough / CLOSER / 2) if whole else outline.relax()
            except InputError as error:
                self.notes.append(f"{error.what}: this is the heuristic's plan")
                break
            self.stages.work += ITERATION * solved.iterations
            if solved.status == "Infeasible" and self.budget < self.search.least.peak:
                self.bound = inf
                return
            self.bound = max(self.bound, solved.bound)
            if solved.values is None:
                break
            over = self._round(outline, solved.values)
            if over is None or over in looks or self.stages.work > self.looking:
                break
            looks.append(over)
        for start in (everything, *self.search.known(self.budget)):
            self._try(start)
        if self.best is None:
            self._try(self.search.least)

    def _round(self, outline: Outline, values: np.ndarray) -> int | None:
        """Starts for the heuristic; returns the stage that is most over the budget in any of them."""
        worst, peak = None, self.budget
        for allowed in _unique([outline.allowed(self.stages, values, threshold) for threshold in THRESHOLDS]):
            start = keep_once(self.stages, allowed)
            if start.peak > peak:
                worst, peak = int(start.peaks.argmax()), start.peak
            self._try(start)
        return worst

    def shake(self) -> None:
        """Drop a few values by chance, and see whether that leads to something better."""
        chance = Random(0)
        for _ in range(SHAKES):
            if self.best is not None and not self.done:
                self._try(shaken(self.best, chance), chance)

    def prove(self, nodes: int) -> None:
        """The exact program, started from the heuristic's solution. Its answer is evaluated like any other."""
        program = Program(self.problem, self.budget)
        for strict in (False, True):
            if self.proved or self.notes:
                return
            program = program.stricter() if strict else program
            start = None if self.best is None else program.columns(self.best)
            solved = program.solve(nodes, self.enough / (1 + self.enough), start)
            if not strict:
                self.bound = max(self.bound, solved.bound)
            if solved.values is not None:
                found = program.read(self.stages, solved.values)
                self._take(fit(found, self.budget) if found.peak > self.budget else found)
            if solved.values is None or found.peak <= self.budget or solved.status == INTERRUPTED:
                break  # else what counts as nothing there was too much
        if self.best is not None and not self.proved:
            self.notes.append(f"the solver was stopped after {nodes} nodes of its tree: this is the best plan found")


def _unique(masks: list[dict[int, int]]) -> list[dict[int, int]]:
    return [mask for at, mask in enumerate(masks) if mask not in masks[:at]]
