"""Charts: what pointing at them says, zooming by dragging, and everything once more with keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_pages import BLOCKS, MIB, OPERATORS, PROFILE, profile_page, small_page
from tabs import Open, drag, hover, settle, shown_range, time_x, tip

from tilegrad.profile import Block, Operator, Span
from tilegrad.report.page import Drawn

CHARTS = ("memory", "map", "timeline")


def map_y(mib: float) -> float:
    """The pixel of an address: the chart is 420 high, and 8% higher than budget or addresses."""
    return 420 - 30 - mib / (500 * 1.08) * (420 - 30 - 14)


# -- pointing ----------------------------------------------------------------------------------------------------------


def test_memory_says_when_how_much_who_and_what(open_page: Open) -> None:
    tab = open_page(small_page())
    assert hover(tab, "memory", time_x(tab, "memory", 5.5), 200) == [
        "480MiB (503,316,480 bytes)",
        "at 4.00 ms, moment 3 of 4",
        "7: conv2d_backward 'grad c'",
        "256MiB  y, by relu 'relu b'",
        "128MiB  x, by conv2d 'conv a'",
        "64.0MiB  w",
        "32.0MiB  g, by conv2d_backward 'grad c'",
    ]
    assert hover(tab, "memory", time_x(tab, "memory", 1.5), 200)[0] == "192MiB (201,326,592 bytes)"
    assert hover(tab, "memory", time_x(tab, "memory", 7), 30)[0] == "352MiB (369,098,752 bytes)"
    tab.mouse.move(5, 5)
    assert tip(tab, "memory") == []


def test_the_map_says_which_tensor(open_page: Open) -> None:
    tab = open_page(small_page())
    assert hover(tab, "map", time_x(tab, "map", 5), map_y(300)) == [
        "y",
        "256MiB (268,435,456 bytes)",
        "activation",
        "made by relu 'relu b'",
        "3.00 ms to 8.00 ms, for 5.00 ms",
        "addresses 0xc000000 to 0x1c000000",
    ]
    assert hover(tab, "map", time_x(tab, "map", 2), map_y(100))[0] == "x"
    assert hover(tab, "map", time_x(tab, "map", 7), map_y(30))[-1] == "handed in from outside"
    assert hover(tab, "map", time_x(tab, "map", 1), map_y(400)) == []


def test_the_timeline_says_what_runs(open_page: Open) -> None:
    tab = open_page(small_page())
    assert hover(tab, "timeline", time_x(tab, "timeline", 2), 40) == []  # the host is idle
    assert hover(tab, "timeline", time_x(tab, "timeline", 2), 85) == [
        "conv a",
        "conv2d, forward",
        "down.0",
        "1×3×8×8 → 1×4×8×8",
        "winograd",
        "device: 7",
        "from 1.00 ms, for 2.00 ms",
        "1.00 ms on the host",
        "2,000 GFLOP/s",
        "100 GB/s",
    ]


def test_addresses_far_apart(open_page: Open) -> None:
    """Three arenas in 64 bits: the axis breaks, the addresses stay true."""
    bases = (0x100, 0x7F3A_0000_0000, 2**63 - 2**27)
    blocks = tuple(Block(f"t{i}", 64 * MIB, 0, 4, address=base) for i, base in enumerate(bases))
    tab = open_page(profile_page(blocks=blocks))
    assert "in 3 stretches of addresses" in tab.inner_text("#map-caption")
    found = {}
    for y in range(20, 400, 50):
        lines = hover(tab, "map", time_x(tab, "map", 5), y)
        found |= {lines[0]: lines[-1]} if lines else {}
    assert found == {f"t{i}": f"addresses {hex(b)} to {hex(b + 64 * MIB)}" for i, b in enumerate(bases)}


def test_nested_and_parallel_runs_have_rows_of_their_own(open_page: Open) -> None:
    nested = tuple(
        Operator(str(i), f"level {i}", "call", host=Span(i * 1e-4, 8e-3 - i * 1e-4), thread="main") for i in range(5)
    )
    tab = open_page(profile_page(operators=nested, blocks=(), clock=()))
    x = time_x(tab, "timeline", 4)
    assert [hover(tab, "timeline", x, 43 + 18 * i)[0] for i in range(5)] == [f"level {i}" for i in range(5)]


def test_two_clocks_are_told_apart(open_page: Open) -> None:
    later = tuple(
        replace(op, device=op.device and Span(op.device.start_s + 50, op.device.end_s + 50)) for op in OPERATORS
    )
    tab = open_page(profile_page(operators=later, clock=tuple(t + 50.001 for t in PROFILE.clock), one_clock=False))
    assert "clocks of their own" in tab.inner_text("#timeline-caption")
    assert shown_range(tab) == "all of 7.00 ms"
    assert "clocks of their own" not in open_page(small_page()).inner_text("#timeline-caption")


# -- zoom --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", CHARTS)
def test_dragging_zooms_all_charts(open_page: Open, chart: str) -> None:
    tab = open_page(small_page())
    drag(tab, chart, time_x(tab, chart, 6), time_x(tab, chart, 4))  # either way
    assert shown_range(tab) == "4.00 ms to 6.00 ms of 8.00 ms"
    settle(tab)
    assert hover(tab, "memory", time_x(tab, "memory", 5.9, 4, 6), 200)[1] == "at 4.00 ms, moment 3 of 4"
    assert hover(tab, "map", time_x(tab, "map", 4.1, 4, 6), map_y(460))[0] == "g"
    tab.locator("#reset").click()
    assert shown_range(tab) == "all of 8.00 ms" and tab.locator("#reset").is_hidden()


def test_double_click_and_escape_show_all_again(open_page: Open) -> None:
    tab = open_page(small_page())
    for reset in (lambda: tab.locator("#map-chart").dblclick(), lambda: tab.keyboard.press("Escape")):
        drag(tab, "memory", time_x(tab, "memory", 2), time_x(tab, "memory", 3))
        assert shown_range(tab).startswith("2.00 ms to 3.00 ms")
        reset()
        assert shown_range(tab) == "all of 8.00 ms"


def test_a_click_does_not_zoom(open_page: Open) -> None:
    tab = open_page(small_page())
    tab.locator("#memory-chart").click(position={"x": 400, "y": 100})
    assert shown_range(tab) == "all of 8.00 ms"


def test_zoom_has_an_end(open_page: Open) -> None:
    tab = open_page(small_page())
    tab.locator("#timeline-chart").focus()
    for _ in range(26):
        tab.keyboard.press("+")
    settle(tab)
    for _ in range(30):
        tab.keyboard.press("-")
    assert shown_range(tab) == "all of 8.00 ms"


# -- keys --------------------------------------------------------------------------------------------------------------


def said(tab: object, chart: str) -> str:
    return str(tab.locator(f"#{chart}-chart").get_attribute("aria-valuetext"))  # type: ignore[attr-defined]


def test_the_tab_key_reaches_every_chart_and_shows_where_it_is(open_page: Open) -> None:
    tab = open_page(small_page())
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] in ("memory-chart", "map-chart", "timeline-chart"):
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            assert tip(tab, reached[-1].removesuffix("-chart"))
    assert {"memory-chart", "map-chart", "timeline-chart", "colour", "search-1"} <= set(reached)


def test_memory_by_keys(open_page: Open) -> None:
    tab = open_page(small_page())
    tab.locator("#memory-chart").focus()
    assert said(tab, "memory").startswith("480MiB")  # the peak
    steps = {"Home": "192MiB", "ArrowRight": "448MiB", "End": "352MiB", "ArrowLeft": "480MiB", "PageUp": "192MiB"}
    for key, begins in (*steps.items(), ("p", "480MiB")):
        tab.keyboard.press(key)
        assert said(tab, "memory").startswith(begins), key
    tab.keyboard.press("+")
    assert shown_range(tab) == "2.50 ms to 6.50 ms of 8.00 ms"
    tab.keyboard.press("Shift+ArrowLeft")
    assert shown_range(tab) == "1.50 ms to 5.50 ms of 8.00 ms"
    tab.keyboard.press("+")
    tab.keyboard.press("End")  # is brought into view
    assert said(tab, "memory").startswith("352MiB") and float(shown_range(tab).split()[3]) > 6
    tab.keyboard.press("Escape")
    assert shown_range(tab) == "all of 8.00 ms"


def test_the_map_by_keys(open_page: Open) -> None:
    tab = open_page(small_page())
    tab.locator("#map-chart").focus()
    names = []
    for key in ("Home", "ArrowUp", "ArrowDown", "ArrowRight", "End", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
        names.append(said(tab, "map").split(",")[0])
    assert names == ["w", "x", "w", "x", "g", "y", "x"]


def test_the_timeline_by_keys(open_page: Open) -> None:
    tab = open_page(small_page())
    tab.locator("#timeline-chart").focus()
    names = []
    for key in ("Home", "ArrowDown", "ArrowRight", "End", "ArrowDown", "ArrowUp"):
        tab.keyboard.press(key)
        names.append(said(tab, "timeline").split(",")[0])
    assert names == ["conv a", "conv a", "relu b", "grad c", "copy d", "grad c"]


# -- choices -----------------------------------------------------------------------------------------------------------


def test_devices_are_chosen(open_page: Open) -> None:
    tab = open_page(profile_page(blocks=(*BLOCKS, Block("far", 5 * MIB, 0, 2, device="cuda:1"))))
    options = tab.locator("#device option").all_text_contents()
    assert options == ["device", "device, without what came from outside", "cuda:1"]
    tab.locator("#device").select_option(label=options[1])
    assert "peak of 416MiB" in tab.inner_text("#memory-caption") and "3 blocks" in tab.inner_text("#map-caption")
    tab.locator("#device").select_option(label="cuda:1")
    assert "peak of 5.00MiB" in tab.inner_text("#memory-caption") and tab.locator("#map").is_hidden()
    assert tab.locator("#peak tbody tr").count() == 1
    tab.locator("#device").select_option(label="device")
    assert "peak of 480MiB" in tab.inner_text("#memory-caption") and tab.locator("#map").is_visible()


def test_colours_by_phase_and_by_type(open_page: Open) -> None:
    tab = open_page(small_page())
    legend = tab.locator("#timeline-legend li")
    assert legend.all_text_contents() == ["forward", "backward", "other"]
    tab.locator("#colour").select_option(label="type")
    assert legend.all_text_contents() == ["conv2d_backward", "conv2d", "relu", "copy"]
    bare = tuple(replace(op, phase=None) for op in OPERATORS)
    assert (
        open_page(small_page(profiles=(Drawn("", replace(PROFILE, operators=bare)),)))
        .locator("#colour-label")
        .is_hidden()
    )
