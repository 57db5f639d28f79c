"""Two profiles as bars, and the timeline stacked by module."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_pages import OPERATORS, PROFILE, profile_page
from tabs import Open, tip

from tilegrad.analysis import analyze
from tilegrad.analysis.comparison import compare_plans, compare_profiles
from tilegrad.profile import Profile, Span
from tilegrad.report.profile_page import comparison_page


def faster() -> Profile:
    operators = tuple(op if op.type != "conv2d_backward" else replace(op, device=Span(4e-3, 6e-3)) for op in OPERATORS)
    return replace(PROFILE, name="faster", operators=operators)


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"width": 500}])
def test_bars_come_first(open_page: Open, options: dict[str, object]) -> None:
    both = analyze(PROFILE), analyze(faster())
    tab = open_page(comparison_page(compare_profiles(*both), both), **options)
    assert tab.locator("main h2").first.inner_text() == "Time"
    labels = [bar.get_attribute("aria-label") for bar in tab.locator(".bars canvas").all()]
    assert "conv2d_backward: before 4.00 ms, after 2.00 ms (−50.0%)" in labels
    assert "device waits: before –, after –" in labels  # unknown is no figure
    assert "peak: before 416MiB, after 416MiB (+0.0%)" in labels
    assert tab.evaluate("document.documentElement.scrollWidth") <= tab.viewport_size["width"]
    assert tab.locator("#memory").is_visible() and tab.locator("#tables h2").count() == 5


def test_bars_of_plans_are_known_to_two_figures(open_page: Open) -> None:
    before, after = ({"plan": {"time_s": time}, "plain": {}, "candidates": []} for time in (0.26, 0.59))
    tab = open_page(comparison_page(compare_plans(("a", "b"), before, after)))
    labels = [bar.get_attribute("aria-label") for bar in tab.locator(".bars canvas").all()]
    assert "plan time: before 260 ms, after 590 ms (+130%)" in labels
    assert "2.3" in tab.locator("#tables tr", has_text="plan time").inner_text()


def test_the_timeline_by_module(open_page: Open) -> None:
    tab = open_page(profile_page())
    tab.select_option("#view", label="module")
    tab.locator("#timeline-chart").focus()
    tab.keyboard.press("Home")
    assert tip(tab, "timeline")[:2] == ["down", "1 runs, 1.00 ms"]
    tab.keyboard.press("ArrowDown")
    assert tip(tab, "timeline")[0] == "down.0"
    tab.keyboard.press("ArrowDown")
    assert tip(tab, "timeline")[0] == "conv a"
    tab.select_option("#colour", label="type")
    tab.select_option("#view", label="lane")
    tab.locator("#timeline-chart").focus()
    tab.keyboard.press("Home")
    assert tip(tab, "timeline")[0] == "conv a"


def test_no_modules_no_view_by_module(open_page: Open) -> None:
    bare = tuple(replace(op, module="") for op in OPERATORS)
    assert open_page(profile_page(operators=bare)).locator("#view-label").is_hidden()


def test_source_lines(open_page: Open) -> None:
    written = tuple(replace(op, source="model.py:12" if op.type == "conv2d" else "") for op in OPERATORS)
    tab = open_page(profile_page(operators=written))
    assert "model.py:12" in tab.inner_text("#operators-table") and "written in" in tab.inner_text("#operators-table")
    tab.locator("#timeline-chart").focus()
    tab.keyboard.press("Home")
    assert "model.py:12" in tip(tab, "timeline")
