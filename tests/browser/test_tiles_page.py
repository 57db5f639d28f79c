"""Tiles over the image and over every node, in a browser: each mode, forward and backward, by hand and as a film."""

from __future__ import annotations

from functools import cache

import pytest
from tabs import Open, settle, wait_until
from torch import nn

import tilegrad
from tilegrad.bounds import Tiling, tile_graph
from tilegrad.ir import Graph
from tilegrad.report.tiles_html import tile_map, tiles_page


@cache
def graph() -> Graph:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1), nn.MaxPool2d(2))
    return tilegrad.capture(net, (1, 1, 16, 24))


def tiles(mode: str = "stream") -> Tiling:
    return tile_graph(graph(), mode, {"h": 2, "w": 3})


def test_the_boxes_are_those_of_the_tiling() -> None:
    tiling = tiles()
    found = tile_map(tiling)
    assert (found.drawn, found.grid) == (("h", "w"), (2, 3)) and found.values[0].name == graph().inputs[0]
    for value in found.values:
        for tile in tiling.tiles():
            for which in ("own", "held", "share", "complete"):
                box = tiling.box(which, value.name, tile)
                for axis, t in zip(("h", "w"), tile, strict=True):
                    side = box[tiling.axes.dims[value.name][axis]]
                    assert getattr(value, which)[axis][2 * t : 2 * t + 2] == ([*side] if not side.empty else [0, 0])
    relu = next(value for value in found.values if value.what.startswith("conv2d") and value.reads[0][0] > 0)
    assert relu.reads[0][1]["h"] == [-1, 9, 7, 17]  # past the ends: padding


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"width": 500}])
@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
def test_every_step_can_be_seen(open_page: Open, mode: str, options: dict[str, object]) -> None:
    tab = open_page(tiles_page(tiles(mode)), **options)
    assert tab.locator("#tiles").is_visible() and tab.locator("#tiles-panels canvas").count() == 3
    assert tab.evaluate("document.documentElement.scrollWidth") <= tab.viewport_size["width"]
    tab.locator("#tiles-panels").focus()
    tab.keyboard.press("Home")
    said = []
    for _ in range(12):
        said.append(tab.inner_text("#tiles-status"))
        assert tab.locator("#tiles-says li").count() > 0
        tab.keyboard.press("ArrowRight")
    assert said[0].startswith("Step 1 of 12: forward, tile [0, 0]")
    assert said[6].startswith("Step 7 of 12: backward, tile [1, 2]") and "tile [0, 0]" in said[11]
    before = tab.input_value("#tiles-node")
    tab.keyboard.press("ArrowDown")
    assert tab.input_value("#tiles-node") == str(int(before) + 1)


def test_a_tile_tells_its_boxes(open_page: Open) -> None:
    """The second convolution makes what the pool needs; the rectifier before it is one row and column further."""
    tab = open_page(tiles_page(tiles()))
    tab.select_option("#tiles-node", label="conv2d_1")
    tab.locator("#tiles-panels").focus()
    tab.keyboard.press("Home")
    assert tab.locator("#tiles-says li").all_text_contents() == [
        "made in this tile: h 0:8, w 0:8",
        "reads relu: h 0:9, w 0:9, padding h 1+0, w 1+0",
    ]
    tab.keyboard.press("ArrowRight")
    assert "reads relu: h 0:9, w 7:17, padding h 1+0" in tab.inner_text("#tiles-says")
    tab.locator(".picture").last.hover(position={"x": 60, "y": 20})
    lines = tab.locator(".picture .tip").last.locator("div").all_text_contents()
    assert lines[0] == "tile [0, 0], forward"
    tab.locator(".picture").last.click(position={"x": 60, "y": 20})
    assert "tile [0, 0]" in tab.inner_text("#tiles-status")


def test_it_plays(open_page: Open) -> None:
    tab = open_page(tiles_page(tiles("scatter")))
    tab.locator("#tiles-step").fill("10")
    tab.locator("#tiles-play").click()
    assert tab.inner_text("#tiles-play") == "Stop"
    wait_until(tab, "document.getElementById('tiles-step').value === '12'")
    wait_until(tab, "document.getElementById('tiles-play').textContent === 'Play'")
    settle(tab)


def test_one_axis_and_one_dimension(open_page: Open) -> None:
    line = tilegrad.capture(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()), (1, 1, 40))
    tab = open_page(tiles_page(tile_graph(line, "stream", {"w": 4})))
    assert "tile [2]" in tab.inner_text("#tiles-status") and tab.locator("#facts").inner_text().startswith("mode")
    tab = open_page(tiles_page(tile_graph(graph(), "stream", {"h": 4})))
    assert "w 0:24" in tab.inner_text("#tiles-says")
