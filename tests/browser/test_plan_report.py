"""The report of a plan in a browser: candidates, both curves, addresses, copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tabs import Open, tip

from tilegrad.planners import Candidate, Effort, Planning, Problem, TrainingStep, plan_step, sweep
from tilegrad.report.curve import make_curve
from tilegrad.report.plan_html import plan_page
from tilegrad.schedule import Schedule
from tilegrad.sim.machine import find_machine
from tilegrad.sim.memory import Alive, Memory
from training_graphs import chain_graph

MIB = 2**20


def plan(planner: str) -> Planning:
    graph = chain_graph([8 * MIB, 16 * MIB, 24 * MIB] * 4, time_s=0.01)
    steps = TrainingStep(graph, find_machine("v100"), Effort(work=50_000, nodes=0))
    return plan_step(Problem(int(steps.keep.peak_bytes * 0.6), steps), planner=planner)


@pytest.mark.parametrize(("planner", "kind"), [("offload", "back from the host"), ("recompute", "made again")])
def test_a_plan(open_page: Open, planner: str, kind: str) -> None:
    planning = plan(planner)
    tab = open_page(plan_page(planning))
    memory, chosen = planning.chosen.memory, planning.chosen
    assert memory is not None and f"({chosen.peak_bytes:,} bytes)" in tab.inner_text("#memory-caption")
    assert {kind, "plain", "budget"} <= set(tab.locator("#memory-legend li").all_text_contents())
    assert tab.locator("#tables tr.marked th").inner_text().split() == [planner, "chosen"]
    tab.locator("#map-chart").focus()
    tab.keyboard.press("Home")
    said = []
    for _ in range(len(memory.lifetimes)):
        said.append(tip(tab, "map"))
        tab.keyboard.press("ArrowRight")
    assert sum(kind in lines for lines in said) > 0
    assert {lines[0] for lines in said} >= {"v3", "g3", "parameters, inputs and their gradients"}
    assert tab.locator("#device option").all_text_contents() == ["device", "host"][: 2 if planner == "offload" else 1]


def test_every_step_can_be_reached_with_keys(open_page: Open) -> None:
    planning = plan("recompute")
    tab = open_page(plan_page(planning))
    assert planning.chosen.memory is not None
    chart = tab.locator("#memory-chart")
    chart.focus()
    tab.keyboard.press("Home")
    found = [chart.get_attribute("aria-valuetext")]
    for _ in planning.chosen.memory.device[1:]:
        tab.keyboard.press("ArrowRight")
        found.append(chart.get_attribute("aria-valuetext"))
    assert len(set(found)) == len(found) and f"{planning.chosen.peak_bytes:,} bytes" in "".join(map(str, found))


def test_tiles(open_page: Open) -> None:
    planning = plan("recompute")
    memory = Memory(
        (5 * MIB, 9 * MIB), (0, 0), 9 * MIB, 1, 4 * MIB, 0, (Alive("tile", 5 * MIB, "here"),), (), ("a", "b")
    )
    tiles = Candidate("tile", "4 along h", Schedule(chain_graph([1]), "stream"), 9 * MIB, 1.0, memory=memory)
    tab = open_page(plan_page(replace(planning, candidates=(planning.plain, tiles), chosen=tiles)))
    assert "is in step 2, when tile 'b' runs" in tab.inner_text("#memory-caption") and tab.locator("#map").is_hidden()
    assert tab.locator("#peak tbody tr").count() == 2


def test_time_against_memory(open_page: Open) -> None:
    """Every plan can be pointed at and reached with keys; budgets are lines."""
    graph = chain_graph([8 * MIB, 16 * MIB, 24 * MIB] * 4, time_s=0.01)
    steps = TrainingStep(graph, find_machine("v100"), Effort(work=50_000, nodes=0))
    budgets = [int(steps.keep.peak_bytes * share) for share in (0.5, 0.6, 0.8)]
    curve = make_curve(budgets, sweep(Problem(0, steps), budgets))
    tab = open_page(plan_page(curve.tightest, curve))
    plans = tab.locator("#scatter-svg .plan")
    assert plans.count() == len(curve.points) and tab.locator("#scatter-svg line.budget").count() == 3
    assert tab.locator("#scatter-svg .plan.chosen").count() == len({id(p.chosen) for p in curve.plannings})
    assert tab.locator("#scatter-svg .plan[tabindex='0']").count() == 1
    tab.locator("#scatter-svg .plan[tabindex='0']").focus()
    tab.keyboard.press("Home")
    for at, point in enumerate(curve.points):
        lines = tip(tab, "scatter")
        assert lines[0] == f"{point.planner}: {point.detail}" and f"({point.peak_bytes:,} bytes)" in lines[1]
        assert plans.nth(at).get_attribute("aria-label") == ", ".join(lines)
        assert any(line.startswith("chosen for") for line in lines) == bool(curve.budgets_of(point))
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Tab")
    assert tip(tab, "scatter") == []
    assert tab.locator("#tables h2").all_text_contents() == ["Budgets", "Candidates"]
