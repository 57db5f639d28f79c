"""Recompute: as good as brute force on tiny graphs, honest about solvers that are missing or stopped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keep_sets import KeepSets
from step_player import Player
from tilegrad.ir import Graph, Phase
from tilegrad.planners import Effort, plan_keep
from tilegrad.planners.recompute import plan_recompute, schedule_reruns
from tilegrad.planners.stages.evict import smallest_peak
from tilegrad.planners.stages.model import Solved
from tilegrad.planners.stages.outline import Outline
from tilegrad.planners.stages.problem import make_problem
from tilegrad.planners.stages.program import Program
from tilegrad.planners.stages.search import RecomputeSearch
from tilegrad.planners.stages.stages import Solution, Stages, keep_all
from tilegrad.schedule import Schedule, check_schedule
from tilegrad.sim.predict import measure_memory
from training_graphs import chain_graph, node_times, seeded_graph, some, training_graphs

HEURISTIC, EXACT = Effort(work=50_000, nodes=0), Effort(work=50_000, gap=1e-6)


def extra(schedule: Schedule | None, seconds: Mapping[str, float]) -> float | None:
    """Seconds of what runs again."""
    return None if schedule is None else sum(seconds[node] for node in schedule.runs) - sum(seconds.values())


def check_fits(schedule: Schedule | None, budget: int) -> None:
    if schedule is not None:
        check_schedule(schedule)
        assert Player(schedule.graph).play(schedule).peak_bytes <= budget


def check_program(graph: Graph, budget: int, best: float | None) -> None:
    """The program by itself, without the heuristic and what it repairs."""
    problem = make_problem(graph, node_times(graph))
    if budget < max(problem.before + problem.during):
        return
    program = Program(problem, budget)
    solved = program.solve(10_000, 0.0)
    assert (solved.values is None) == (best is None)
    if solved.values is not None:
        found = program.read(Stages(problem), solved.values)
        assert (found.peak <= budget, found.seconds) == (True, best)


def check_against_brute_force(graph: Graph, share: float) -> None:
    seconds = node_times(graph)
    brute = KeepSets(graph, seconds)
    least, plain = brute.least_peak(), measure_memory(plan_keep(graph)).peak_bytes
    assert least <= smallest_peak(Stages(make_problem(graph, seconds))).peak
    for budget in {least - 1, least, int(least + share * (plain - least))}:
        best = brute.least_seconds(budget)
        check_program(graph, budget, best)
        exact = plan_recompute(graph, seconds, budget, EXACT)
        check_fits(exact, budget)
        assert extra(exact, seconds) == best
        quick = plan_recompute(graph, seconds, budget, HEURISTIC)
        check_fits(quick, budget)
        assert quick is None or (best is not None and extra(quick, seconds) >= best)


@some(60)
@given(training_graphs(most=6, values=5), st.floats(0, 1))
def test_the_optimum_is_that_of_brute_force(graph: Graph, share: float) -> None:
    check_against_brute_force(graph, share)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@some(3000, derandomize=False)
@given(training_graphs(most=7, values=6), st.floats(0, 1))
def test_the_optimum_of_thousands_is_that_of_brute_force(graph: Graph, share: float) -> None:
    check_against_brute_force(graph, share)


@some(40)
@given(training_graphs(most=6, values=5, unit=10**7), st.floats(0, 1))
@example(seeded_graph(27, 6, 10**7, 5), 0.5)
@example(seeded_graph(419, 6, 10**7, 5), 0.5)
def test_bytes_beside_megabytes(graph: Graph, share: float) -> None:
    """A solver's rounding hides a few bytes in a hundred million. They cost at most what those bytes less would."""
    seconds, rounding = node_times(graph), 100
    brute = KeepSets(graph, seconds)
    least, plain = brute.least_peak(), measure_memory(plan_keep(graph)).peak_bytes
    for budget in {least + rounding, int(least + rounding + share * (plain - least)), plain - 1, plain - 3}:
        found = plan_recompute(graph, seconds, budget, EXACT)
        check_fits(found, budget)
        worse = brute.least_seconds(budget - rounding)
        if worse is not None:
            assert found is not None and brute.least_seconds(budget) <= extra(found, seconds) <= worse


@some(60)
@given(training_graphs(most=8), st.floats(0, 1))
def test_planners_count_no_less_than_the_simulator(graph: Graph, share: float) -> None:
    problem = make_problem(graph, node_times(graph))
    low, plain = smallest_peak(Stages(problem)).peak, measure_memory(plan_keep(graph)).peak_bytes
    budget = int(low + share * (plain - low))
    found = RecomputeSearch(problem).solve(budget, HEURISTIC)
    assert found is not None and found.gap is not None and found.gap >= 0
    schedule = plan_recompute(graph, node_times(graph), budget, HEURISTIC)
    assert measure_memory(schedule).peak_bytes <= found.solution.peak <= budget


def test_the_smallest_peak_is_a_budget_that_can_be_met() -> None:
    for seed in range(40):
        graph = seeded_graph(seed, 8)
        least = smallest_peak(Stages(make_problem(graph, node_times(graph)))).peak
        check_fits(found := plan_recompute(graph, node_times(graph), least, HEURISTIC), least)
        assert found is not None


@pytest.mark.parametrize("seed", [110, 157, 216])
def test_what_plain_meets_is_never_refused(seed: int) -> None:
    """Where running again needs more than keeping all."""
    graph = seeded_graph(seed, unit=1 << 16)
    plain = measure_memory(plan_keep(graph)).peak_bytes
    check_fits(found := plan_recompute(graph, node_times(graph), plain, HEURISTIC), plain)
    assert found is not None


def test_a_chain_by_hand() -> None:
    """Four values of 10 bytes. Forward, each is there with the one before; backward each is with its gradient and the
    next: keeping all takes 1 + 40 + 10; with 10 less, one value runs again."""
    graph = chain_graph([10] * 4)
    seconds = node_times(graph)
    assert measure_memory(plan_keep(graph)).peak_bytes == 51
    found = plan_recompute(graph, seconds, 41, EXACT)
    check_fits(found, 41)
    assert extra(found, seconds) == 1.0
    assert plan_recompute(graph, seconds, 51, EXACT).runs == plan_keep(graph).runs


def test_what_is_handed_over_is_counted_to_the_end() -> None:
    """The last value, 100 bytes, is there all the time: it bounds every plan, though no late node reads it."""
    graph = chain_graph([10, 10, 10, 100], handed=True)
    seconds = node_times(graph)
    brute = KeepSets(graph, seconds)
    for budget in range(brute.least_peak() - 1, 150, 3):
        assert extra(plan_recompute(graph, seconds, budget, EXACT), seconds) == brute.least_seconds(budget)


@pytest.mark.parametrize("effort", [HEURISTIC, EXACT])
def test_a_graph_that_takes_no_time(effort: Effort) -> None:
    graph = chain_graph([10] * 6, time_s=0.0)
    found = plan_recompute(graph, node_times(graph), 50, effort)
    check_fits(found, 50)
    assert found is not None


@pytest.mark.parametrize("budget", [0, 1, 10])
def test_budgets_below_all_reason(budget: int) -> None:
    graph = chain_graph([100] * 3)
    assert plan_recompute(graph, node_times(graph), budget, EXACT) is None


def test_nothing_runs_again_where_there_is_no_backward_pass() -> None:
    graph = chain_graph([10] * 3)
    forward = Graph(graph.values[:4], tuple(n for n in graph.nodes if n.phase is Phase.FORWARD))
    assert plan_recompute(forward, node_times(graph), 10**9, EXACT) is None


# -- solvers -----------------------------------------------------------------------------------------------------------


def hard_graph() -> tuple[Graph, int]:
    """Where the heuristic's plan is not proved to be the best."""
    graph = chain_graph([10, 70, 30, 90, 20, 60, 40, 80, 50, 10, 70, 30, 90, 20])
    nodes = tuple(replace(n, time_s=1.0 + at % 5) for at, n in enumerate(graph.nodes))
    return replace(graph, nodes=nodes), 380


def test_without_a_solver_the_heuristic_plans_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # importing it raises ImportError
    graph, budget = hard_graph()
    found = plan_recompute(graph, node_times(graph), budget, EXACT)
    check_fits(found, budget)
    assert found is not None
    assert found.notes == ("the recompute planner needs the solver highspy: this is the heuristic's plan",)
    assert plan_recompute(graph, node_times(graph), 100, EXACT) is None


def test_a_solver_that_is_stopped_leaves_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = hard_graph()
    exact = plan_recompute(graph, node_times(graph), budget, EXACT)
    assert exact is not None and exact.notes == ()
    monkeypatch.setattr(Outline, "solve", lambda self, nodes, gap: Solved("Solution limit reached", None, 0.0))
    monkeypatch.setattr(Program, "solve", lambda self, nodes, gap, start: Solved("Solution limit reached", None, 0.0))
    stopped = plan_recompute(graph, node_times(graph), budget, EXACT)
    check_fits(stopped, budget)
    assert stopped is not None and stopped.gap is not None and stopped.gap > 0
    assert stopped.notes == (
        f"the solver was stopped after {EXACT.nodes} nodes of its tree: this is the best plan found",
    )
    assert extra(exact, node_times(graph)) <= extra(stopped, node_times(graph))


def test_a_solvers_answer_that_does_not_fit_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_everything(self: Program, nodes: int, gap: float, start: object) -> Solved:
        return Solved("Optimal", np.ones(len(self.cost)), 0.0)

    monkeypatch.setattr(Program, "solve", keep_everything)
    graph, budget = hard_graph()
    found = plan_recompute(graph, node_times(graph), budget, EXACT)
    check_fits(found, budget)
    assert found is not None and extra(found, node_times(graph)) > 0


# -- however busy the machine is ---------------------------------------------------------------------------------------


@contextmanager
def busy() -> Iterator[None]:
    """Threads that take the time of whoever plans."""
    stop = threading.Event()
    threads = [threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_same_plan_on_a_busy_machine_and_by_a_clock_that_races(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = hard_graph()
    effort = Effort(work=20_000, nodes=3, gap=0.0)
    idle = plan_recompute(graph, node_times(graph), budget, effort)
    with busy():
        found = plan_recompute(graph, node_times(graph), budget, effort)
    assert idle is not None and found is not None and (found.runs, found.gap) == (idle.runs, idle.gap)
    ticks = iter(range(0, 10**12, 10**6))
    for name in ("time", "monotonic", "perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: float(next(ticks)))
    assert plan_recompute(graph, node_times(graph), budget, effort).runs == idle.runs


# -- one search for all budgets ----------------------------------------------------------------------------------------


@some(40)
@given(training_graphs(most=8), st.lists(st.integers(-10, 100), min_size=2, max_size=8))
def test_more_budget_is_never_slower_and_never_refused(graph: Graph, percents: list[int]) -> None:
    search = RecomputeSearch(make_problem(graph, node_times(graph)))
    low, plain = smallest_peak(Stages(search.problem)).peak, measure_memory(plan_keep(graph)).peak_bytes
    best = inf
    for percent in sorted(percents):
        budget = low + (plain - low) * percent // 100
        found = schedule_reruns(search, budget, HEURISTIC)
        check_fits(found, budget)
        assert (found is None) == (budget < low)
        seconds = extra(found, node_times(graph))
        assert seconds is None or seconds <= best
        best = best if seconds is None else seconds


@some(40)
@given(training_graphs(most=8), st.floats(0, 1))
def test_an_outline_is_a_bound(graph: Graph, share: float) -> None:
    """Whichever stages it looks at, no plan is faster."""
    problem = make_problem(graph, node_times(graph))
    low, plain = smallest_peak(Stages(problem)).peak, measure_memory(plan_keep(graph)).peak_bytes
    budget = int(low + share * (plain - low))
    found = RecomputeSearch(problem).solve(budget, EXACT)
    assert found is not None
    if problem.base_seconds > 0:
        looks = range(0, len(problem.backward), 1 + int(3 * share))
        for bound in (
            Outline(problem, budget, looks).relax().bound,
            Outline(problem, budget, looks).solve(99, 0.0).bound,
        ):
            assert bound <= (problem.base_seconds + found.solution.seconds) * (1 + 1e-6)


@some(40)
@given(training_graphs(most=10), st.integers(0, 10**6))
def test_a_trial_says_what_a_move_does(graph: Graph, seed: int) -> None:
    """Only stages that touch the value are walked: the same as all of them anew."""
    stages, chance = Stages(make_problem(graph, node_times(graph))), Random(seed)
    solution = keep_all(stages)
    for _ in range(20):
        value, first = chance.randrange(len(stages.problem.values)), chance.randrange(len(solution.keep))
        if value in stages.problem.kept:
            continue
        kept = solution.keep[first] >> value & 1
        last = first
        while last + 1 < len(solution.keep) and solution.keep[last + 1] >> value & 1 == kept:
            last += 1
        old, budget = Solution(stages, list(solution.keep)), chance.choice(solution.peaks.tolist())
        seconds, overflow, peak = solution.trial(value, first, last, budget, drop=bool(kept))
        solution.apply(value, first, last, drop=bool(kept))
        new = Solution(stages, list(solution.keep))
        assert (solution.costs, solution.touching) == (new.costs, new.touching)
        assert seconds == pytest.approx(new.seconds - old.seconds)
        assert overflow == sum(np.maximum(new.peaks - budget, 0)) - sum(np.maximum(old.peaks - budget, 0))
        assert peak == max(new.peaks[first : last + 2])
