"""Behind which point of a network every rank computes whole maps, instead of its part of them.

Small maps gain nothing by being cut: their layers take as long as laying out their weights does, at each of them ranks
meet, and gradients as large as the weights are added up. Behind a point that one value crosses, ranks fetch that value,
and run the rest alike (rule P5 in `bounds.placement`): nobody waits for anybody forward, and backward the first rank
tells its gradients. All ranks must come to the same answer, as in `exchange`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...bounds import Placement, call_of, label_axes, place_values
from ...ir import Graph, Node
from ...ops import find
from ...region import POINT
from ..problem import MeshProblem
from .plan import plan_mesh
from .way import CROWDED, Way

MOST = 20  # points that are tried
WORTH = 0.995  # of the time without a point: less of a difference is none


@dataclass(frozen=True)
class TailPoint:
    """The value that crosses the point, and the nodes behind it."""

    value: str
    nodes: tuple[str, ...]


NO_POINT = TailPoint("", ())


def choose_tail(ranks: MeshProblem, exchanged: Sequence[str]) -> TailPoint:
    """What is predicted to be fastest. Who says how halos are exchanged has all of the network cut, and so have GPUs,
    on which nobody has measured it."""
    if ranks.exchange != "auto" or ranks.mesh.count == 1 or ranks.machine.kernel_s is not None:
        return NO_POINT
    plain = Way(plan_mesh(ranks.graph, ranks.mesh, exchanged=exchanged), ranks)
    ways = {NO_POINT: plain, **whole_ways(ranks, exchanged)}
    seconds = {point: way.step_s(CROWDED) for point, way in ways.items()}
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < WORTH * seconds[NO_POINT] else NO_POINT


def whole_ways(ranks: MeshProblem, exchanged: Sequence[str]) -> dict[TailPoint, Way]:
    """A plan for each point, where every rank has a part of all that is left to be cut."""
    found = dict[TailPoint, Way]()
    for tail in tails(ranks.graph, ranks.mesh.axes):
        plan = plan_mesh(ranks.graph, ranks.mesh, exchanged=exchanged, whole=tail.nodes)
        if plan.full:
            found[tail] = Way(plan, ranks)
    return found


def tails(graph: Graph, mesh: Sequence[str]) -> list[TailPoint]:
    """Points that may be chosen, the last first: in front of layers with a window, where nothing else that is cut is
    read behind them, and nothing that would be cut is given out."""
    axes = label_axes(graph)
    placement = place_values(graph, axes, mesh)
    found = dict[str, TailPoint]()
    for at, crossing in _crossings(graph, placement):
        behind = graph.nodes[at:]
        if crossing in graph.producer and any(_has_window(graph, node, crossing) for node in behind):
            found[crossing] = TailPoint(crossing, tuple(node.name for node in behind))
    return list(found.values())[:: -(-len(found) // MOST) or 1]


def _crossings(graph: Graph, placement: Placement) -> Iterator[tuple[int, str]]:
    """Places in the order of nodes, from the end, behind which of all that is cut before one value is read."""
    read = set[str]()
    for at in range(len(graph.nodes) - 1, 0, -1):
        node = graph.nodes[at]
        if any(placement.cut[out] and out in graph.outputs for out in node.outputs):
            return
        read = (read - {*node.outputs}) | {name for name in node.reads if placement.cut[name]}
        if len(read) == 1:
            (crossing,) = read
            yield at, crossing


def _has_window(graph: Graph, node: Node, value: str) -> bool:
    """Does it read more of a value than one place for each that it makes?"""
    rule = find(node).reads(call_of(graph, node)) or ()
    reads = (dims for slot, dims in zip(node.inputs, rule, strict=False) if slot.value == value)
    return any(read.dim is not None and read.window != POINT for dims in reads for read in dims)
