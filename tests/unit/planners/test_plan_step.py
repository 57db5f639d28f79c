"""The full planner: the fastest that fits, errors that name a budget that works, sweeps in which time never rises."""

from __future__ import annotations

import gc
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.errors import BudgetError, InputError
from tilegrad.ir import Graph, check_graph
from tilegrad.planners import (
    Candidate,
    Effort,
    Planner,
    Planning,
    Problem,
    Slack,
    TrainingStep,
    candidates,
    plan_keep,
    plan_step,
    planners,
    sweep,
)
from tilegrad.planners.segments import Segments
from tilegrad.sim.machine import Machine
from tilegrad.sim.offsets import check_layout
from tilegrad.sim.training import forward_part
from training_graphs import chain_graph, seeded_graph, some, training_graphs

UNIT = 1 << 16  # bytes: worth a copy
SLOW_LINK = Machine("slow link", 1e12, 1e12, UNIT / 8, UNIT / 8, None, None)
FAST_LINK = replace(SLOW_LINK, name="fast link", to_host_per_s=1e3 * UNIT, from_host_per_s=1e3 * UNIT)
QUICK = Effort(work=50_000, nodes=0)
WHOLE = ("keep", "segments", "recompute", "offload")  # planners of whole nodes


def steps_of(graph: Graph, machine: Machine = SLOW_LINK, *, hosted: bool = True) -> TrainingStep:
    return TrainingStep(graph, machine, QUICK, hosted)


def named_budget(error: BudgetError) -> int:
    found = re.search(r"the smallest plan found needs \S+ \((\d+) bytes\)", error.what)
    assert found
    return int(found[1])


@some(25)
@given(training_graphs(most=6, unit=UNIT), st.floats(0, 1), st.sampled_from([SLOW_LINK, FAST_LINK]))
def test_the_fastest_candidate_that_fits_is_chosen(graph: Graph, share: float, machine: Machine) -> None:
    steps = steps_of(graph, machine)
    budget = int((0.6 + 0.4 * share) * steps.keep.peak_bytes)
    try:
        planning = plan_step(Problem(budget, steps))
    except BudgetError as error:
        assert named_budget(error) > budget
        return
    fitting = [c for c in planning.candidates if c.peak_bytes <= budget]
    assert planning.chosen in fitting
    assert planning.chosen.time_s == min(c.time_s for c in fitting)
    assert planning.plain is planning.candidates[0] is steps.keep


@pytest.mark.parametrize(("machine", "planner"), [(SLOW_LINK, "recompute"), (FAST_LINK, "offload")])
def test_the_link_decides_between_running_again_and_copying(machine: Machine, planner: str) -> None:
    planning = plan_step(Problem(72 * UNIT, steps_of(seeded_graph(19, unit=UNIT), machine)))
    assert planning.chosen.planner == planner
    assert {c.planner for c in planning.candidates} == set(WHOLE)


def test_without_a_host_nothing_is_copied() -> None:
    planning = plan_step(Problem(72 * UNIT, steps_of(seeded_graph(19, unit=UNIT), FAST_LINK, hosted=False)))
    assert planning.chosen.planner == "recompute"
    assert all(c.host_bytes == 0 and c.planner != "offload" for c in planning.candidates)


@pytest.mark.parametrize("planner", ["auto", "keep"])
def test_where_everything_fits_it_is_kept(planner: str) -> None:
    steps = steps_of(chain_graph([UNIT] * 4))
    planning = plan_step(Problem(steps.keep.peak_bytes, steps), planner=planner)
    assert planning.candidates == (planning.chosen,) == (steps.keep,)


@pytest.mark.parametrize("planner", WHOLE)
def test_a_planner_can_be_named(planner: str) -> None:
    steps = steps_of(chain_graph([UNIT] * 8))
    budget = steps.keep.peak_bytes if planner == "keep" else 7 * UNIT
    planning = plan_step(Problem(budget, steps), planner=planner)
    assert planning.chosen.planner == planner
    assert {c.planner for c in planning.candidates} <= {"keep", planner}


def test_planners_have_names_of_their_own() -> None:
    kind = type("Nameless", (Planner,), {"name": "keep", "propose": lambda self, problem: ()})
    with pytest.raises(InputError, match="has no name of its own: 'keep'"):
        planners()
    del kind
    gc.collect()
    assert "keep" in planners()


def test_a_planner_of_ones_own_is_found_and_may_derive_from_another() -> None:
    kind = type("Twice", (Segments,), {"name": "twice"})
    assert {"segments", "twice"} <= set(planners())
    step = steps_of(chain_graph([UNIT] * 8))
    assert plan_step(Problem(7 * UNIT, step), planner="twice").chosen.planner == "twice"
    del kind
    gc.collect()
    assert "twice" not in planners()


def test_a_planner_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="'fastest' is not a planner") as caught:
        plan_step(Problem(UNIT, steps_of(chain_graph([UNIT]))), planner="fastest")
    assert "keep, segments, recompute, offload, mixed, tile, auto" in str(caught.value)


# -- nothing fits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", [*WHOLE, "auto"])
@pytest.mark.parametrize("seed", range(6))
def test_the_budget_that_an_error_names_works(planner: str, seed: int) -> None:
    steps = steps_of(seeded_graph(seed, unit=UNIT))
    with pytest.raises(BudgetError) as caught:
        plan_step(Problem(1, steps), planner=planner)
    budget = named_budget(caught.value)
    planning = plan_step(Problem(budget, steps), planner=planner)
    assert planning.chosen.peak_bytes <= budget <= steps.keep.peak_bytes
    assert caught.value.hint is not None and caught.value.where
    mib = int(re.match(r'budget="(\d+)MiB"', caught.value.hint)[1])
    assert 0 <= mib * 2**20 - budget < 2**20


def test_an_error_does_not_name_what_only_other_planners_reach() -> None:
    graph = seeded_graph(19, unit=UNIT)
    named = {}
    for planner in (*WHOLE, "auto"):
        with pytest.raises(BudgetError) as caught:
            plan_step(Problem(UNIT, steps_of(graph)), planner=planner)
        named[planner] = named_budget(caught.value)
    assert named["auto"] == named["offload"] < named["recompute"] < named["segments"] < named["keep"]
    assert named["keep"] == steps_of(graph).keep.peak_bytes
    with pytest.raises(BudgetError) as caught:
        plan_step(Problem(UNIT, steps_of(graph, hosted=False)))
    assert named_budget(caught.value) == named["recompute"]


def test_a_planner_without_any_plan() -> None:
    with pytest.raises(BudgetError, match="the planner 'tile' has no plan for this network"):
        plan_step(Problem(UNIT, steps_of(chain_graph([UNIT] * 3))), planner="tile")


@pytest.mark.parametrize("nodes", [0, 2])
def test_graphs_without_a_backward_pass(nodes: int) -> None:
    graph = chain_graph([UNIT] * 2)
    forward = Graph(graph.values[: 1 + nodes], graph.nodes[:nodes])
    steps = steps_of(forward)
    with pytest.raises(BudgetError) as caught:
        plan_step(Problem(UNIT if nodes else 0, steps))
    planning = plan_step(Problem(named_budget(caught.value), steps))
    assert planning.chosen is steps.keep
    assert planning.to_json()["plan"]["extra_time"] == 0


# -- sweeps, slack, candidates -----------------------------------------------------------------------------------------


@some(15)
@given(training_graphs(most=6, unit=UNIT), st.lists(st.integers(0, 100), min_size=2, max_size=5))
def test_time_never_rises_with_the_budget(graph: Graph, percents: list[int]) -> None:
    steps = steps_of(graph)
    with pytest.raises(BudgetError) as caught:
        plan_step(Problem(1, steps))
    low = named_budget(caught.value)
    budgets = [low + (steps.keep.peak_bytes - low) * percent // 100 for percent in percents]
    found = sweep(Problem(0, steps), budgets)
    assert [planning.budget for planning in found] == budgets
    for planning in found:
        assert planning.chosen.peak_bytes <= planning.budget
        assert all(planning.chosen.time_s >= p.chosen.time_s for p in found if p.budget >= planning.budget)


def test_a_sweep_takes_a_plan_for_less_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(chain_graph([UNIT] * 8))
    lucky = plan_step(Problem(7 * UNIT, steps), planner="recompute")

    def unlucky(problem: Problem) -> Planning:
        if problem.budget == 7 * UNIT:
            return lucky
        slow = replace(lucky.chosen, time_s=lucky.chosen.time_s + 1)
        return replace(lucky, budget=problem.budget, chosen=slow, candidates=(slow,))

    monkeypatch.setattr("tilegrad.planners.choose.plan_step", unlucky)
    more, less = sweep(Problem(0, steps), [8 * UNIT, 7 * UNIT])
    assert more.chosen is less.chosen is lucky.chosen
    assert more.budget == 8 * UNIT and more.chosen in more.candidates


def test_a_sweep_goes_on_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, asked = steps_of(chain_graph([UNIT] * 8)), list[int]()

    def plan(problem: Problem) -> Planning:
        asked.append(problem.budget)
        return plan_step(problem)

    monkeypatch.setattr("tilegrad.planners.choose.plan_step", plan)
    least, less, more = sweep(Problem(0, steps), [UNIT, 2 * UNIT, 8 * UNIT])
    assert isinstance(more, Planning) and least is less and isinstance(less, BudgetError)
    assert asked == [8 * UNIT, 2 * UNIT]  # what does not fit in two does not fit in one
    assert plan_step(Problem(less.least_bytes, steps)).chosen.peak_bytes <= less.least_bytes


def test_a_sweep_in_which_nothing_fits() -> None:
    with pytest.raises(BudgetError, match="nothing fits 128KiB"):
        sweep(Problem(0, steps_of(chain_graph([UNIT] * 8))), [UNIT, 2 * UNIT])


@some(200)
@given(st.floats(0, 0.5), st.integers(0, 10**12), st.integers(0, 10**12))
def test_slack_names_the_least_budget(share: float, outside: int, peak: int) -> None:
    slack = Slack(share, outside)
    budget = slack.around(peak)
    assert slack.inside(budget) >= peak
    assert budget == 0 or slack.inside(budget - 1) < peak


def test_no_slack_is_no_slack() -> None:
    assert Slack(0.0, 0).around(2_538_992_144) == 2_538_992_144 == Slack(0.0, 0).inside(2_538_992_144)


def test_whole_nodes_leave_free_what_lies_between_tensors() -> None:
    steps, budget = steps_of(chain_graph([UNIT] * 12), hosted=False), 14 * UNIT
    full = plan_step(Problem(budget, steps), planner="recompute").chosen
    less = plan_step(Problem(budget, steps, between=4 * UNIT), planner="recompute").chosen
    assert budget - 4 * UNIT < full.peak_bytes <= budget
    assert less.peak_bytes <= budget - 4 * UNIT


def test_a_candidate_as_data() -> None:
    planning = plan_step(Problem(7 * UNIT, steps_of(chain_graph([UNIT] * 8))))
    data = planning.to_json()
    chosen = planning.chosen
    assert data["plan"] == chosen.to_json(planning.plain.time_s, offsets=True)
    assert data["plan"]["extra_time"] == chosen.time_s / planning.plain.time_s - 1
    assert data["plan"]["offset_bytes"] == chosen.memory.resident_bytes + chosen.layout.range_bytes
    assert (data["plain"]["planner"], data["plain"]["extra_time"], data["plain"]["host_bytes"]) == ("keep", 0, 0)
    assert [c["fits"] for c in data["candidates"]] == [c.peak_bytes <= 7 * UNIT for c in planning.candidates]
    assert chosen.schedule.predicted["total_bytes"] == chosen.peak_bytes


@some(20)
@given(training_graphs(most=6, unit=UNIT))
def test_addresses_lie_apart(graph: Graph) -> None:
    problem = Problem(10**9, steps_of(graph))
    for candidate in (c for name in ("segments", "recompute") for c in candidates(problem, planners()[name])):
        if candidate.memory.lifetimes:
            check_layout(candidate.memory.lifetimes, candidate.layout)
            assert candidate.peak_bytes <= candidate.offset_bytes


def test_only_what_is_proved_claims_a_gap() -> None:
    """Copies for a plan that is optimal for another budget are not optimal for this one."""
    planning = plan_step(Problem(6 * UNIT, steps_of(chain_graph([UNIT] * 8))))
    gaps = {c.planner: c.schedule.gap for c in planning.candidates}
    assert gaps["recompute"] is not None
    assert gaps["offload"] is gaps["segments"] is gaps["keep"] is None


def test_notes_of_the_planner_reach_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    planning = plan_step(Problem(7 * UNIT, steps_of(chain_graph([UNIT] * 8))), planner="recompute")
    assert list(planning.chosen.notes) == planning.to_json()["plan"]["notes"]
    assert "needs the solver highspy" in planning.chosen.notes[0]


def test_an_illegal_schedule_is_not_judged() -> None:
    graph = chain_graph([UNIT] * 2)
    broken = replace(plan_keep(graph), steps=plan_keep(graph).steps[:-1])
    with pytest.raises(Exception, match="schedule breaks rule S6"):
        steps_of(graph).judge(broken, "")


@some(30)
@given(training_graphs())
def test_the_forward_part_of_a_training_graph(graph: Graph) -> None:
    forward = forward_part(graph)
    check_graph(forward)
    assert [n.name for n in forward.nodes] == [n.name for n in graph.nodes if n.phase == "forward"]
    assert forward.outputs and not set(forward.outputs) & {name for n in forward.nodes for name in n.reads}


def test_candidates_say_what_sets_them_apart() -> None:
    planning = plan_step(Problem(7 * UNIT, steps_of(chain_graph([UNIT] * 8))))
    details = [(c.planner, c.detail) for c in planning.candidates]
    assert len(set(details)) == len(details)
    assert all(isinstance(c, Candidate) and c.detail for c in planning.candidates)
