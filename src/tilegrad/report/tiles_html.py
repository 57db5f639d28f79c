"""The tiles of a network as a page: the image and every node, cut; what a tile makes, is handed and reads there."""

from __future__ import annotations

from collections.abc import Sequence

from ..bounds import Tiling
from ..ir import Node
from ..region import Interval, Track, read_all
from ..units import format_bytes, format_sizes
from .page import Column, Fact, Page, Sides, Table, TiledValue, TileMap
from .tiles import held_bytes, largest_working_set, work

IMAGE = ("d", "h", "w")


def tiles_page(tiling: Tiling) -> Page:
    graph = tiling.graph
    shape = format_sizes(graph.shape(graph.inputs[0]))
    plain = sum(graph.type(node.outputs[0]).bytes for node in tiling.nodes)
    worst = largest_working_set(tiling)
    return Page(
        title=graph.name,
        summary=f"An image of {shape} in {format_sizes(tiling.grid)} tiles along {' and '.join(tiling.tiled)}.",
        facts=(
            Fact("mode", tiling.mode, MODES[tiling.mode]),
            Fact("tiles", format_sizes(tiling.grid), f"{len(tiling.tiles())} in all"),
            Fact("work", f"{work(tiling):.3f} ×", "arithmetic of one forward pass, against untiled"),
            Fact("largest working set", format_bytes(worst), f"{worst / plain:.2%} of all activations at once"),
        ),
        tables=(_nodes(tiling),),
        tiles=tile_map(tiling),
    )


MODES = {
    "stream": "nothing is computed twice: a tile hands its last rows on",
    "scatter": "a tile computes all that its part of the output needs",
    "gather": "a tile computes all that reads its part of the input",
}


def tile_map(tiling: Tiling) -> TileMap:
    """The image first, then what else is read, then every node."""
    sources = list(dict.fromkeys(s for line in tiling.lines.values() for s in line.sources))
    names = [*sorted(sources, key=lambda s: s not in tiling.graph.inputs), *(n.outputs[0] for n in tiling.nodes)]
    places = {name: at for at, name in enumerate(names)}
    made = {node.outputs[0]: node for node in tiling.nodes}
    axes = [axis for axis in IMAGE if any(axis in tiling.axes.dims[name] for name in names)]
    return TileMap(
        tiling.mode,
        tiling.tiled,
        tiling.grid,
        tuple(axes[-2:]),
        [_value(tiling, name, made.get(name), places) for name in names],
    )


def _value(tiling: Tiling, name: str, node: Node | None, places: dict[str, int]) -> TiledValue:
    shape, dims = tiling.graph.shape(name), tiling.axes.dims[name]
    what = "read from where it is stored" if node is None else f"{node.op} {node.source}".strip()

    def sides(which: str) -> Sides:
        tracks = {axis: getattr(tiling.spans[axis], which) for axis in tiling.tiled}
        return {axis: _pairs(track[name]) for axis, track in tracks.items() if name in track}

    return TiledValue(
        name,
        what,
        {axis: shape[dim] for axis, dim in dims.items()},
        sides("own"),
        sides("held"),
        sides("share"),
        sides("complete"),
        _reads(tiling, name, places),
    )


def _reads(tiling: Tiling, name: str, places: dict[str, int]) -> list[tuple[int, Sides]]:
    """What the node that makes this value reads in each tile, past the ends of what it reads where that is padding."""
    found: dict[str, dict[str, Track]] = {}
    for axis in tiling.tiled:
        for value, window in dict(tiling.lines[axis].steps).get(name, ()):
            read, known = read_all(window, tiling.spans[axis].own[name]), found.setdefault(value, {})
            known[axis] = known[axis].hull(read) if axis in known else read
    return [(places[value], {axis: _pairs(track) for axis, track in sides.items()}) for value, sides in found.items()]


def _pairs(track: Sequence[Interval]) -> list[int]:
    return [int(end) for side in track for end in ((0, 0) if side.empty else (side.lo, side.hi))]


def _nodes(tiling: Tiling) -> Table:
    columns = (
        Column("node"),
        Column("operator"),
        Column("module"),
        Column("written in"),
        Column("shape"),
        Column("times computed", "rate"),
        Column("whole", "bytes"),
        Column("most in a tile", "bytes"),
    )
    rows = [
        (
            node.name,
            node.op,
            node.source.module or None,
            node.source.line or None,
            format_sizes(tiling.graph.shape(out)),
            tiling.computed(out) / tiling.graph.type(out).size,
            tiling.graph.type(out).bytes,
            held_bytes(tiling, [out]),
        )
        for node in tiling.nodes
        for out in node.outputs[:1]
    ]
    caption = "Every node of the network that is cut. Times computed: by all tiles together, against once."
    return Table("Nodes", columns, rows, caption=caption)
