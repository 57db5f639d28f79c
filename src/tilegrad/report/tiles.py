"""The geometry of tiles, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ..bounds import Tiling, call_of
from ..ir import Node
from ..ops import find
from ..region import Box, Interval
from ..units import format_bytes, format_sizes
from .terminal import make_table

Sides = dict[str, list[int]]


def geometry(tiling: Tiling) -> dict[str, Any]:
    """All boxes of all tiles, half-open and clipped."""
    source = tiling.graph.inputs[0]
    return {
        "mode": tiling.mode,
        "axes": list(tiling.tiled),
        "grid": list(tiling.grid),
        "input_shape": list(tiling.graph.shape(source)),
        "work": work(tiling),
        "largest_working_set_bytes": largest_working_set(tiling),
        "tiles": [_tile(tiling, tile) for tile in tiling.tiles()],
    }


def _tile(tiling: Tiling, tile: Sequence[int]) -> dict[str, Any]:
    last = tiling.last
    gather = tiling.mode == "gather"
    found: dict[str, Any] = {
        "tile": list(tile),
        "output": _sides(tiling, tiling.box("complete" if gather else "share", last, tile), last),
    }
    if gather:
        source = next(iter(tiling.lines.values())).sources[0]
        found["input"] = _sides(tiling, tiling.box("share", source, tile), source)
        found["share"] = _sides(tiling, tiling.box("share", last, tile), last)
    found["nodes"] = [_node(tiling, node, tile) for node in tiling.nodes]
    return found


def _node(tiling: Tiling, node: Node, tile: Sequence[int]) -> dict[str, Any]:
    out = node.outputs[0]
    own = tiling.box("own", out, tile)
    found: dict[str, Any] = {"name": node.name, "op": node.op, "out": _sides(tiling, own, out), "reads": {}, "pad": {}}
    pads = find(node).pads
    for axis in tiling.tiled:
        raw, n = _read_along(tiling, node, own, axis)
        found["reads"][axis] = list(raw.clip(n))
        found["pad"][axis] = list(raw.overhang(n)) if pads else [0, 0]
    if tiling.mode == "stream":
        held = tiling.box("held", out, tile)
        found["carried"] = {
            axis: [held[d].lo, own[d].lo] for axis, d in tiling.axes.dims[out].items() if axis in tiling.tiled
        }
    return found


def _read_along(tiling: Tiling, node: Node, own: Box, axis: str) -> tuple[Interval, int]:
    """What the node reads of its inputs along `axis` (before clipping), and how long they are there."""
    reads, n = Interval(0, 0), 0
    if own.empty:
        return reads, n
    for slot, box in zip(node.inputs, tiling.reads(node, own), strict=True):
        dim = tiling.axes.dims[slot.value].get(axis)
        if dim is not None and slot.value in tiling.spans[axis].own:
            reads, n = reads.hull(box[dim]), max(n, tiling.graph.shape(slot.value)[dim])
    return reads, n


def _sides(tiling: Tiling, box: Box, value: str) -> Sides:
    return {axis: list(box[tiling.axes.dims[value][axis]]) for axis in tiling.tiled}


def work(tiling: Tiling) -> float:
    """Arithmetic of all tiles relative to the untiled network's (forward)."""
    done = whole = 0.0
    for node in tiling.nodes:
        per_element = find(node).flops(call_of(tiling.graph, node))
        out = node.outputs[0]
        whole += per_element * tiling.graph.type(out).size
        done += per_element * tiling.computed(out)
    return done / whole if whole else 1.0


def largest_working_set(tiling: Tiling) -> int:
    """Bytes of everything a tile holds at once in training, for the worst tile."""
    return held_bytes(tiling, [node.outputs[0] for node in tiling.nodes])


def held_bytes(tiling: Tiling, values: Sequence[str]) -> int:
    """Of these values, for the worst tile."""
    return max(
        (
            sum(tiling.box("held", v, tile).volume * tiling.graph.type(v).item_bytes for v in values)
            for tile in _distinct(tiling)
        ),
        default=0,
    )


def _distinct(tiling: Tiling) -> list[tuple[int, ...]]:
    """One tile per combination of different sizes: a grid has many alike."""
    kinds: dict[Any, tuple[int, ...]] = {}
    for tile in tiling.tiles():
        sizes = tuple(
            tuple(track[t].size for track in tiling.spans[axis].held.values())
            for axis, t in zip(tiling.tiled, tile, strict=True)
        )
        kinds.setdefault(sizes, tile)
    return list(kinds.values())


def print_tiles(tiling: Tiling, console: Console) -> None:
    """A table for the tile in the middle of the grid, and what the whole grid costs."""
    middle = tuple(count // 2 for count in tiling.grid)
    graph, axes = tiling.graph, tiling.tiled
    title = f"{graph.name} on {format_sizes(graph.shape(graph.inputs[0]))}, {tiling.mode}, tile {list(middle)}"
    names = ["node", "op", *(f"{what} {axis}" for axis in axes for what in ("out", "reads"))]
    names += ["carried"] if tiling.mode == "stream" else []
    table = make_table(f"{title} of {format_sizes(tiling.grid)}", names, left=names, no_wrap=True)
    for row in _tile(tiling, middle)["nodes"]:
        cells = [row["name"], row["op"]]
        for axis in axes:
            pad = row["pad"][axis]
            reads = _span(row["reads"][axis]) + (f" pad {pad[0]},{pad[1]}" if any(pad) else "")
            cells += [_span(row["out"][axis]), reads]
        if tiling.mode == "stream":
            cells.append(" ".join(_span(row["carried"][axis]) for axis in axes))
        table.add_row(*cells)
    console.print(table)
    plain = sum(graph.type(n.outputs[0]).bytes for n in tiling.nodes)
    worst = largest_working_set(tiling)
    console.print(f"work against untiled   {work(tiling):.3f}")
    console.print(f"largest working set    {format_bytes(worst)} of {format_bytes(plain)} ({worst / plain:.2%})")


def _span(side: Sequence[int]) -> str:
    return f"{side[0]}:{side[1]}" if side[1] > side[0] else "-"
