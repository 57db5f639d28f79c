"""Recompute as a mixed-integer program.

Per stage and unit of forward nodes one binary: does it run again? Per stage and value one binary: is it kept until the
next stage? Within a stage a value can only vanish after one of its readers, so its life is cut into the segments
between them, one continuous variable each:

    alive[0] <= kept from the stage before + run again         alive[j+1] <= alive[j]
    a reader runs only if the segment that ends with it is alive
    what the backward node reads, and what is kept until the next stage, is alive at the end

and while any node of a stage runs, what is alive fits the budget. With the binaries fixed the segments are whole
numbers by themselves. A few thousand variables say for 60 + 60 nodes what a variable per value and moment says in a
hundred thousand, and the relaxation is as tight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from .model import BUDGET, Model, Term
from .problem import StageProblem
from .stages import Solution, Stages

NOTHING = 1e-6  # of the budget: what is less is nothing
ROUNDING = 1e-8  # of the budget: what a solver may overlook


class Program(Model):
    """All stages and all that is alive in each."""

    def __init__(self, problem: StageProblem, budget: int):
        super().__init__(problem, budget)
        self.keep: dict[tuple[int, int], int] = {}  # (stage, value) -> column
        self.run: dict[tuple[int, int], int] = {}  # (stage, unit) -> column
        self.unit = problem.unit
        matters = problem.matters(problem.needs)
        for stage in range(len(problem.backward)):
            self._add_stage(stage, matters[stage], matters[stage + 1])

    def stricter(self) -> Program:
        """The same with less room, so that what counts as nothing fits beside the rest."""
        nothing = sum(size for size in self.problem.bytes if size < NOTHING * self.budget)
        return Program(self.problem, max(1, self.budget - nothing - int(ROUNDING * self.budget)))

    def _add_stage(self, stage: int, units: set[int], later: set[int]) -> None:
        problem = self.problem
        if stage == 0:
            units = set(range(len(problem.units)))  # the forward pass runs everything
        for value, maker in enumerate(problem.maker):
            used = problem.last_need[value] > stage or any(self.unit[i] in later for i in problem.readers[value])
            if value in problem.kept:
                if stage == 0:
                    self.keep[stage, value] = self.column(low=1.0)
            elif self.unit[maker] in later and used and value not in problem.fused:
                self.keep[stage, value] = self.column(whole=True)
        for unit in sorted(units):
            free = stage > 0
            self.run[stage, unit] = self.column(
                cost=self.seconds[unit] if free else 0.0, low=0.0 if free else 1.0, whole=free
            )
        slots = sorted(i for unit in units for i in problem.units[unit])
        bytes_at: dict[int, list[Term]] = {slot: [] for slot in slots}
        at_end: list[Term] = []
        held = sum(problem.bytes[v] for v in problem.kept) if stage else 0  # handed over at the end: there throughout
        for value, maker in enumerate(problem.maker):
            if self.unit[maker] in units:
                self._add_value(stage, value, slots, bytes_at, at_end)
        for terms in bytes_at.values():
            self.at_most(terms, (self.budget - held - problem.before[stage]) * self.unit_bytes)
        self.at_most(at_end, (self.budget - held - problem.during[stage]) * self.unit_bytes)

    def _add_value(
        self, stage: int, value: int, slots: Sequence[int], bytes_at: dict[int, list[Term]], at_end: list[Term]
    ) -> None:
        """The life of one value in one stage."""
        problem = self.problem
        maker, size = problem.maker[value], problem.bytes[value] * self.unit_bytes
        if size < NOTHING * BUDGET:
            size = 0.0
        run = self.run[stage, self.unit[maker]]
        if value in problem.fused:  # there while the unit runs
            for slot in (maker, problem.readers[value][0]):
                bytes_at[slot].append((run, size))
            return
        if stage and value in problem.kept:  # there anyway; made once more beside what is wanted, it vanishes at once
            bytes_at[maker].append((run, size))
            return
        kept, keep = self.keep.get((stage - 1, value)), self.keep.get((stage, value))
        needed = value in problem.needs[stage]
        have: list[Term] = [(run, -1.0)]
        if kept is not None:
            have.append((kept, -1.0))
            if len(problem.makes[maker]) == 1:
                self.at_most([(kept, 1.0), (run, 1.0)], 1.0)  # nobody makes what is there
            for slot in slots:
                if slot < maker:
                    bytes_at[slot].append((kept, size))
        start = maker
        readers = [i for i in problem.readers[value] if (stage, self.unit[i]) in self.run]
        if not readers or len(problem.makes[maker]) > 1:
            readers.insert(0, maker)  # it may be made beside what is wanted, and vanish at once
        for reader in readers:
            alive = self._segment(have, slots, start, reader, size, bytes_at)
            self.at_most([(self.run[stage, self.unit[reader]], 1.0), (alive, -1.0)])
            if start == maker < reader:
                self.at_most([(run, 1.0), (alive, -1.0)])  # it is there while it is made
            have, start = [(alive, -1.0)], reader + 1
        last = self._segment(have, slots, start, inf, size, bytes_at)
        at_end.append((last, size))
        if needed:
            self.low[last] = 1.0
        elif keep is None:
            self.high[last] = 0.0
        if keep is not None:
            self.at_most([(keep, 1.0), (last, -1.0)])

    def _segment(
        self,
        have: list[Term],
        slots: Sequence[int],
        first: int,
        last: float,
        size: float,
        bytes_at: dict[int, list[Term]],
    ) -> int:
        alive = self.column()
        self.at_most([(alive, 1.0), *have])
        for slot in slots:
            if first <= slot <= last:
                bytes_at[slot].append((alive, size))
        return alive

    def columns(self, start: Solution) -> dict[int, float]:
        """The binaries of a solution; a solver completes the rest."""
        columns = {c: float(start.keep[stage] >> value & 1) for (stage, value), c in self.keep.items()}
        for (stage, unit), c in self.run.items():
            columns[c] = float(stage == 0 or self.problem.units[unit][-1] in start.costs[stage].runs)
        return columns

    def read(self, stages: Stages, values: np.ndarray, threshold: float = 0.5) -> Solution:
        """The solution that column values say."""
        keep = [stages.handed] * len(self.problem.backward)
        for (stage, value), column in self.keep.items():
            if values[column] >= threshold:
                keep[stage] |= 1 << value
        return Solution(stages, keep)
