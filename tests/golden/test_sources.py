"""Tile tables that another program printed, for images of 64x64 and 16x16: made again by gather mode, every number.

A tile is [row, column]; boxes are written x first, with inclusive ends.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tilegrad.bounds import Line, tile_graph
from tilegrad.importers import capture
from tilegrad.region import Interval, Window

DATA = Path(__file__).parents[1] / "data"
SOURCES = {"seed000": "tiles_printed_64.txt", "seed001": "tiles_printed_16.txt"}
TILES = [(row, column) for row in range(4) for column in range(4)]
CONV = "conv2d"
Sides = dict[str, Interval]  # by axis, x and y

both_sources = pytest.mark.parametrize("name", SOURCES)
every_tile = pytest.mark.parametrize("tile", TILES)


@cache
def golden(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}_tiles.json").read_text())


def golden_tile(name: str, tile: tuple[int, int]) -> dict[str, Any]:
    (found,) = [t for t in golden(name)["tiles"] if t["tile"] == list(tile)]
    return found


# --- the text -----------------------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d+", text)]


FIELDS = {
    "out_wh": "otileshape",
    "pad_lrtb": "padding",
    "slice_xxyy": "inpslidx",
    "real_xxyy": "realidx",
    "halo_lrtb": "internal",
}


def read_table(text: str, order: list[str]) -> dict[str, dict[str, Any]]:
    """One f_info or b_info: an entry per operator, keyed by its place in the chain."""
    table = {}
    for key, depths, body in re.findall(r"(-?\d+): [\w-]+?\[(-?\d+,-?\d+)\] PI\((.*?)next_id", text, re.DOTALL):
        entry: dict[str, Any] = dict(zip(("global_depth", "local_depth"), numbers(depths), strict=True))
        for field, word in FIELDS.items():
            (found,) = re.findall(rf"<{word} ([-\d,]*)>", body)
            entry[field] = numbers(found)
        if flag := re.search(r"local_first (\w+)", body):
            entry["local_first"] = flag[1] == "True"
        table["boundary" if key == "-11" else str(order.index(key))] = entry
    return table


def read_source(name: str) -> list[dict[str, Any]]:
    """Every tile of a source, in the fields of the golden file."""
    text = (DATA / SOURCES[name]).read_text()
    order = re.findall(r"current op (\d+)", text)
    order = order[: len(set(order))]
    tiles = []
    for tile, part in re.findall(
        r"^coord (\[\d+, \d+\])\n(.*?)(?=^coord \[\d+, \d+\]\n|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        tiles.append(
            {
                "tile": numbers(tile),
                "backward_out_wh": numbers(re.findall(r"bwd_out_shape (.*)", part)[0]),
                "disjoint_out_wh": numbers(re.findall(r"fwd_out_shape (.*)", part)[0]),
                "forward": read_table(re.findall(r"^f_info (.*?)^}", part, re.DOTALL | re.MULTILINE)[0], order),
                "backward": read_table(re.findall(r"^b_info (.*?)^}", part, re.DOTALL | re.MULTILINE)[0], order),
                "input_tile_shape": numbers(re.findall(r"input tile torch.Size(.*)", part)[0]),
                "op_output_shapes": [
                    numbers(s) for s in re.findall(r"^\d+ out_temp torch.Size(.*)", part, re.MULTILINE)
                ],
            }
        )
    return tiles


@both_sources
def test_the_golden_file_is_what_the_source_says(name: str) -> None:
    read = read_source(name)
    assert [tuple(tile["tile"]) for tile in read] == TILES
    assert read == golden(name)["tiles"]


@both_sources
def test_the_golden_shapes_are_what_the_source_says(name: str) -> None:
    text = (DATA / SOURCES[name]).read_text()
    printed = re.findall(r"^after (\w+) ([\dx]+)$", text, re.MULTILINE)
    ops = golden(name)["ops"]
    assert [(op["op"], op["output_shape"]) for op in ops] == [(op, numbers(shape)) for op, shape in printed]
    assert re.findall(r"^Input ([\dx]+)$", text, re.MULTILINE)[0] == "x".join(map(str, golden(name)["input_shape"]))


# --- tilegrad -----------------------------------------------------------------------------------------------------


class Chain:
    """The network of a source, tiled in gather mode, one axis at a time."""

    def __init__(self, name: str):
        facts = golden(name)
        self.kinds = [op["op"] for op in facts["ops"]]
        layers = [nn.Conv2d(1, 1, 3, padding=1, bias=False) if k == CONV else nn.MaxPool2d(2) for k in self.kinds]
        graph = capture(nn.Sequential(*layers), tuple(facts["input_shape"]))
        self.tiling = tile_graph(graph, "gather", dict(zip("hw", facts["grid"], strict=True)))
        self.values = [graph.inputs[0], *(node.outputs[0] for node in graph.nodes)]
        self.shapes = [graph.shape(v) for v in self.values]

    def span(self, which: str, value: int, axis: str, t: int) -> Interval:
        return self.tiling.side(which, self.values[value], axis, t)

    def window(self, k: int, axis: str) -> Window:
        line: Line = self.tiling.lines[axis]
        ((_, window),) = dict(line.steps)[self.values[k + 1]]
        return window

    def real_forward(self, k: int, axis: str, t: int) -> Interval:
        """What op `k` reads, not clipped within a run of convolutions."""
        runs_on = self.kinds[k] == CONV and k + 1 < len(self.kinds) and self.kinds[k + 1] == CONV
        made = self.real_forward(k + 1, axis, t) if runs_on else self.span("own", k + 1, axis, t)
        return self.window(k, axis).reads(*made)

    def real_backward(self, k: int, axis: str, t: int) -> Interval:
        """Which outputs of op `k` read the tile's inputs, not clipped within a run of convolutions."""
        runs_on = k > 0 and self.kinds[k] == self.kinds[k - 1] == CONV
        read = self.real_backward(k - 1, axis, t) if runs_on else self.span("complete", k, axis, t)
        return self.window(k, axis).read_by(*read)

    def entry(self, k: int, out: Sides, box: Sides, real: Sides, at: int, read: Sides | None = None) -> dict[str, Any]:
        """A row of a table. `box` and `real` lie on value `at`; `read` on the input of op `k`, if that is another."""
        conv = k >= 0 and self.kinds[k] == CONV
        sizes, before = (dict(zip("yx", self.shapes[v][2:], strict=True)) for v in (at, max(k, 0)))
        read = read or box
        pads = [p for axis in "xy" for p in real[axis].overhang(sizes[axis])]
        halos = [int(h) for axis in "xy" for h in (read[axis].lo > 0, read[axis].hi < before[axis])]
        return {
            "out_wh": [out[axis].size for axis in "xy"],
            "pad_lrtb": pads if conv else [],
            "slice_xxyy": inclusive(box),
            "real_xxyy": inclusive(real),
            "halo_lrtb": halos if conv else [],
        }


@cache
def chain(name: str) -> Chain:
    return Chain(name)


def inclusive(box: Sides) -> list[int]:
    return [n for axis in "xy" for n in (box[axis].lo, box[axis].hi - 1)]


def axes(tile: tuple[int, int]) -> dict[str, tuple[str, int]]:
    """x runs along w and columns, y along h and rows."""
    return {"x": ("w", tile[1]), "y": ("h", tile[0])}


def geometry(entry: dict[str, Any]) -> dict[str, Any]:
    return {field: entry[field] for field in FIELDS}


@every_tile
@both_sources
def test_forward_tables(name: str, tile: tuple[int, int]) -> None:
    net, wanted = chain(name), golden_tile(name, tile)["forward"]
    last = len(net.kinds)
    made = {a: net.span("complete", last, *at) for a, at in axes(tile).items()}
    assert geometry(wanted["boundary"]) == net.entry(-1, made, made, made, last)
    for k in range(last):
        out, box = ({a: net.span("own", v, *at) for a, at in axes(tile).items()} for v in (k + 1, k))
        real = {a: net.real_forward(k, *at) for a, at in axes(tile).items()}
        assert geometry(wanted[str(k)]) == net.entry(k, out, box, real, k), k
    assert len(wanted) == last + 1


@every_tile
@both_sources
def test_backward_tables(name: str, tile: tuple[int, int]) -> None:
    net, wanted = chain(name), golden_tile(name, tile)["backward"]
    if "boundary" in wanted:  # the program prints it for one of the two
        own = {a: net.span("share", 0, *at) for a, at in axes(tile).items()}
        assert geometry(wanted["boundary"]) == net.entry(-1, own, own, own, 0)
    for k in range(len(net.kinds)):
        read, box = ({a: net.span("complete", v, *at) for a, at in axes(tile).items()} for v in (k, k + 1))
        real = {a: net.real_backward(k, *at) for a, at in axes(tile).items()}
        assert geometry(wanted[str(k)]) == net.entry(k, box, box, real, k + 1, read), k


@every_tile
@both_sources
def test_outputs_and_shapes(name: str, tile: tuple[int, int]) -> None:
    net, wanted, last = chain(name), golden_tile(name, tile), len(chain(name).kinds)
    at = axes(tile)
    assert wanted["backward_out_wh"] == [net.span("complete", last, *at[a]).size for a in "xy"]
    assert wanted["disjoint_out_wh"] == [net.span("share", last, *at[a]).size for a in "xy"]
    padded_first = name == "seed000"
    cut = [net.real_forward(0, *at[a]) if padded_first else net.span("own", 0, *at[a]) for a in "yx"]
    assert wanted["input_tile_shape"] == [1, 1, *(side.size for side in cut)]
    given = []
    for k in (k for k, kind in enumerate(net.kinds) if kind == CONV):
        runs_on = k + 1 < last and net.kinds[k + 1] == CONV
        given.append(
            [(net.real_forward(k + 1, *at[a]) if runs_on else net.span("own", k + 1, *at[a])).size for a in "yx"]
        )
    assert [shape[-2:] for shape in wanted["op_output_shapes"]] == given


@both_sources
def test_depths_count_the_walk(name: str) -> None:
    """Not geometry, but the last numbers of the tables: places in the walk, and in a run of convolutions."""
    kinds = golden(name)["ops"]
    for tile in golden(name)["tiles"]:
        for walk, order in (("backward", range(len(kinds))), ("forward", reversed(range(len(kinds))))):
            run = -1
            for depth, k in enumerate(order):
                run = run + 1 if kinds[k]["op"] == CONV else -1
                entry = tile[walk][str(k)]
                assert (entry["global_depth"], entry["local_depth"]) == (depth, run)
