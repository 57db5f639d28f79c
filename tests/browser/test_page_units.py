"""Bytes and seconds on a page: as on the terminal, to the last digit, and in the units of who asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from playwright.sync_api import Page as Tab
from sample_pages import PROFILE, small_page
from tabs import Open, hover, shown_range, time_x
from test_plan_report import plan

from tilegrad.profile import Profile
from tilegrad.report.curve import make_curve
from tilegrad.report.page import Column, Drawn, Page, Table
from tilegrad.report.plan_html import plan_page
from tilegrad.units import (
    MEASURED,
    PREDICTED,
    format_bytes,
    format_extra,
    format_predicted,
    format_ratio,
    format_seconds,
    units_like,
)

BYTES = (
    0, 1, 999, 1000, 1023, 1024, 2176, 1152, 1088, 999_499, 999_500, 999_999, 2**20 - 1, 2**20, 2**31, 2**40 + 2**39,
    int(9.996 * 2**20), int(99.96 * 2**20), 9_995_000, 9_996_000, 600_000_000, 2**53, 2**60, -(2**31), -2176, 12.5,
)  # fmt: skip
SECONDS = (
    0.0, -0.0, 1.0, 0.9996, 0.9995, 0.9994, 0.995, 0.996, 0.999, 0.125, 0.375, 0.0125, 0.5432, 0.0228, 9.996, 99.96,
    99.5, 84.0, 105.0, 115.0, 125.0, 1234.5, 12345.6, 3.1e-5, 1e-6, 1e-9, 4e-10, 2.5e-3, -0.0375, 1e-13,
)  # fmt: skip
FIGURES = r"\d[\d.]* ?"  # before a unit


def random_sizes() -> list[float]:
    """Sixteenths as well: what lies just between two is where languages round differently."""
    dice = Random(0)
    sizes = [float(int(2 ** dice.uniform(0, 50))) for _ in range(2000)]
    return sizes + [dice.randrange(1, 2**14) * 2.0 ** dice.randrange(6, 40) / 16 for _ in range(2000)]


def random_times() -> list[float]:
    dice = Random(1)
    return [10 ** dice.uniform(-10, 5) for _ in range(2000)] + [dice.randrange(1, 2**14) / 2**13 for _ in range(2000)]


def differ(tab: Tab, script: str, python: Callable[[float], str], values: list[float]) -> list[tuple[float, str, str]]:
    found = tab.evaluate(f"(values) => values.map((value) => {script}(value))", values)
    return [
        (v, ours, theirs) for v, ours, theirs in zip(values, map(python, values), found, strict=True) if ours != theirs
    ]


@pytest.mark.parametrize("decimal", [False, True])
def test_python_and_the_page_write_figures_alike(open_page: Open, decimal: bool) -> None:
    tab = open_page(Page("units", decimal=decimal))
    with units_like(decimal):
        assert not differ(tab, "formatBytes", format_bytes, [*map(float, BYTES), *random_sizes()])
    times = [*SECONDS, *random_times()]
    assert not differ(tab, "formatSeconds", format_seconds, times)
    assert not differ(tab, "formatPredicted", format_predicted, times)
    assert not differ(tab, "formatShare", "{:.1%}".format, [k / 16 / 100 for k in range(-50, 2000)])
    shares = [k / 16 / 100 for k in range(-1600, 40_000, 7)]
    assert not differ(tab, "formatExtra", format_extra, [*shares, 0.995, 0.994, 9.996, -0.0, 1e5, float("inf")])
    for figures in (PREDICTED, MEASURED):
        assert not differ(tab, f"((n) => formatRatio(n, {figures}))", partial(format_ratio, figures=figures), shares)
    assert tab.evaluate("[formatSeconds(NaN), formatPredicted(Infinity), show(null, 'bytes')]") == ["–"] * 3


@pytest.mark.parametrize("decimal", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_plan_is_told_in_the_units_of_its_budget(open_page: Open, decimal: bool, several: bool) -> None:
    """In what is seen, in tips, and in what is read aloud."""
    planning = plan("offload")
    with units_like(decimal):
        curve = make_curve([planning.budget] * 2, [planning] * 2) if several else None
        page = plan_page(planning, curve)
    tab = open_page(page)  # what is drawn later knows its units, too
    told = [tab.inner_text("body")]
    for chart in ("memory", "map", "timeline"):
        hover(tab, chart, time_x(tab, chart, 4), 120)
        told.append(tab.inner_text("body"))
    told += tab.evaluate("[...document.querySelectorAll('*')].map((e) => ['aria-label', 'aria-valuetext', 'title']"
                         ".map((name) => e.getAttribute(name) ?? '').join(' '))")  # fmt: skip
    told += tab.locator("svg text").all_text_contents()
    text = "\n".join(told)
    right, wrong = (r"[kMG]B\b", r"[KMG]iB\b") if decimal else (r"[KMG]iB\b", r"[kMG]B\b(?!/s)")
    assert re.search(FIGURES + right, text) and not re.findall(FIGURES + wrong, text)


def test_predicted_times_have_two_figures_on_a_page(open_page: Open) -> None:
    planning = plan("offload")
    tab = open_page(plan_page(planning))
    shown = format_predicted(planning.chosen.time_s)
    assert shown in tab.inner_text("#facts") and shown in tab.inner_text("#tables tr.marked")
    texts = [tab.inner_text(f"#{part}") for part in ("facts", "tables", "memory-caption", "peak", "operators", "range")]
    times = re.findall(r"\b([\d.]+) (?:s|ms|µs)\b", "\n".join(texts))
    assert len(times) > 20 and all(len(time.replace(".", "").strip("0")) <= 2 for time in times), times
    tips = "\n".join(hover(tab, "timeline", time_x(tab, "timeline", 4), 43))
    assert re.search(r"for \d+\.\d+ ms|for \d{3} (ms|µs)", tips), tips


@pytest.mark.parametrize(
    ("form", "whole", "moment"), [("recorded", "8.00 ms", "4.00 ms"), ("simulated", "8.0 ms", "4.0 ms")]
)
def test_a_page_says_one_figure_in_one_way(open_page: Open, form: str, whole: str, moment: str) -> None:
    profile = Profile("small", form, PROFILE.operators, PROFILE.blocks, PROFILE.clock)
    tab = open_page(small_page(profiles=(Drawn("whole", profile),)))
    assert shown_range(tab) == f"all of {whole}"
    assert f"is at {moment}" in tab.inner_text("#memory-caption") and f"at {moment}." in tab.inner_text("#peak-caption")
    heads = tab.locator("#operators thead button").all_text_contents()
    row = tab.locator("#operators tbody tr").first.locator("th, td").all_text_contents()
    assert row[heads.index("time")] == moment


def test_unknown_is_a_dash_and_zero_is_zero(open_page: Open) -> None:
    columns = (Column("name"), Column("size", "bytes"), Column("time", "seconds"), Column("step", "predicted"))
    rows = (("unknown", None, None, float("inf")), ("nothing", 0, 0.0, 0.0))
    tab = open_page(Page("t", tables=(Table("t", columns, rows),)))
    cells = [row.locator("th, td").all_text_contents() for row in tab.locator("tbody tr").all()]
    assert cells == [["unknown", "–", "–", "–"], ["nothing", "0B", "0 s", "0 s"]]


def test_marks_of_an_axis_can_be_told_apart(open_page: Open) -> None:
    tab = open_page(Page("t"))
    assert tab.evaluate("listTimes(1, 1.011, 5).map(([, text]) => text)") == [
        "1000.0 ms",
        "1002.5 ms",
        "1005.0 ms",
        "1007.5 ms",
        "1010.0 ms",
    ]
    assert tab.evaluate("listSizes(0, 2 ** 30, 4).map(([, text]) => text)") == [
        "0.00GiB",
        "0.25GiB",
        "0.50GiB",
        "0.75GiB",
        "1.00GiB",
    ]
