"""Tile a graph: sort nodes into phases, decide what is kept between them, cut every phase.

Between phases only what is dear to compute again is kept (convolutions, pools); a cheap chain (normalise, add,
activate) that starts from kept values is replayed where it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..bounds import (
    Axes,
    Cuts,
    Line,
    Part,
    Roles,
    Tiling,
    call_of,
    check_axes,
    label_axes,
    sort_nodes,
    tile_line,
    tile_nodes,
)
from ..errors import GridError
from ..ir import Graph, Node
from ..ops import find
from ..region import POINT, cuts_of_count, cuts_of_size
from ..schedule import Phase, Schedule, Storage

TileSizes = Mapping[str, int]  # axis -> elements of the input per tile
CHEAP_FLOPS = 16.0  # per element: normalise, add, activate, but no convolution


def plan_plain(graph: Graph) -> Schedule:
    """Everything whole: what plain PyTorch does, through the same engine."""
    roles = sort_nodes(graph, label_axes(graph), ())
    return Schedule(graph, "none", tuple(_phases(graph, label_axes(graph), roles, "none", {}, {})))


def plan_tiles(graph: Graph, mode: str, tile: TileSizes, storage: Storage = Storage.DEVICE) -> Schedule:
    """Tile a lowered graph with tiles of so many input elements per axis."""
    axes = label_axes(graph)
    check_axes(graph, axes, tuple(tile))
    for axis, size in tile.items():
        if size < 1:
            raise GridError(f"a tile of {size} along {axis}", hint="at least 1")
    roles = sort_nodes(graph, axes, tuple(tile), complete=mode == "stream")
    lengths = {axis: _length(graph, axes, axis) for axis in tile}
    phases = tuple(_phases(graph, axes, roles, mode, tile, lengths))
    return Schedule(graph, mode, phases, storage)


def _length(graph: Graph, axes: Axes, axis: str) -> int:
    """How long the image is along `axis`: the first input that has it, or whatever is longest."""
    inputs = [graph.shape(v)[axes.dims[v][axis]] for v in graph.inputs if axis in axes.dims[v]]
    return inputs[0] if inputs else max(graph.shape(v)[d[axis]] for v, d in axes.dims.items() if axis in d)


def _phases(
    graph: Graph, axes: Axes, roles: Roles, mode: str, tile: TileSizes, lengths: Mapping[str, int]
) -> list[Phase]:
    kept, replays = _keep(graph, roles)
    found = []
    for number in sorted(set(roles.phase.values())):
        own = [n for n in graph.nodes if roles.phase[n.name] == number]
        nodes = [n for n in own if roles.part[n.name] is not Part.FOLD]
        folds = tuple(n for n in own if roles.part[n.name] is Part.FOLD)
        again = replays.get(number, set())
        nodes = [n for n in graph.nodes if n in nodes or n.name in again]
        if number % 2:
            found.append(whole_phase(graph, number, nodes, kept))
        elif folds or any(n.outputs[0] in kept for n in own):
            found.append(_tiled_phase(graph, axes, roles, number, nodes, folds, kept, mode, tile, lengths))
    return found


def _keep(graph: Graph, roles: Roles) -> tuple[set[str], dict[int, set[str]]]:
    """Which computed values are stored whole, and which nodes are run again in which later phase."""
    kept = {name for name in graph.outputs if name in graph.producer}
    kept |= {new for _, new in graph.updates if new in graph.producer}
    replays: dict[int, set[str]] = {}

    def visit(value: str, number: int, reader: Part) -> None:
        maker = graph.producer.get(value)
        if maker is None or (roles.phase[maker.name] == number and roles.part[maker.name] is not Part.FOLD):
            return
        local = roles.part[maker.name] is Part.LOCAL
        if local and reader is not Part.WHOLE and value not in graph.outputs and works_cheaply(graph, maker):
            if maker.name not in replays.setdefault(number, set()):
                replays[number].add(maker.name)
                for i, name in enumerate(maker.reads):
                    visit(name, number, Part.WHOLE if (maker.name, i) in roles.whole else Part.LOCAL)
        else:
            kept.add(value)

    for node in graph.nodes:
        for i, name in enumerate(node.reads):
            whole = (node.name, i) in roles.whole
            visit(name, roles.phase[node.name], Part.WHOLE if whole else roles.part[node.name])
    return kept, replays


def works_cheaply(graph: Graph, node: Node) -> bool:
    op, call = find(node), call_of(graph, node)
    rule = op.reads(call) or ()
    pointwise = all(read.dim is None or read.window == POINT for dims in rule for read in dims)
    return pointwise and op.flops(call) <= CHEAP_FLOPS


def whole_phase(graph: Graph, number: int, nodes: Sequence[Node], kept: set[str]) -> Phase:
    made = {out for n in nodes for out in n.outputs}
    reads = dict.fromkeys(v for n in nodes for v in n.reads if v not in made)
    stores = tuple(v for n in nodes for v in n.outputs if v in kept)
    return Phase(number, graph, tuple(nodes), whole=tuple(reads), stores=stores)


def _tiled_phase(
    graph: Graph,
    axes: Axes,
    roles: Roles,
    number: int,
    nodes: Sequence[Node],
    folds: tuple[Node, ...],
    kept: set[str],
    mode: str,
    tile: TileSizes,
    lengths: Mapping[str, int],
) -> Phase:
    stores = tuple(n.outputs[0] for n in nodes if n.outputs[0] in kept and roles.phase[n.name] == number)
    sinks = {*stores, *(f.inputs[0].value for f in folds)}
    nodes = leading_to(sinks, nodes)
    forward = _tiling(graph, axes, roles, nodes, "scatter" if mode == "gather" else mode, tile, lengths, sinks)
    backward = _tiling(graph, axes, roles, nodes, mode, tile, lengths, sinks) if mode == "gather" else forward
    boxed = tuple(dict.fromkeys(v for line in forward.lines.values() for v in line.sources))
    made = {n.outputs[0] for n in nodes}
    loose = {name for n in nodes for i, name in enumerate(n.reads) if (n.name, i) in roles.whole}
    whole = dict.fromkeys(v for n in nodes for v in n.reads if (v not in made and v not in boxed) or v in loose)
    return Phase(number, graph, tuple(nodes), folds, boxed, tuple(whole), stores, forward, backward)


def leading_to(sinks: Collection[str], nodes: Sequence[Node]) -> list[Node]:
    """The nodes that `sinks` depend on; the others are only replayed in later phases."""
    wanted, found = set(sinks), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.reads)
            found.append(node)
    return found[::-1]


def _tiling(
    graph: Graph,
    axes: Axes,
    roles: Roles,
    nodes: Sequence[Node],
    mode: str,
    tile: TileSizes,
    lengths: Mapping[str, int],
    sinks: set[str],
) -> Tiling:
    def cut(line: Line) -> Cuts:
        names = line.starts(mode)
        share = tile[line.axis] / lengths[line.axis]
        sizes = {v: max(1, round(share * line.sizes[v])) for v in names}
        count = max(-(-line.sizes[v] // sizes[v]) for v in names)
        cuts = {v: _cut(line.sizes[v], sizes[v], count) for v in names}
        return _level(graph, line, cuts, count) if mode == "stream" and count > 1 else cuts

    return tile_nodes(graph, axes, nodes, mode, roles.tiled, cut, sinks, roles.whole)


def _level(graph: Graph, line: Line, cuts: dict[str, tuple[int, ...]], count: int) -> Cuts:
    """Shift the cuts of what is made so that the first tile, which runs ahead of all others by the whole lag of the
    network, holds no more than they do: at the top of the network tiles are then alike, at its end the last grows."""

    def heaviest(found: Cuts) -> float:
        held = tile_line(line, "stream", found).held
        weight = {out: graph.type(out).bytes / line.sizes[out] for out, _ in line.steps}
        return max(sum(w * held[v][t].size for v, w in weight.items()) for t in range(count))

    ahead = tile_line(line, "stream", cuts).own
    lag = max((ahead[v][0].hi / line.sizes[v] for v in line.sizes), default=0.0) - 1.0 / count
    if lag * count < 0.05:
        return cuts
    tried: list[Cuts] = [cuts]
    for part in (0.25, 0.5, 0.75, 1.0):
        shift = {v: round(part * lag * line.sizes[v]) for v in cuts}
        if all(shift[v] < cuts[v][1] for v in cuts):
            tried.append({v: (0, *(c - shift[v] for c in track[1:-1]), track[-1]) for v, track in cuts.items()})
    return min(tried, key=heaviest)


def _cut(n: int, size: int, count: int) -> tuple[int, ...]:
    """Tiles of `size` where that makes `count` of them, so that interior tiles share one shape."""
    cuts = cuts_of_size(n, size)
    return cuts if len(cuts) == count + 1 else cuts_of_count(n, count)
