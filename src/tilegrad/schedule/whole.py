"""Schedules of whole nodes over a training graph: what runs, what runs again, what is freed, what waits elsewhere.

A training graph has its backward nodes, and says which values each must still find. So all of its nodes are islands by
themselves, forward and backward ones alike. `fuse` makes of such a schedule one that can be executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..ir import Graph, Kind, Node
from ..region import Box
from .island import Island
from .schedule import Schedule
from .steps import Compute, Free, Move, Run, ScheduleStep, Store

DEVICE, HOST = "device", "host"


class Roots:
    """Which values share memory, how large it is, and which of it is there throughout."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.root: dict[str, str] = {}
        for value in graph.values:  # an alias comes after what it lives in
            self.root[value.name] = self.root[value.alias] if value.alias is not None else value.name
        self.bytes = {name: graph.type(name).bytes for name in self.root.values()}
        outside = {v.name for v in graph.values if not v.kind.computed}
        targets = {v.name for v in graph.of_kind(Kind.GRADIENT) if v.target is not None}
        self.resident = frozenset(self.root[name] for name in outside | targets)
        self.resident_bytes = sum(self.bytes[name] for name in self.resident)
        self.kept = frozenset(self.root[name] for name in graph.outputs)  # handed over at the end

    def reads(self, node: str) -> list[str]:
        """Roots a node reads that come and go."""
        found = dict.fromkeys(self.root[name] for name in self.graph.node[node].reads)
        return [name for name in found if name not in self.resident]

    def writes(self, node: str) -> list[str]:
        """Roots a node makes; an alias is made in memory that is there."""
        values = self.graph.value
        outputs = [out for out in self.graph.node[node].outputs if values[out].alias is None]
        return [name for name in outputs if name not in self.resident]

    def lived_in(self, node: str) -> list[str]:
        """Roots in whose memory a node makes its outputs."""
        outs = self.graph.node[node].outputs
        return [root for out in outs if (root := self.root[out]) != out and root not in self.resident]


def roots_of(graph: Graph) -> Roots:
    """Made once and kept with the graph: planners ask again and again."""
    found: Roots | None = graph.__dict__.get("_roots")
    if found is None:
        found = graph.__dict__["_roots"] = Roots(graph)
    return found


def whole_bytes(graph: Graph, node: Node) -> int:
    """What a node that runs whole holds at once: all that it reads and makes."""
    roots = roots_of(graph)
    return sum(roots.bytes[name] for name in {roots.root[value] for value in (*node.reads, *node.outputs)})


class NodeIslands(Mapping[str, Island]):
    """Every node of a graph by itself."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._made: dict[str, Island] = {}

    def __getitem__(self, name: str) -> Island:
        if name not in self._made:
            node, shape = self.graph.node[name], self.graph.shape
            out = Box.full(shape(node.outputs[0])) if node.outputs else Box(())
            run = Compute(name, out, tuple(Box.full(shape(v)) for v in node.reads))
            stores = (Store(v, Box.full(shape(v))) for v in node.outputs)
            self._made[name] = Island(name, (run, *stores), frozenset(node.reads))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.node)

    def __len__(self) -> int:
        return len(self.graph.nodes)


def islands_of(graph: Graph) -> NodeIslands:
    """Made once and kept with the graph, too."""
    found: NodeIslands | None = graph.__dict__.get("_islands")
    if found is None:
        found = graph.__dict__["_islands"] = NodeIslands(graph)
    return found


def whole_schedule(
    graph: Graph,
    planner: str,
    steps: Sequence[ScheduleStep],
    notes: tuple[str, ...] = (),
    gap: float | None = None,
) -> Schedule:
    return Schedule(graph, planner, steps=tuple(steps), islands=islands_of(graph), notes=notes, gap=gap)


Moves = Mapping[int, Sequence[Free | Move]]


def list_steps(graph: Graph, runs: Sequence[str], moves: Moves | None = None) -> list[ScheduleStep]:
    """Nodes in the order they run, each value freed right after its last use before it is made again. `moves`: what
    else happens right before the run of that number (a `Move` away, a `Free` of what is away, a `Move` back)."""
    roots, moves = roots_of(graph), moves or {}
    last_use = _last_uses(roots, runs, moves)
    steps: list[ScheduleStep] = []
    for at, node in enumerate(runs):
        steps += moves.get(at, ())
        steps.append(Run(node))
        steps += [Free(name) for name in last_use.get(at, ())]
    return steps + list(moves.get(len(runs), ()))


def _last_uses(roots: Roots, runs: Sequence[str], moves: Moves) -> dict[int, list[str]]:
    """Run number -> roots that nothing reads any more until they are made again."""
    found: dict[int, list[str]] = {}
    wanted: set[str] = set()
    for at in reversed(range(len(runs))):
        for step in reversed(moves.get(at + 1, ())):
            if isinstance(step, Move) and step.store == DEVICE:
                wanted.discard(step.value)
            else:
                wanted.add(step.value)  # it is freed there, or copied from
        made = roots.writes(runs[at])
        touched = dict.fromkeys([*roots.reads(runs[at]), *made, *roots.lived_in(runs[at])])
        found[at] = [name for name in touched if name not in wanted and name not in roots.kept]
        wanted |= set(touched)
        wanted -= set(made)
    return found
