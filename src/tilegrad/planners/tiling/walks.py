"""A lowered graph sorted into phases, once for tiles of any size: which nodes walk together, what is kept between them,
what is run again where it is read.

Between phases only what is dear to compute again is kept (convolutions, pools); a cheap chain (normalise, add,
activate) that starts from kept values is replayed where it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...bounds import Axes, Line, NodePart, Roles, SolvedLines, call_of, label_axes, line_of, sort_nodes
from ...ir import Graph, Node
from ...ops import find
from ...region import POINT
from ...schedule import TilePhase

CHEAP_FLOPS = 16.0  # per element: normalise, add, activate, but no convolution


@dataclass(frozen=True)
class UncutPhase:
    """Nodes that are walked over together, along lines that are still to be cut."""

    number: int
    nodes: tuple[Node, ...]
    folds: tuple[Node, ...]
    stores: tuple[str, ...]
    sinks: frozenset[str]
    boxed: tuple[str, ...]
    whole: tuple[str, ...]
    loose: frozenset[tuple[str, int]]  # (node, input) that is read whole although it lies on the axes
    lines: Mapping[str, Line] = field(repr=False)
    known: dict[object, object] = field(
        default_factory=dict, repr=False, compare=False
    )  # what was found out along them


@dataclass
class Walks:
    """All ways to sort a graph, made when they are asked for."""

    graph: Graph
    _known: dict[tuple[object, ...], tuple[UncutPhase | TilePhase, ...]] = field(default_factory=dict)
    _walked: dict[tuple[object, ...], UncutPhase] = field(default_factory=dict)  # whatever others store

    def __post_init__(self) -> None:
        self.axes: Axes = label_axes(self.graph)
        self.solved = SolvedLines()

    def parts(
        self,
        tiled: tuple[str, ...],
        *,
        complete: bool,
        stored: frozenset[str] = frozenset(),
        fluid: frozenset[str] = frozenset(),
    ) -> tuple[UncutPhase | TilePhase, ...]:
        """Walks along these axes, and phases of whole nodes between them. `complete`, `stored`: see `sort_nodes`.
        `fluid`: values that are run again where they are read, though that is dear."""
        key = (tiled, complete, stored, fluid)
        if key not in self._known:
            roles = sort_nodes(self.graph, self.axes, tiled, complete=complete, stored=stored)
            self._known[key] = tuple(self._sorted(roles, stored, fluid))
        return self._known[key]

    def _sorted(self, roles: Roles, stored: Collection[str], fluid: Collection[str]) -> list[UncutPhase | TilePhase]:
        kept, replays = _keep(self.graph, roles, stored, fluid)
        found: list[UncutPhase | TilePhase] = []
        for number in sorted(set(roles.phase.values())):
            own = [n for n in self.graph.nodes if roles.phase[n.name] == number]
            nodes = {n.name for n in own if roles.part[n.name] is not NodePart.FOLD} | replays.get(number, set())
            folds = tuple(n for n in own if roles.part[n.name] is NodePart.FOLD)
            ordered = [n for n in self.graph.nodes if n.name in nodes]
            if number % 2:
                found.append(whole_phase(self.graph, number, ordered, kept))
            elif folds or any(n.outputs[0] in kept for n in own):
                found.append(self._walk(roles, number, ordered, folds, kept))
        return found

    def _walk(
        self, roles: Roles, number: int, nodes: Sequence[Node], folds: tuple[Node, ...], kept: set[str]
    ) -> UncutPhase:
        stores = tuple(n.outputs[0] for n in nodes if n.outputs[0] in kept and roles.phase[n.name] == number)
        sinks = frozenset((*stores, *(f.inputs[0].value for f in folds)))
        nodes = leading_to(sinks, nodes)
        key = roles.tiled, roles.whole, tuple(n.name for n in nodes), tuple(n.name for n in folds), stores
        if key not in self._walked:
            self._walked[key] = self._lined(roles, nodes, folds, stores, sinks)
        return replace(self._walked[key], number=number)

    def _lined(
        self,
        roles: Roles,
        nodes: Sequence[Node],
        folds: tuple[Node, ...],
        stores: tuple[str, ...],
        sinks: frozenset[str],
    ) -> UncutPhase:
        lines = {axis: line_of(self.graph, self.axes, nodes, axis, sinks, roles.whole) for axis in roles.tiled}
        boxed = tuple(dict.fromkeys(v for line in lines.values() for v in line.sources))
        made = {n.outputs[0] for n in nodes}
        loose = {name for n in nodes for i, name in enumerate(n.reads) if (n.name, i) in roles.whole}
        whole = dict.fromkeys(v for n in nodes for v in n.reads if (v not in made and v not in boxed) or v in loose)
        return UncutPhase(0, tuple(nodes), folds, stores, sinks, boxed, tuple(whole), roles.whole, lines)


def _keep(
    graph: Graph, roles: Roles, stored: Collection[str], fluid: Collection[str]
) -> tuple[set[str], dict[int, set[str]]]:
    """Which computed values are stored whole (`stored` certainly, `fluid` only where they must be), and which nodes run
    again in which later phase."""
    kept = {name for name in graph.outputs if name in graph.producer}
    kept |= {new for _, new in graph.updates if new in graph.producer}
    replays: dict[int, set[str]] = {}

    def visit(value: str, number: int, reader: NodePart) -> None:
        maker = graph.producer.get(value)
        if maker is None or (roles.phase[maker.name] == number and roles.part[maker.name] is not NodePart.FOLD):
            return
        local = roles.part[maker.name] is NodePart.LOCAL
        free = value not in graph.outputs and value not in stored
        if local and reader is not NodePart.WHOLE and free and (value in fluid or works_cheaply(graph, maker)):
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
