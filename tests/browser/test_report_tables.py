"""Tables of the report: units, sorting, searching, turning pages."""

from __future__ import annotations

from dataclasses import replace

from playwright.sync_api import Page as Tab
from sample_pages import OPERATORS, PROFILE, small_page
from tabs import Open

from tilegrad.report.page import Drawn, Page


def column(tab: Tab, table: str, at: int) -> list[str]:
    return tab.locator(f"{table} tbody tr > :nth-child({at})").all_text_contents()


def many(count: int) -> Page:
    ops = tuple(replace(OPERATORS[1], id=str(i), name=f"op {i}", module=f"part{i % 7}") for i in range(count))
    return small_page(profiles=(Drawn("", replace(PROFILE, operators=ops, blocks=(), clock=())),))


def test_figures_have_their_units(open_page: Open) -> None:
    tab = open_page(small_page())
    rows = tab.locator("#tables tbody tr")
    cells = [row.locator("th, td").all_text_contents() for row in rows.all()]
    assert cells == [
        ["b", "1,234,567", "1.50GiB", "250 ms", "12.5%", "123.5"],
        ["a chosen", "2", "2.00MiB", "12.5 µs", "50.0%", "100,000"],
        ["c", "–", "0B", "2.50 ms", "–", "–"],
    ]
    assert rows.nth(1).get_attribute("class") == "marked" and "What was tried." in tab.inner_text("#tables")


def test_headings_sort_and_unknown_comes_last(open_page: Open) -> None:
    tab = open_page(small_page())
    heads = tab.locator("#tables thead button")
    expected = {0: ["a", "b", "c"], 1: ["b", "a", "c"], 2: ["b", "a", "c"], 3: ["b", "c", "a"], 4: ["a", "b", "c"]}
    for at, names in expected.items():
        heads.nth(at).click()
        assert [name[0] for name in column(tab, "#tables", 1)] == names, at
    assert tab.locator("#tables thead th").nth(4).get_attribute("aria-sort") == "descending"
    heads.nth(4).press("Enter")  # the other way round
    assert [name[0] for name in column(tab, "#tables", 1)] == ["b", "a", "c"]
    assert tab.locator("#tables thead th").nth(4).get_attribute("aria-sort") == "ascending"
    assert tab.locator("#tables thead th[aria-sort]").count() == 1


def test_alive_at_the_peak(open_page: Open) -> None:
    tab = open_page(small_page())
    assert column(tab, "#peak", 1) == ["y", "x", "w", "g"]
    assert column(tab, "#peak", 2) == ["256MiB", "128MiB", "64.0MiB", "32.0MiB"]
    assert column(tab, "#peak", 3) == ["53.3%", "26.7%", "13.3%", "6.7%"]
    assert column(tab, "#peak", 5)[2:] == ["–", "conv2d_backward 'grad c'"]
    assert tab.locator("#peak .pager").is_hidden()


def test_operators_with_their_rates(open_page: Open) -> None:
    tab = open_page(small_page())
    assert column(tab, "#operators", 1)[:2] == ["grad c", "conv a"]  # the slowest first
    heads = tab.locator("#operators thead button").all_text_contents()
    row = dict(zip(heads, tab.locator("#operators tbody tr").nth(1).locator("th, td").all_text_contents(), strict=True))
    assert row == {
        "operator": "conv a", "type": "conv2d", "module": "down.0", "phase": "forward", "no.": "1", "start": "1.00 ms",
        "time": "2.00 ms", "host time": "1.00 ms", "GFLOP": "4", "GFLOP/s": "2,000", "read and written": "191MiB",
        "GB/s": "100",
    }  # fmt: skip


def test_search_looks_at_names_types_and_modules(open_page: Open) -> None:
    tab = open_page(small_page())
    search = tab.get_by_label("search names, types and modules")
    found = {}
    for text in ("relu", "DOWN", "conv2d", "grad conv", "nothing at all", "down.0 conv", ""):
        search.fill(text)
        found[text] = sorted(column(tab, "#operators", 1))
    everything = sorted(op.name for op in OPERATORS)
    assert found == {
        "relu": ["relu b"],
        "DOWN": ["conv a", "relu b"],
        "conv2d": ["conv a", "grad c"],
        "grad conv": ["grad c"],
        "nothing at all": [],
        "down.0 conv": ["conv a"],
        "": everything,
    }
    search.fill("x y z")
    assert tab.locator("#operators .pages").inner_text() == "nothing found"


def test_long_tables_are_turned(open_page: Open) -> None:
    tab = open_page(many(120))
    pages, rows = tab.locator("#operators .pages"), tab.locator("#operators tbody tr")
    before, after = tab.get_by_role("button", name="Previous"), tab.get_by_role("button", name="Next")
    assert pages.inner_text() == "1 to 50 of 120" and rows.count() == 50 and before.is_disabled()
    after.click()
    after.click()
    assert pages.inner_text() == "101 to 120 of 120" and rows.count() == 20 and after.is_disabled()
    before.click()
    assert pages.inner_text() == "51 to 100 of 120"
    tab.get_by_label("search names").fill("part3")
    assert pages.inner_text() == "1 to 17 of 17"
    tab.locator("#operators thead button").nth(4).click()  # their number
    assert column(tab, "#operators", 1)[:3] == ["op 3", "op 10", "op 17"]
