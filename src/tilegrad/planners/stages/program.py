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
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from ...errors import InputError
from ...progress import stop, tick
from .problem import StageProblem
from .stages import Solution, Stages

# Numbers near one are kind to solvers: bytes are counted in thousandths of the budget, seconds in hundredths of a plain
# step, and what is less than a millionth of the budget is nothing.
BUDGET, STEP, NOTHING = 1000.0, 100.0, 1e-6
ROUNDING = 1e-8  # of the budget: what a solver may overlook
INTERRUPTED = "Interrupted"
Term = tuple[int, float]


@dataclass
class Program:
    """Columns and rows, ready for a solver."""

    problem: StageProblem
    budget: int
    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[list[Term], float]] = field(default_factory=list)  # sum of terms <= bound
    keep: dict[tuple[int, int], int] = field(default_factory=dict)  # (stage, value) -> column
    run: dict[tuple[int, int], int] = field(default_factory=dict)  # (stage, unit) -> column

    def __post_init__(self) -> None:
        problem = self.problem
        self.unit = {i: k for k, nodes in enumerate(problem.units) for i in nodes}
        self.unit_bytes = BUDGET / self.budget
        self.unit_seconds = STEP / problem.base_seconds
        self.seconds = [self.unit_seconds * sum(problem.seconds[i] for i in nodes) for nodes in problem.units]
        matters = self._matters()
        for stage in range(len(problem.backward)):
            self._add_stage(stage, matters[stage], matters[stage + 1])

    def stricter(self) -> Program:
        """The same with less room, so that what counts as nothing fits beside the rest."""
        nothing = sum(size for size in self.problem.bytes if size < NOTHING * self.budget)
        return Program(self.problem, max(1, self.budget - nothing - int(ROUNDING * self.budget)))

    def _matters(self) -> list[set[int]]:
        """Stage -> the units that this stage or a later one may still have to run."""
        problem, found = self.problem, [set[int]()]
        for needs in reversed(problem.needs):
            units, stack = set(found[-1]), [problem.maker[v] for v in needs]
            while stack:
                unit = self.unit[stack.pop()]
                if unit not in units:
                    units.add(unit)
                    stack += [problem.maker[v] for i in problem.units[unit] for v in problem.reads[i]]
            found.append(units)
        return found[::-1]

    def _column(self, *, cost: float = 0.0, low: float = 0.0, high: float = 1.0, whole: bool = False) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def _at_most(self, terms: list[Term], bound: float = 0.0) -> None:
        merged: dict[int, float] = {}  # a column twice in a row sends the solver's presolve round in circles
        for column, factor in terms:
            merged[column] = merged.get(column, 0.0) + factor
        self.rows.append((list(merged.items()), bound))

    def _add_stage(self, stage: int, units: set[int], later: set[int]) -> None:
        problem = self.problem
        if stage == 0:
            units = set(range(len(problem.units)))  # the forward pass runs everything
        for value, maker in enumerate(problem.maker):
            used = problem.last_need[value] > stage or any(self.unit[i] in later for i in problem.readers[value])
            if value in problem.kept:
                if stage == 0:
                    self.keep[stage, value] = self._column(low=1.0)
            elif self.unit[maker] in later and used and value not in problem.fused:
                self.keep[stage, value] = self._column(whole=True)
        for unit in sorted(units):
            free = stage > 0
            self.run[stage, unit] = self._column(
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
            self._at_most(terms, (self.budget - held - problem.before[stage]) * self.unit_bytes)
        self._at_most(at_end, (self.budget - held - problem.during[stage]) * self.unit_bytes)

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
                self._at_most([(kept, 1.0), (run, 1.0)], 1.0)  # nobody makes what is there
            for slot in slots:
                if slot < maker:
                    bytes_at[slot].append((kept, size))
        start = maker
        readers = [i for i in problem.readers[value] if (stage, self.unit[i]) in self.run]
        if not readers or len(problem.makes[maker]) > 1:
            readers.insert(0, maker)  # it may be made beside what is wanted, and vanish at once
        for reader in readers:
            alive = self._segment(have, slots, start, reader, size, bytes_at)
            self._at_most([(self.run[stage, self.unit[reader]], 1.0), (alive, -1.0)])
            if start == maker < reader:
                self._at_most([(run, 1.0), (alive, -1.0)])  # it is there while it is made
            have, start = [(alive, -1.0)], reader + 1
        last = self._segment(have, slots, start, inf, size, bytes_at)
        at_end.append((last, size))
        if needed:
            self.low[last] = 1.0
        elif keep is None:
            self.high[last] = 0.0
        if keep is not None:
            self._at_most([(keep, 1.0), (last, -1.0)])

    def _segment(
        self,
        have: list[Term],
        slots: Sequence[int],
        first: int,
        last: float,
        size: float,
        bytes_at: dict[int, list[Term]],
    ) -> int:
        alive = self._column()
        self._at_most([(alive, 1.0), *have])
        for slot in slots:
            if first <= slot <= last:
                bytes_at[slot].append((alive, size))
        return alive

    # -- solving -------------------------------------------------------------------------------------------------------

    def relax(self, seconds: float) -> Solved:
        """The linear relaxation: a bound on the seconds, and column values between 0 and 1."""
        solver = self._solver(seconds, relaxed=True)
        solver.run()
        info = solver.getInfo()
        status = solver.modelStatusToString(solver.getModelStatus())
        if status != "Optimal":
            return Solved(status, None, 0.0)
        values = np.array(solver.getSolution().col_value)
        return Solved(status, values, float(info.objective_function_value) / self.unit_seconds)

    def solve(self, seconds: float, gap: float, start: Solution | None) -> Solved:
        """The best solution in so many seconds, and what is proved of it."""
        solver = self._solver(seconds, relaxed=False)
        solver.setOptionValue("mip_rel_gap", gap)
        if start is not None:
            self._warm(solver, start)
        interrupted = _run(solver)
        info = solver.getInfo()
        status = INTERRUPTED if interrupted else solver.modelStatusToString(solver.getModelStatus())
        found = info.primal_solution_status == 2
        values = np.array(solver.getSolution().col_value) if found else None
        return Solved(
            status, values, float(info.mip_dual_bound) / self.unit_seconds if found or status != "Infeasible" else inf
        )

    def _solver(self, seconds: float, *, relaxed: bool) -> Any:
        highspy = import_highs()
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.rows)
        model.col_cost_, model.offset_ = np.array(self.cost), STEP
        model.col_lower_, model.col_upper_ = np.array(self.low), np.array(self.high)
        model.row_lower_, model.row_upper_ = np.full(len(self.rows), -inf), np.array([b for _, b in self.rows])
        starts, columns, factors = [0], list[int](), list[float]()
        for terms, _ in self.rows:
            columns += [column for column, _ in terms]
            factors += [factor for _, factor in terms]
            starts.append(len(columns))
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_, matrix.index_, matrix.value_ = np.array(starts), np.array(columns), np.array(factors)
        if not relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[whole] for whole in self.whole]
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("time_limit", float(seconds))
        solver.passModel(model)
        return solver

    def _warm(self, solver: Any, start: Solution) -> None:
        """Give the solver the binaries of a solution; it completes the rest."""
        columns = {c: float(start.keep[stage] >> value & 1) for (stage, value), c in self.keep.items()}
        for (stage, unit), c in self.run.items():
            columns[c] = float(stage == 0 or self.problem.units[unit][-1] in start.costs[stage].runs)
        solver.setSolution(len(columns), np.array(list(columns), dtype=np.int32), np.array(list(columns.values())))

    def read(self, stages: Stages, values: np.ndarray, threshold: float = 0.5) -> Solution:
        """The solution that column values say."""
        keep = [stages.handed] * len(self.problem.backward)
        for (stage, value), column in self.keep.items():
            if values[column] >= threshold:
                keep[stage] |= 1 << value
        return Solution(stages, keep)


@dataclass(frozen=True)
class Solved:
    """What the solver gave: its status, column values where it found a solution, and a bound on the seconds."""

    status: str
    values: np.ndarray | None
    bound: float


def _run(solver: Any) -> bool:
    """Solve in a thread, so that Ctrl-C stops the search and not the program. Was it stopped so?"""
    solver.HandleKeyboardInterrupt = True
    solver.startSolve()
    interrupted = False
    while True:
        try:
            while not solver.wait(0.1)[0]:
                tick()
            return interrupted
        except KeyboardInterrupt:
            interrupted = True
            solver.cancelSolve()
            stop()


def import_highs() -> Any:
    try:
        import highspy
    except ImportError:
        raise InputError("the recompute planner needs the solver highspy", hint="pip install highspy") from None
    return highspy
