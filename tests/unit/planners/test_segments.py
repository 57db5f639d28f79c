"""Segments: what crosses a cut is kept, a stretch runs again when backward reaches it, cuts are chosen for a budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from step_player import Player
from tilegrad.ir import Graph, Phase
from tilegrad.planners import plan_keep
from tilegrad.planners.segments import best_segments, plan_segments, plan_sqrt, segment, sqrt_cuts
from tilegrad.planners.stages.problem import make_problem
from tilegrad.planners.stages.stages import Stages
from tilegrad.schedule import check_schedule
from tilegrad.sim.predict import measure_memory
from training_graphs import chain_graph, node_times, some, training_graphs


@pytest.mark.parametrize(
    ("nodes", "cuts"), [(1, ()), (2, ()), (3, (2,)), (9, (3, 6)), (16, (4, 8, 12)), (10, (3, 7)), (0, ())]
)
def test_about_as_many_stretches_as_nodes_in_each(nodes: int, cuts: tuple[int, ...]) -> None:
    assert sqrt_cuts(make_problem(chain_graph([10] * nodes) if nodes else Graph((), ()), node_times_of(nodes))) == cuts


def node_times_of(nodes: int) -> dict[str, float]:
    return {f"{kind}{i}": 1.0 for kind in "fb" for i in range(nodes)}


def test_each_stretch_but_the_last_runs_again() -> None:
    """Nine nodes in three stretches: the value before a cut is kept, so its node need not run again."""
    graph = chain_graph([10] * 9)
    schedule = plan_sqrt(graph, node_times(graph))
    played = Player(graph).play(schedule)
    assert played.reruns == ("f3", "f4", "f0", "f1")
    # x, the cuts v2 and v5, one stretch (v6 to v8) and a gradient: 1 + 20 + 30 + 10
    assert played.peak_bytes == 61 < measure_memory(plan_keep(graph)).peak_bytes == 101


def test_without_cuts_everything_is_kept() -> None:
    problem = make_problem(graph := chain_graph([10] * 5), node_times(graph))
    solution = segment(Stages(problem), ())
    assert solution.seconds == 0
    assert solution.peak == measure_memory(plan_keep(graph)).peak_bytes


@some(50)
@given(training_graphs(), st.lists(st.integers(1, 7), unique=True, max_size=4))
def test_any_cuts_give_a_legal_plan(graph: Graph, cuts: list[int]) -> None:
    problem = make_problem(graph, node_times(graph))
    solution = segment(Stages(problem), tuple(sorted(c for c in cuts if c < len(problem.forward))))
    schedule = plan_sqrt(graph, node_times(graph))
    check_schedule(schedule)
    runs = problem.runs(solution.again)
    assert [n for n in runs if graph.node[n].phase is Phase.BACKWARD] == list(problem.backward)
    assert Player(graph).play(schedule).peak_bytes == measure_memory(schedule).peak_bytes


@some(40)
@given(training_graphs(), st.floats(0, 1))
def test_the_best_cuts_fit_the_budget(graph: Graph, share: float) -> None:
    problem, plain = make_problem(graph, node_times(graph)), measure_memory(plan_keep(graph)).peak_bytes
    least = best_segments(Stages(problem), 0, 50_000).peak
    assert least <= plain
    budget = int(least + share * (plain - least))
    found = plan_segments(graph, node_times(graph), budget, work=50_000)
    assert found is not None
    check_schedule(found)
    assert Player(graph).play(found).peak_bytes <= budget
    if budget >= plain:
        assert found.runs == plan_keep(graph).runs


def test_a_budget_that_no_cuts_meet() -> None:
    graph = chain_graph([10] * 9)
    assert plan_segments(graph, node_times(graph), 40) is None


def test_graphs_without_a_backward_pass() -> None:
    graph = chain_graph([10] * 3)
    forward = Graph(graph.values[:4], graph.nodes[:3])
    assert plan_segments(forward, node_times(graph), 10**9) is None
    assert plan_sqrt(forward, node_times(graph)).runs == ("f0", "f1", "f2")
