"""The page as a whole: what it shows, light and dark, narrow and wide, and when there is little to show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_pages import BLOCKS, CLOCK, MIB, OPERATORS, PROFILE, profile_page, small_page
from tabs import Open, wait_until

from tilegrad.profile import Block, Profile
from tilegrad.report.page import Drawn, Page

SECTIONS = ("memory", "map", "timeline", "peak", "operators")
COLOURS = """(id) => {
  const chart = document.querySelector(`#${id}-chart canvas`), found = new Set();
  const copy = document.createElement("canvas");
  Object.assign(copy, { width: chart.width, height: chart.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(chart, 0, 0);
  const { data } = context.getImageData(0, 0, copy.width, copy.height);
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) found.add(data.slice(i, i + 3).join());
  return [...found];
}"""


def visible(tab: object) -> set[str]:
    return {name for name in SECTIONS if tab.locator(f"#{name}").is_visible()}  # type: ignore[attr-defined]


def test_everything_is_shown(open_page: Open) -> None:
    tab = open_page(small_page())
    assert tab.title() == "small network: tilegrad" and visible(tab) == set(SECTIONS)
    assert tab.locator("h1").inner_text() == "small network" and tab.locator("#summary").inner_text() == "A summary."
    assert tab.locator("#facts").inner_text().split("\n") == ["peak", "480MiB", "96% of 500MiB"]
    assert tab.locator("#notes").inner_text() == "A note."
    assert tab.locator("#range").inner_text() == "all of 8.00 ms" and tab.locator("#reset").is_hidden()
    assert "480MiB (503,316,480 bytes) is at 4.00 ms, when conv2d_backward 'grad c'" in tab.inner_text("#memory")
    assert tab.locator("#memory-legend li").all_text_contents() == ["weights", "activations", "gradients", "budget"]


def test_every_chart_draws_its_colours(open_page: Open) -> None:
    tab = open_page(small_page())
    sky, grey = "86,180,233", "180,188,200"
    for chart, some in (("memory", {sky, grey, "184,74,0"}), ("map", {sky, grey}), ("timeline", {sky})):
        assert some <= set(tab.evaluate(COLOURS, chart)), chart


def test_light_and_dark_even_while_it_is_open(open_page: Open) -> None:
    tab = open_page(small_page(), color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(ground) == "rgb(255, 255, 255)" and "184,74,0" in tab.evaluate(COLOURS, "memory")
    tab.emulate_media(color_scheme="dark")
    assert tab.evaluate(ground) == "rgb(20, 23, 28)"
    wait_until(tab, f"({COLOURS})('memory').includes('255,138,61')")  # the budget in its dark colour


@pytest.mark.parametrize("width", [375, 768, 2560])
def test_every_width(open_page: Open, width: int) -> None:
    """Only tables may be wider than the page, and scroll on their own."""
    tab = open_page(small_page(), width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    box = tab.locator("#memory-chart").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    tab.set_viewport_size({"width": 500, "height": 700})
    wait_until(tab, "document.querySelector('#map-chart canvas').clientWidth <= 500")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 500


def test_an_empty_page(open_page: Open) -> None:
    tab = open_page(Page("nothing"))
    assert tab.inner_text("body").strip() == "nothing" and not visible(tab)


def test_an_empty_profile(open_page: Open) -> None:
    tab = open_page(Page("nothing", profiles=(Drawn("", Profile("", "recorded", ())),)))
    assert not visible(tab) and tab.locator("#charts").is_hidden()


def test_without_memory(open_page: Open) -> None:
    assert visible(open_page(profile_page(blocks=(), clock=()))) == {"timeline", "operators"}


def test_without_operators(open_page: Open) -> None:
    blocks = tuple(replace(block, maker=None) for block in BLOCKS)
    tab = open_page(profile_page(operators=(), blocks=blocks))
    assert visible(tab) == {"memory", "map", "peak"} and "480MiB" in tab.inner_text("#memory-caption")


def test_without_addresses(open_page: Open) -> None:
    blocks = tuple(replace(block, address=None) for block in BLOCKS)
    assert visible(open_page(profile_page(blocks=blocks))) == {"memory", "timeline", "peak", "operators"}


def test_operators_without_times(open_page: Open) -> None:
    bare = tuple(replace(op, host=None, device=None) for op in OPERATORS)
    tab = open_page(profile_page(operators=bare, blocks=(), clock=()))
    assert visible(tab) == {"operators"} and "conv a" in tab.inner_text("#operators")


@pytest.mark.parametrize("clock", [(0.0,) * 4, (5.0,) * 4])
def test_no_time_at_all(open_page: Open, clock: tuple[float, ...]) -> None:
    """Where everything happens at one moment, memory is drawn step by step."""
    bare = tuple(replace(op, host=None, device=None) for op in OPERATORS)
    tab = open_page(profile_page(operators=bare, clock=clock))
    assert "over steps" in tab.inner_text("#memory-caption") and tab.inner_text("#range") == "all of 4 steps"


def test_steps_instead_of_seconds(open_page: Open) -> None:
    profile = replace(PROFILE, operators=(), clock=(0.0, 1.0, 2.0, 3.0))
    profile = replace(profile, blocks=tuple(replace(b, maker=None) for b in BLOCKS))
    tab = open_page(small_page(profiles=(Drawn("tiles", profile, timed=False), Drawn("plain", PROFILE))))
    assert "is in step 3" in tab.inner_text("#memory-caption")
    assert "seconds and steps do not go on one axis" in tab.inner_text("#notes")


def test_blocks_that_take_no_room_or_no_time(open_page: Open) -> None:
    odd = (Block("none", 0, 0, 4, address=7), Block("never", 5 * MIB, 2, 2, address=9))
    tab = open_page(profile_page(blocks=(*BLOCKS, *odd), clock=CLOCK))
    assert "480MiB" in tab.inner_text("#memory-caption") and "4 blocks" in tab.inner_text("#map-caption")
    assert visible(open_page(profile_page(blocks=odd))) == {"memory", "timeline", "operators"}


def test_two_profiles_are_one_chart(open_page: Open) -> None:
    larger = replace(PROFILE, blocks=(*BLOCKS, Block("z", 1024 * MIB, 2, 3)))
    tab = open_page(small_page(profiles=(Drawn("tiled", PROFILE), Drawn("plain", larger))))
    assert "plain" in tab.locator("#memory-legend").inner_text() and "of the tiled" in tab.inner_text("#memory-caption")
    tab.locator("#memory-chart").focus()
    tab.keyboard.press("p")
    assert "plain: 1.47GiB" in tab.inner_text("#memory-chart .tip")
