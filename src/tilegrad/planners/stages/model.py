"""A program of columns and rows for the solver HiGHS, whole numbers included or relaxed.

Solvers are stopped by what they have done, never by a clock: the same program gives the same answer on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ...errors import InputError
from ...progress import stop, tick
from .problem import StageProblem

# Numbers near one are kind to solvers: bytes are counted in thousandths of the budget, seconds in hundredths of a plain
# step.
BUDGET, STEP = 1000.0, 100.0
INTERRUPTED = "Interrupted"
MOST_ITERATIONS = 100_000  # of the simplex method, for one relaxation; the largest seen take a tenth of that
Term = tuple[int, float]


@dataclass(frozen=True)
class Solved:
    """What the solver gave: its status, column values where it found a solution, and a bound on the seconds."""

    status: str
    values: np.ndarray | None
    bound: float
    iterations: int = 0  # of the simplex method


class Model:
    """Columns and rows that say what a step of least seconds is."""

    def __init__(self, problem: StageProblem, budget: int):
        self.problem, self.budget = problem, budget
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[list[Term], float]] = []  # sum of terms <= bound
        self.unit_bytes = BUDGET / budget
        self.unit_seconds = STEP / problem.base_seconds
        self.seconds = [self.unit_seconds * sum(problem.seconds[i] for i in nodes) for nodes in problem.units]

    def column(self, *, cost: float = 0.0, low: float = 0.0, high: float = 1.0, whole: bool = False) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def at_most(self, terms: list[Term], bound: float = 0.0) -> None:
        merged: dict[int, float] = {}  # a column twice in a row sends the solver's presolve round in circles
        for column, factor in terms:
            merged[column] = merged.get(column, 0.0) + factor
        self.rows.append((list(merged.items()), bound))

    def relax(self) -> Solved:
        """The linear relaxation: a bound on the seconds, and column values between 0 and 1."""
        solver = self._solver(relaxed=True)
        solver.setOptionValue("simplex_iteration_limit", MOST_ITERATIONS)
        solver.run()
        status = solver.modelStatusToString(solver.getModelStatus())
        if status != "Optimal":
            return Solved(status, None, inf if status == "Infeasible" else 0.0)
        info, values = solver.getInfo(), np.array(solver.getSolution().col_value)
        bound = float(info.objective_function_value) / self.unit_seconds
        return Solved(status, values, bound, info.simplex_iteration_count)

    def solve(self, nodes: int, gap: float, start: Mapping[int, float] | None = None) -> Solved:
        """The best solution in a tree of so many nodes, and what is proved of it. `start`: columns of a solution."""
        solver = self._solver(relaxed=False)
        solver.setOptionValue("mip_rel_gap", gap)
        solver.setOptionValue("mip_max_nodes", nodes)
        if start:
            solver.setSolution(len(start), np.array(list(start), dtype=np.int32), np.array(list(start.values())))
        interrupted = _run(solver)
        info = solver.getInfo()
        status = INTERRUPTED if interrupted else solver.modelStatusToString(solver.getModelStatus())
        found = info.primal_solution_status == 2
        values = np.array(solver.getSolution().col_value) if found else None
        bound = float(info.mip_dual_bound) / self.unit_seconds if found or status != "Infeasible" else inf
        return Solved(status, values, bound, info.simplex_iteration_count)

    def _solver(self, *, relaxed: bool) -> Any:
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
        solver.passModel(model)
        return solver


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
