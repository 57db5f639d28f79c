"""Recompute in outline: the program that looks at memory in a few stages only.

Backward falls into as many blocks as are looked at, and one more. Per block and unit of forward nodes one column: does
it run again there? Per look and value one: is it kept? What happens inside a block takes no memory. So a plan of the
whole problem is one of the outline, whose optimum is a bound, and a solver needs hundredths of a second for what takes
minutes stage by stage. Rounded, it is where the heuristic starts; where that is over the budget is the next stage to
look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .model import Model, Term
from .problem import StageProblem
from .stages import Stages


class Outline(Model):
    """Memory after these stages, and what must run again between them."""

    def __init__(self, problem: StageProblem, budget: int, looks: Sequence[int]):
        super().__init__(problem, budget)
        self.looks = sorted(looks)
        edges = [0, *(stage + 1 for stage in self.looks), len(problem.backward)]
        self.needs = [{v for s in range(*block) for v in problem.needs[s]} - problem.kept for block in pairwise(edges)]
        matters = problem.matters(self.needs)
        self.keep: dict[tuple[int, int], int] = {}  # (look, value) -> column
        self.run: dict[tuple[int, int], int] = {}  # (block, unit) -> column
        for look, stage in enumerate(self.looks):
            self._add_look(look, stage, matters[look + 1])
        for block in range(1, len(self.needs)):
            self._add_block(block, matters[block])

    def _add_look(self, look: int, stage: int, later: set[int]) -> None:
        """What is kept for later fits beside what the backward node reads."""
        problem, unit, terms = self.problem, self.problem.unit, list[Term]()
        there = problem.kept.union(problem.needs[stage])
        for value, maker in enumerate(problem.maker):
            used = problem.last_need[value] > stage or any(unit[i] in later for i in problem.readers[value])
            if used and unit[maker] in later and value not in problem.kept and value not in problem.fused:
                self.keep[look, value] = self.column(whole=True)
                if value not in there:
                    terms.append((self.keep[look, value], problem.bytes[value] * self.unit_bytes))
        held = problem.during[stage] + sum(problem.bytes[v] for v in there)
        self.at_most(terms, (self.budget - held) * self.unit_bytes)

    def _add_block(self, block: int, units: set[int]) -> None:
        """What is needed, read by a unit that runs, or kept in the end, was kept before or is made again."""
        problem = self.problem
        for unit in sorted(units):
            self.run[block, unit] = self.column(cost=self.seconds[unit], whole=True)
        for value in sorted(self.needs[block]):
            self.at_most(self._lacking(block, value), -1.0)
        for unit in sorted(units):
            read = {v for i in problem.units[unit] for v in problem.reads[i] if problem.unit[problem.maker[v]] != unit}
            for value in sorted(read - problem.kept):
                self.at_most([(self.run[block, unit], 1.0), *self._lacking(block, value)])
        for value in range(len(problem.values)):
            if (block, value) in self.keep:
                self.at_most([(self.keep[block, value], 1.0), *self._lacking(block, value)])

    def _lacking(self, block: int, value: int) -> list[Term]:
        terms = [(self.run[block, self.problem.unit[self.problem.maker[value]]], -1.0)]
        return [*terms, (self.keep[block - 1, value], -1.0)] if (block - 1, value) in self.keep else terms

    def allowed(self, stages: Stages, values: np.ndarray, threshold: float) -> dict[int, int]:
        """What column values say may be kept after each stage that is looked at."""
        found = dict.fromkeys(self.looks, stages.handed)
        for (look, value), column in self.keep.items():
            if values[column] >= threshold:
                found[self.looks[look]] |= 1 << value
        return found
