"""Tile a graph: sort nodes into phases, decide what is kept between them, cut every phase.

Between phases only what is dear to compute again is kept (convolutions, pools); a cheap chain (normalise, add,
activate) that starts from kept values is replayed where it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...bounds import (
    Axes,
    Cuts,
    Line,
    NodePart,
    Roles,
    Tiling,
    call_of,
    check_axes,
    label_axes,
    sort_nodes,
    tile_line,
    tile_nodes,
)
from ...errors import GridError
from ...ir import Graph, Node
from ...ops import find
from ...region import POINT, cuts_of_count, cuts_of_size
from ...schedule import Islands, Schedule, Storage, TilePhase, phase_steps
from ...sim.machine import CPU, Machine
from .seams import Seams, held_bytes

TileSizes = Mapping[str, int]  # axis -> elements of the input per tile
MOST_ROUNDS = 8  # in which values are found that are better kept whole
CHEAP_FLOPS = 16.0  # per element: normalise, add, activate, but no convolution


def plan_plain(graph: Graph, *, train: bool = True) -> Schedule:
    """Everything whole: what plain PyTorch does, through the same engine."""
    phases = _Tiles(graph, label_axes(graph), "none", {}, {}).phases()
    return _schedule(graph, "none", phases, Storage.DEVICE, train)


def plan_tiles(
    graph: Graph,
    mode: str,
    tile: TileSizes,
    storage: str = Storage.DEVICE,
    *,
    train: bool = True,
    machine: Machine = CPU,
    carried: Collection[str] | None = None,
) -> Schedule:
    """Tile a lowered graph with tiles of so many input elements per axis. `mode`: "auto" is "stream" with seams chosen
    for the machine; `carried`: in stream mode, the values whose halos are carried (default: all)."""
    axes = label_axes(graph)
    check_axes(graph, axes, tuple(tile))
    for axis, size in tile.items():
        if size < 1:
            raise GridError(f"a tile of {size} along {axis}", hint="at least 1")
    lengths = {axis: _length(graph, axes, axis) for axis in tile}
    chosen = mode == "auto"
    plan = _Tiles(graph, axes, "stream" if chosen else mode, tile, lengths, machine, chosen, carried)
    return _schedule(graph, plan.mode, plan.phases(), storage, train)


def _schedule(graph: Graph, mode: str, phases: tuple[TilePhase, ...], storage: str, train: bool) -> Schedule:
    steps = phase_steps(graph, phases, train=train)
    return Schedule(graph, mode, phases, storage, steps=steps, islands=Islands(phases))


def keepable(schedule: Schedule) -> list[str]:
    """Islands whose record could stay for backward, in the order they run."""
    return [p.name(tile) for p in schedule.phases if p.backward is p.forward for tile in p.tiles()]


def keep_last(schedule: Schedule, count: int) -> Schedule:
    """The same tiles, of which the last ones are not run again: they are needed first in backward and live shortest."""
    names = keepable(schedule)
    keep = frozenset(names[len(names) - count :])
    return replace(schedule, steps=phase_steps(schedule.graph, schedule.phases, train=schedule.trains, keep=keep))


def _length(graph: Graph, axes: Axes, axis: str) -> int:
    """How long the image is along `axis`: the first input that has it, or whatever is longest."""
    inputs = [graph.shape(v)[axes.dims[v][axis]] for v in graph.inputs if axis in axes.dims[v]]
    return inputs[0] if inputs else max(graph.shape(v)[d[axis]] for v, d in axes.dims.items() if axis in d)


@dataclass
class _Tiles:
    """What a plan of tiles is made for."""

    graph: Graph
    axes: Axes
    mode: str
    tile: TileSizes
    lengths: Mapping[str, int]
    machine: Machine = CPU
    chosen: bool = False  # are seams chosen?
    carried: Collection[str] | None = None
    wide: set[str] = field(default_factory=set)  # values of which tiles would hold too much

    def phases(self) -> tuple[TilePhase, ...]:
        """Where halos outweigh a value, plans are also made in which it is kept whole; the smallest of all is taken."""
        stored: set[str] = set()
        found: list[tuple[TilePhase, ...]] = []
        for _ in range(MOST_ROUNDS):
            complete = self.mode == "stream"
            roles = sort_nodes(self.graph, self.axes, tuple(self.tile), complete=complete, stored=stored)
            self.wide = set()
            found.append(tuple(self._phases(roles, stored)))
            if not self.chosen or self.wide <= stored:
                break
            stored |= self.wide
        return min(found, key=held_bytes)

    def _phases(self, roles: Roles, stored: Collection[str]) -> list[TilePhase]:
        kept, replays = _keep(self.graph, roles, stored)
        found = []
        for number in sorted(set(roles.phase.values())):
            own = [n for n in self.graph.nodes if roles.phase[n.name] == number]
            nodes = [n for n in own if roles.part[n.name] is not NodePart.FOLD]
            folds = tuple(n for n in own if roles.part[n.name] is NodePart.FOLD)
            again = replays.get(number, set())
            nodes = [n for n in self.graph.nodes if n in nodes or n.name in again]
            if number % 2:
                found.append(whole_phase(self.graph, number, nodes, kept))
            elif folds or any(n.outputs[0] in kept for n in own):
                found.append(self._tiled(roles, number, nodes, folds, kept))
        return found

    def _tiled(
        self, roles: Roles, number: int, nodes: Sequence[Node], folds: tuple[Node, ...], kept: set[str]
    ) -> TilePhase:
        stores = tuple(n.outputs[0] for n in nodes if n.outputs[0] in kept and roles.phase[n.name] == number)
        sinks = {*stores, *(f.inputs[0].value for f in folds)}
        nodes = leading_to(sinks, nodes)
        gather = self.mode == "gather"
        forward = self._tiling(roles, nodes, "scatter" if gather else self.mode, sinks)
        backward = self._tiling(roles, nodes, self.mode, sinks) if gather else forward
        boxed = tuple(dict.fromkeys(v for line in forward.lines.values() for v in line.sources))
        made = {n.outputs[0] for n in nodes}
        loose = {name for n in nodes for i, name in enumerate(n.reads) if (n.name, i) in roles.whole}
        whole = dict.fromkeys(v for n in nodes for v in n.reads if (v not in made and v not in boxed) or v in loose)
        return TilePhase(number, self.graph, tuple(nodes), folds, boxed, tuple(whole), stores, forward, backward)

    def _tiling(self, roles: Roles, nodes: Sequence[Node], mode: str, sinks: set[str]) -> Tiling:
        def cut(line: Line) -> Cuts:
            names = line.starts(mode)
            share = self.tile[line.axis] / self.lengths[line.axis]
            sizes = {v: max(1, round(share * line.sizes[v])) for v in names}
            count = max(-(-line.sizes[v] // sizes[v]) for v in names)
            cuts = {v: _cut(line.sizes[v], sizes[v], count) for v in names}
            return _level(self.graph, line, cuts, count) if mode == "stream" and count > 1 else cuts

        def carry(lines: Mapping[str, Line], cuts: Mapping[str, Cuts]) -> Collection[str] | None:
            if not self.chosen:
                return self.carried
            seams = Seams(self.graph, self.axes, lines, cuts, self.machine)
            carried = seams.choose(nodes)
            self.wide |= seams.wide(seams.spans(carried), nodes)
            return carried

        return tile_nodes(self.graph, self.axes, nodes, mode, roles.tiled, cut, sinks, roles.whole, carry)


def _keep(graph: Graph, roles: Roles, stored: Collection[str]) -> tuple[set[str], dict[int, set[str]]]:
    """Which computed values are stored whole (`stored` certainly), and which nodes run again in which later phase."""
    kept = {name for name in graph.outputs if name in graph.producer}
    kept |= {new for _, new in graph.updates if new in graph.producer}
    replays: dict[int, set[str]] = {}

    def visit(value: str, number: int, reader: NodePart) -> None:
        maker = graph.producer.get(value)
        if maker is None or (roles.phase[maker.name] == number and roles.part[maker.name] is not NodePart.FOLD):
            return
        local = roles.part[maker.name] is NodePart.LOCAL
        free = value not in graph.outputs and value not in stored
        if local and reader is not NodePart.WHOLE and free and works_cheaply(graph, maker):
            if maker.name not in replays.setdefault(number, set()):
                replays[number].add(maker.name)
                for i, name in enumerate(maker.reads):
                    visit(name, number, NodePart.WHOLE if (maker.name, i) in roles.whole else NodePart.LOCAL)
        else:
            kept.add(value)

    for node in graph.nodes:
        for i, name in enumerate(node.reads):
            whole = (node.name, i) in roles.whole
            visit(name, roles.phase[node.name], NodePart.WHOLE if whole else roles.part[node.name])
    return kept, replays


def works_cheaply(graph: Graph, node: Node) -> bool:
    op, call = find(node), call_of(graph, node)
    rule = op.reads(call) or ()
    pointwise = all(read.dim is None or read.window == POINT for dims in rule for read in dims)
    return pointwise and op.flops(call) <= CHEAP_FLOPS


def whole_phase(graph: Graph, number: int, nodes: Sequence[Node], kept: set[str]) -> TilePhase:
    made = {out for n in nodes for out in n.outputs}
    reads = dict.fromkeys(v for n in nodes for v in n.reads if v not in made)
    stores = tuple(v for n in nodes for v in n.outputs if v in kept)
    return TilePhase(number, graph, tuple(nodes), whole=tuple(reads), stores=stores)


def leading_to(sinks: Collection[str], nodes: Sequence[Node]) -> list[Node]:
    """The nodes that `sinks` depend on; the others are only replayed in later phases."""
    wanted, found = set(sinks), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.reads)
            found.append(node)
    return found[::-1]


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
