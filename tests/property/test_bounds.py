"""Boxes of tiles against brute force, on random networks and on the reference networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import Drawn, networks
from torch import Tensor

from reference_graphs import NAMES, reference_graph
from thorough import often
from tilegrad.bounds import MODES, Cuts, Line, Spans, Tiling, label_axes, tile_graph, tile_line
from tilegrad.ops import aten
from tilegrad.region import Box, Interval


@dataclass(repr=False)
class Case:
    drawn: Drawn
    tiling: Tiling

    def __repr__(self) -> str:
        return f"{self.drawn} {self.tiling.mode} {self.tiling.grid}"


some = settings(max_examples=often(25, 50))


@st.composite
def tilings(draw: st.DrawFn, mode: str, dims: int | None = None, dense: bool = False) -> Case:
    """A random network, tiled along some of its axes."""
    drawn = draw(networks(dims or draw(st.sampled_from([1, 2])), dense))
    graph, axes = drawn.graph, draw(st.sampled_from([drawn.axes, *drawn.axes]))
    leader = graph.shape(graph.inputs[0] if mode == "gather" else graph.outputs[0])
    grid = {a: draw(st.integers(1, min(5, leader["dhw".index(a) - 3]))) for a in axes}
    tiling = tile_graph(graph, mode, grid)
    return Case(drawn, draw(led(tiling)) if mode == "stream" and draw(st.booleans()) else tiling)


@st.composite
def led(draw: st.DrawFn, tiling: Tiling) -> Tiling:
    """Cut where it is read instead, behind the end too."""
    cuts: dict[str, Cuts] = {}
    for axis, line in tiling.lines.items():
        size, more = draw(st.integers(1, 8)), draw(st.integers(0, 3))
        count = max(-(-line.sizes[v] // size) for v in line.sources) + more if line.sources else 1
        starts = line.sources or line.sinks
        cuts[axis] = {
            v: tuple(range(0, (count + 1) * size, size)) if line.sources else (0, line.sizes[v]) for v in starts
        }
    spans = {axis: tile_line(line, "stream", cuts[axis]) for axis, line in tiling.lines.items()}
    return replace(tiling, spans=spans, cuts=cuts)


def evaluate(drawn: Drawn, image: Tensor, instead: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Every value of the graph, by torch; `instead` stands in for what some nodes make."""
    values = drawn.constants | {drawn.graph.inputs[0]: image} | (instead or {})
    for node in drawn.graph.nodes:
        if node.outputs[0] not in values:
            values[node.outputs[0]] = aten.call(node, [values[v] for v in node.reads])
    return values


def only_inside(tensor: Tensor, box: Box, elsewhere: float) -> Tensor:
    kept = torch.full_like(tensor, elsewhere)
    kept[box.slices] = tensor[box.slices]
    return kept


def check_poison(drawn: Drawn, tiling: Tiling, given: str, promised: str) -> None:
    """What a tile has of the input is enough for what it promises of the outputs."""
    image, source = drawn.image(), drawn.graph.inputs[0]
    clean = evaluate(drawn, image)
    for tile in tiling.tiles():
        dirty = evaluate(drawn, only_inside(image, tiling.box(given, source, tile), float("nan")))
        for out in drawn.graph.outputs:
            box = tiling.box(promised, out, tile)
            assert torch.equal(dirty[out][box.slices], clean[out][box.slices]), (tile, out)


def check_every_step(tiling: Tiling, have: str) -> None:
    """Whatever a tile makes of a value, it has what that reads."""
    for tile in tiling.tiles():
        for node in tiling.nodes:
            out = tiling.box("own", node.outputs[0], tile)
            for value, read in zip(node.reads, tiling.reads(node, out), strict=True):
                if not out.empty and value in tiling.axes.dims and tiling.axes.dims[value]:
                    held = tiling.box(have, value, tile)
                    assert held.holds(read.clip(tiling.graph.shape(value))), (tile, node.name, value)


def dependencies(drawn: Drawn, value: str, outputs: tuple[str, ...]) -> dict[str, Tensor]:
    """Row i says which indices of an output feel poison at index i of `value`. One axis only."""
    clean = evaluate(drawn, drawn.image())
    n = clean[value].shape[-1]
    rows = clean[value].repeat(n, 1, 1)
    rows[range(n), :, range(n)] = float("nan")
    batch = {name: clean[name].expand(n, -1, -1) for name in ready_without(drawn, value)}
    dirty = evaluate(drawn, drawn.image(), batch | {value: rows})
    return {out: dirty[out].isnan().any(1) for out in outputs}


def ready_without(drawn: Drawn, value: str) -> set[str]:
    """The values that do not depend on this one."""
    after = {value}
    for node in drawn.graph.nodes:
        if not after.isdisjoint(node.reads):
            after.update(node.outputs)
    return {v.name for v in drawn.graph.values if v.name not in after and v.name not in drawn.constants}


def hull(indices: Tensor) -> Interval:
    found = indices.nonzero().flatten().tolist()
    return Interval(found[0], found[-1] + 1) if found else Interval(0, 0)


# --- scatter ------------------------------------------------------------------------------------------------------


@some
@given(tilings("scatter"))
def test_scatter_boxes_suffice(case: Case) -> None:
    check_poison(case.drawn, case.tiling, given="own", promised="share")
    check_every_step(case.tiling, have="own")


@some
@given(tilings("scatter"))
def test_scatter_shares_cover_what_is_made_whole(case: Case) -> None:
    tiling = case.tiling
    for axis, spans in tiling.spans.items():
        for sink in tiling.lines[axis].sinks:
            assert_partition(spans.share[sink], tiling.lines[axis].sizes[sink])


@settings(max_examples=often(40, 80))
@given(tilings("scatter", dims=1, dense=True))
def test_scatter_boxes_are_no_larger_than_needed(case: Case) -> None:
    drawn, tiling = case.drawn, case.tiling
    sinks = tiling.lines["w"].sinks
    for value in tiling.lines["w"].sizes:
        reach = dependencies(drawn, value, sinks)
        for t, own in enumerate(tiling.spans["w"].own[value]):
            felt = torch.zeros(drawn.graph.shape(value)[-1], dtype=torch.bool)
            for sink in sinks:
                share = tiling.spans["w"].share[sink][t]
                felt |= reach[sink][:, share.lo : share.hi].any(1)
            assert hull(felt) == own or (own.empty and not felt.any()), (value, t)


# --- gather -------------------------------------------------------------------------------------------------------


@some
@given(tilings("gather"))
def test_gather_boxes_suffice(case: Case) -> None:
    check_poison(case.drawn, case.tiling, given="own", promised="complete")
    check_every_step(case.tiling, have="own")


@some
@given(tilings("gather"))
def test_gather_outputs_complete_the_gradient(case: Case) -> None:
    drawn, tiling = case.drawn, case.tiling
    source, outputs = drawn.graph.inputs[0], drawn.graph.outputs
    image = drawn.image().requires_grad_()
    made = [evaluate(drawn, image)[out] for out in outputs]
    seeds = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape) % 5 - 2 for y in made]
    (whole,) = torch.autograd.grad(made, image, seeds, retain_graph=True)
    for tile in tiling.tiles():
        parts = [only_inside(s, tiling.box("complete", o, tile), 0) for s, o in zip(seeds, outputs, strict=True)]
        (part,) = torch.autograd.grad(made, image, parts, retain_graph=True)
        mine = tiling.box("share", source, tile).slices
        assert torch.equal(part[mine], whole[mine]), tile


@some
@given(tilings("gather"))
def test_gather_shares_cover_each_value_once(case: Case) -> None:
    tiling = case.tiling
    for axis, spans in tiling.spans.items():
        for value, n in tiling.lines[axis].sizes.items():
            assert_partition(spans.share[value], n)
            for share, complete, own in zip(spans.share[value], spans.complete[value], spans.own[value], strict=True):
                assert complete.holds(share) and own.holds(complete)


def assert_partition(track: tuple[Interval, ...], n: int) -> None:
    assert [i for span in track for i in range(*span)] == list(range(n)), track


# --- stream -------------------------------------------------------------------------------------------------------


@some
@given(tilings("stream"))
def test_stream_makes_everything_once(case: Case) -> None:
    tiling = case.tiling
    for axis, spans in tiling.spans.items():
        for value, n in tiling.lines[axis].sizes.items():
            end = max((span.hi for span in spans.own[value]), default=0)
            assert_partition(spans.own[value], end)
            least, most = (needed(tiling.lines[axis], hull=hull)[value] for hull in (False, True))
            assert end == n or (value not in tiling.lines[axis].sinks and least <= end <= most)
            assert spans.share[value] == spans.own[value]


def needed(line: Line, *, hull: bool) -> dict[str, int]:
    """How far each value is read, when everything that must be made whole is. `hull`: by all outputs together; one by
    one, the last may read padding alone."""
    ends = {name: line.sizes[name] if name in line.sinks else 0 for name in line.sizes}
    for out, reads in reversed(line.steps):
        for name, window in reads:
            parts = [(0, ends[out])] if hull else [(o, o + 1) for o in range(ends[out])]
            spans = [window.reads(*part).clip(line.sizes[name]) for part in parts]
            ends[name] = max(ends[name], *(span.hi for span in spans if not span.empty), 0)
    return ends


@settings(max_examples=often(40, 80))
@given(tilings("stream", dims=1))
def test_what_stream_leaves_out_is_never_read(case: Case) -> None:
    drawn, tiling = case.drawn, case.tiling
    line, spans = tiling.lines["w"], tiling.spans["w"]
    for value in line.sizes:
        end = spans.own[value][-1].hi
        for felt in dependencies(drawn, value, line.sinks).values():
            assert not felt[end:].any(), value


@some
@given(tilings("stream"))
def test_stream_holds_what_is_read_and_no_more(case: Case) -> None:
    tiling = case.tiling
    check_every_step(tiling, have="held")
    for axis, spans in tiling.spans.items():
        for value in tiling.lines[axis].sizes:
            for t in range(spans.count):
                assert spans.held[value][t] == latest(tiling.lines[axis], spans, value, t), (value, t)


def latest(line: Line, spans: Spans, value: str, t: int) -> Interval:
    """What tile `t` makes, and before it what this tile or a later one still reads."""
    own, start = spans.own[value][t], spans.own[value][t].lo
    for out, window in line.readers()[value]:
        for made in spans.own[out][t:]:
            if not made.empty:
                start = min(start, max(0, window.reads(*made).lo))
    return Interval(start if t else own.lo, own.hi)


# --- the reference networks ---------------------------------------------------------------------------------------


GRIDS = [(1, 3), (2, 1), (3, 2)]


def crossings() -> Iterator[Any]:
    """Every network in every mode and every grid, every mode in every grid; all combinations with --slow."""
    for (n, name), (m, mode), (g, grid) in product(enumerate(NAMES), enumerate(MODES), enumerate(GRIDS)):
        yield pytest.param(name, mode, grid, marks=() if (n + m + g) % len(GRIDS) == 0 else pytest.mark.slow)


@pytest.mark.parametrize(("name", "mode", "grid"), list(crossings()), ids=str)
def test_reference_networks(name: str, mode: str, grid: tuple[int, int]) -> None:
    graph = reference_graph(name)
    found = {axis for dims in label_axes(graph).dims.values() for axis in dims}
    tiling = tile_graph(graph, mode, {a: n for a, n in zip("hw", grid, strict=True) if a in found})
    check_every_step(tiling, have="held")
    for axis, spans in tiling.spans.items():
        line = tiling.lines[axis]
        wanted = needed(line, hull=True)
        for value, n in line.sizes.items():
            if mode == "stream":
                assert sum(span.size for span in spans.own[value]) == wanted[value], value
            if mode == "gather" or value in line.sinks:
                assert_partition(spans.share[value], n)


@pytest.mark.parametrize("axis", ["d", "h", "w"])
def test_volumes_are_tiled_along_any_axis(axis: str) -> None:
    tiling = tile_graph(reference_graph("unet3d"), "stream", {axis: 3})
    line = tiling.lines[axis]
    for value, end in needed(line, hull=True).items():
        assert sum(span.size for span in tiling.spans[axis].own[value]) == end
