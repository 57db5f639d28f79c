"""Time against memory: which plans are on the front, what they do in words, and how that is drawn."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tilegrad.errors import BudgetError, InputError
from tilegrad.planners import Candidate, Effort, Planning, Problem, TrainingStep, sweep
from tilegrad.report.curve import Curve, in_words, make_curve
from tilegrad.report.html_data import page_data
from tilegrad.report.plan import print_budgets, print_curve
from tilegrad.report.plan_html import plan_page
from tilegrad.report.plots import save_curve_plot
from tilegrad.sim.machine import find_machine
from training_graphs import chain_graph

UNIT = 1 << 20
BUDGETS = [2 * UNIT, 5 * UNIT, 6 * UNIT, 8 * UNIT]


@pytest.fixture(scope="module")
def curve() -> Curve:
    graph = chain_graph([UNIT] * 8, time_s=0.01)
    steps = TrainingStep(graph, find_machine("v100"), Effort(work=50_000, nodes=0))
    return make_curve(BUDGETS, sweep(Problem(0, steps), BUDGETS))


def printed(curve: Curve, **options: object) -> list[str]:
    console = Console(file=io.StringIO(), width=100, **options)  # type: ignore[arg-type]
    print_budgets(curve, console)
    print_curve(curve, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_front_and_what_is_chosen(curve: Curve) -> None:
    assert isinstance(curve.asked[0][1], BudgetError) and len(curve.plannings) == 3
    assert curve.tightest.budget == 5 * UNIT
    every = {(c.peak_bytes, c.time_s) for p in curve.plannings for c in p.candidates}
    assert {(c.peak_bytes, c.time_s) for c in curve.points} == every
    for point in curve.points:
        faster = [c for c in curve.points if c.peak_bytes <= point.peak_bytes and c.time_s < point.time_s]
        assert (point in curve.front) <= (not faster)
    for planning in curve.plannings:
        (chosen,) = [c for c in curve.points if planning.budget in curve.budgets_of(c)]
        assert chosen.time_s == planning.chosen.time_s
        assert chosen.time_s == min(c.time_s for c in curve.front if c.peak_bytes <= planning.budget)
    low, high = curve.times
    assert all(low <= p.chosen.time_s <= high for p in curve.plannings)


def test_one_candidate_for_several_budgets_is_one_point(curve: Curve) -> None:
    planning = curve.plannings[0]
    again = make_curve(
        [planning.budget, 2 * planning.budget], [planning, replace(planning, budget=2 * planning.budget)]
    )
    assert len(again.points) == len({(c.planner, c.detail) for c in planning.candidates})
    assert again.budgets_of(planning.chosen) == [planning.budget, 2 * planning.budget]


def test_in_words(curve: Curve) -> None:
    words = {c.planner: in_words(c) for c in curve.points}
    assert words["keep"] == "everything kept"
    assert words["recompute"].endswith(" run again") or words["recompute"] == "1 node runs again"
    assert any("to and from the host" in in_words(c) for c in curve.points if c.host_bytes)


def test_the_terminal(curve: Curve) -> None:
    lines = printed(curve)
    assert lines[0].strip().startswith("plans for 4 budgets; plain needs")
    assert sum("nothing fits: the least is " in line for line in lines) == 1
    drawn = [line.partition("┤")[2] for line in lines if "┤" in line]
    assert len(drawn) == 12 and "●" in "".join(drawn) and max(map(len, drawn)) <= 72
    (last,) = [line for line in lines if line.lstrip().startswith("+0%")]
    assert last.endswith(("●", "·", "─"))


def test_a_terminal_without_unicode(curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "encoding", "ascii")
    assert "\n".join(printed(curve)).isascii()


@pytest.mark.parametrize("time_s", [0.0, float("inf"), float("nan")])
def test_times_that_cannot_be(curve: Curve, time_s: float) -> None:
    planning = curve.tightest
    odd = replace(planning.plain, time_s=time_s)
    found = replace(planning, plain=odd, candidates=(odd, *planning.candidates[1:]))
    two = make_curve([planning.budget], [found])
    assert printed(two) and page_data(plan_page(found, two))["scatter"]


def test_one_point_is_no_curve(curve: Curve) -> None:
    plain = replace(curve.tightest, candidates=(curve.plain,), chosen=curve.plain)
    one = make_curve([plain.budget], [plain])
    assert not any("┤" in line for line in printed(one)) and plan_page(plain, one).scatter is None


# -- the report --------------------------------------------------------------------------------------------------------


def test_every_budget_is_in_the_report(curve: Curve) -> None:
    page = plan_page(curve.tightest, curve)
    budgets, candidates = page.tables
    assert [row[0] for row in budgets.rows] == BUDGETS
    assert budgets.rows[0][2] is None and str(budgets.rows[0][3]).startswith("nothing fits, the least is ")
    assert [row[5] for row in budgets.rows[1:]] == [p.chosen.time_s for p in curve.plannings]
    assert len(candidates.rows) == len(curve.points) and candidates.columns[-1].name == "chosen for"
    assert {row[-1] for row in candidates.rows} >= {"5.00MiB", "6.00MiB"}
    assert "and for 3 other budgets" in page.summary and page.budget_bytes == 5 * UNIT
    labels = [drawn.label for drawn in page.profiles]
    assert labels[0] == "chosen plan" and labels[-1] == "plain" and "plan for 6.00MiB" in labels


def test_the_scatter_as_data(curve: Curve) -> None:
    data = page_data(plan_page(curve.tightest, curve))["scatter"]
    assert data["budgets"] == BUDGETS and data["plain_s"] == curve.plain.time_s
    assert [p[:2] for p in data["points"]] == [[c.peak_bytes, c.time_s] for c in curve.points]
    assert sum(p[4] for p in data["points"]) == len(curve.front)
    assert {p[3] for p in data["points"]} >= {"chosen for 5.00MiB", ""}


def test_odd_names_are_cleaned(curve: Curve) -> None:
    odd = replace(curve.tightest.chosen, detail="a\u202eb\x00")
    planning = replace(curve.tightest, chosen=odd, candidates=(curve.plain, odd))
    (text,) = [p[2] for p in page_data(plan_page(planning))["scatter"]["points"] if p[3]]
    assert text.endswith(": a\ufffdb\ufffd")


# -- the plot ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_plot(ending: str, start: bytes, curve: Curve, tmp_path: Path) -> None:
    save_curve_plot(curve, tmp_path / f"curve.{ending}")
    assert (tmp_path / f"curve.{ending}").read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"curve.{ending}"]  # no draft is left


def slow(curve: Curve) -> Planning:
    """With a candidate that is slower than the axis goes."""
    late: Candidate = replace(curve.plain, planner="tile", detail="slow", time_s=100 * curve.plain.time_s)
    return replace(curve.tightest, candidates=(*curve.tightest.candidates, late))


def test_slow_plans_and_odd_names_are_drawn(curve: Curve, tmp_path: Path) -> None:
    planning = slow(curve)
    planning = replace(planning, graph=replace(planning.graph, name=r"$\frac{ </svg><script>"))
    one = make_curve([planning.budget], [planning])
    assert one.times == make_curve([planning.budget], [curve.tightest]).times
    save_curve_plot(one, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    ElementTree.fromstring(text)
    assert "<script>" not in text and any("·" in line for line in printed(one) if line.lstrip().startswith("+"))


def test_without_matplotlib_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilegrad.cli import main

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("tilegrad.cli.plan.sweep", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(InputError, match=r"plots need matplotlib.*\n.*pip install 'tilegrad\[plot\]'"):
        main(
            [
                "plan",
                "resnet18",
                "--input",
                "1x3x8x8",
                "--machine",
                "v100",
                "--plot",
                str(tmp_path / "a.svg"),
                "--debug",
            ]
        )
