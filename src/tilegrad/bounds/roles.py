"""What each node is to a walk over tiles: local, a fold, or whole; and in which phase it runs.

Rule B1  A *local* node's output lies on every tiled axis, and each of them drives an input's dimension on the same
         axis (or the operator makes any box anywhere). An input whose tiled dimensions are not all driven so is read
         *whole*: it is stored, and the node belongs to a later walk than its maker.
Rule B2  A *fold* reads every tiled axis of what a walk makes whole, and can be accumulated tile by tile.
Rule B3  Everything else is *whole*: it runs once, on whole values.
Rule B4  Phases: tiled walks have even numbers, whole nodes odd ones. A local node joins the walk of its local inputs,
         or the first walk after the last fold or whole node it depends on.
Rule B5  What walks read of nodes that wait for no walk (masks that are drawn, weights that are computed) is made before
         the first one: no walk ends for its sake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from ..ir import Graph, Node
from ..ops import Read, Reduction, find
from .axes import AXES, Axes, call_of, label_axes

TOLERATED = 0.05  # of all bytes made whole, before an axis is given up


class NodePart(StrEnum):
    LOCAL = "local"
    FOLD = "fold"
    WHOLE = "whole"


@dataclass(frozen=True)
class Roles:
    tiled: tuple[str, ...]  # the axes that are cut
    part: dict[str, NodePart]  # by node
    phase: dict[str, int]  # by node
    local: frozenset[str]  # values that exist tile by tile
    whole: frozenset[tuple[str, int]] = frozenset()  # (local node, input): read whole although it lies on the axes


def share_of(graph: Graph, chosen: Callable[[Node], bool]) -> float:
    """The share of all bytes that nodes make which these nodes make. Views make none; what is made of parameters alone
    does not grow with the image, and does not count."""
    made = part = 0
    fed = set(graph.inputs)
    for node in graph.nodes:
        if fed.isdisjoint(node.reads):
            continue
        fed.update(node.outputs)
        if not find(node).view:
            size = graph.type(node.outputs[0]).bytes
            made += size
            part += size if chosen(node) else 0
    return part / made if made else 0.0


def choose_axes(graph: Graph) -> tuple[str, ...]:
    """The image's axes, but for one along which too much would have to run whole: the globe around which a network
    pads, the columns of an image that becomes a row of tokens."""
    axes = label_axes(graph)
    every = [axis for axis in AXES[1:] if any(axis in dims for dims in axes.dims.values())]

    def whole(chosen: Sequence[str]) -> float:
        roles = sort_nodes(graph, axes, chosen)
        return share_of(graph, lambda node: roles.part[node.name] is NodePart.WHOLE)

    best = tuple(every)
    if len(every) < 2 or (least := whole(every)) <= TOLERATED:
        return best
    for count in range(len(every) - 1, 0, -1):
        for chosen in combinations(every, count):
            if (share := whole(chosen)) < least - TOLERATED:
                best, least = chosen, share
    return best


def sort_nodes(
    graph: Graph, axes: Axes, tiled: Sequence[str], *, complete: bool = True, stored: Collection[str] = ()
) -> Roles:
    """Assign every node its part and its phase. `complete`: does a tile get all of the gradient of what it makes? Where
    tiles overlap it gets its share, which a user's own backward may not be given. `stored`: values at which a walk ends
    although it could go on."""
    known: dict[object, _Parts] = graph.__dict__.setdefault("_parts", {})  # found once, whatever is stored
    key = tuple(tiled), complete
    if key not in known:
        known[key] = _parts(graph, axes, tiled, complete)
    part, whole = known[key]
    phase: dict[str, int] = {}
    first = 2 if _is_made_first(graph, part) else 0
    for node in graph.nodes:
        phase[node.name] = _phase(graph, node, part, phase, whole, stored, first)
    local = (out for node in graph.nodes if part[node.name] is NodePart.LOCAL for out in node.outputs)
    return Roles(tuple(tiled), part, phase, frozenset(local), whole)


_Parts = tuple[dict[str, NodePart], frozenset[tuple[str, int]]]


def _parts(graph: Graph, axes: Axes, tiled: Sequence[str], complete: bool) -> _Parts:
    """Every node's part, and what is read whole although it lies on the axes."""
    part, whole = dict[str, NodePart](), set[tuple[str, int]]()
    for node in graph.nodes:
        shared = not complete and find(node).opaque
        part[node.name], read = _part(graph, node, axes, () if shared else tiled)
        whole |= {(node.name, i) for i in read}
    walked = {out for node in graph.nodes if part[node.name] is NodePart.LOCAL for out in node.outputs}
    for node in graph.nodes:
        if part[node.name] is NodePart.FOLD and node.inputs[0].value not in walked:
            part[node.name] = NodePart.WHOLE
    for node in graph.nodes:
        if part[node.name] is NodePart.LOCAL and _ends_in_head(graph, node, part, axes, tiled):
            part[node.name] = NodePart.FOLD if node.inputs[0].value in walked else NodePart.WHOLE
    return part, frozenset(whole)


def _ends_in_head(graph: Graph, node: Node, part: dict[str, NodePart], axes: Axes, tiled: Sequence[str]) -> bool:
    """Pooling into bins that only whole nodes read: the end of the image, though it still has its axes."""
    op = find(node)
    if not isinstance(op, Reduction) or not op.binned or node.outputs[0] in graph.outputs:
        return False
    dims, first = axes.dims[node.inputs[0].value], len(graph.shape(node.inputs[0].value)) - op.spatial
    binned = all(axis in dims and dims[axis] >= first for axis in tiled)  # not along the batch
    return binned and all(part[reader.name] is NodePart.WHOLE for reader in graph.consumers[node.outputs[0]])


def _part(graph: Graph, node: Node, axes: Axes, tiled: Sequence[str]) -> tuple[NodePart, list[int]]:
    """A node's part, and the inputs that a local one reads whole."""
    op, call = find(node), call_of(graph, node)
    rule = op.reads(call)
    if rule is None or not tiled:
        return NodePart.WHOLE, []
    out = axes.dims[node.outputs[0]]
    folded, loose = True, list[int]()
    driven = set(tiled) if op.anywhere else set[str]()
    for i, dims in enumerate(rule):
        where = axes.dims[node.inputs[i].value]
        drives = {axis: dims[where[axis]].dim for axis in tiled if axis in where}
        folded &= all(drive is None for drive in drives.values())
        if (node.name, i) in axes.whole or any(d is None or out.get(axis) != d for axis, d in drives.items()):
            loose.append(i)
        else:
            driven |= drives.keys() | {axis for axis in tiled if axis in out and _made_from(dims, out[axis])}
    if all(axis in out and axis in driven for axis in tiled):
        return NodePart.LOCAL, loose
    can_fold = isinstance(op, Reduction) and op.foldable(call)
    first = node.inputs[0].value if node.inputs else ""
    if can_fold and folded and len(node.inputs) == 1 and all(axis in axes.dims[first] for axis in tiled):
        return (NodePart.FOLD if not any(axis in out for axis in tiled) else NodePart.WHOLE), []
    return NodePart.WHOLE, []


def _made_from(dims: Sequence[Read], dim: int) -> bool:
    """Does a dimension of the output drive one of this input?"""
    return any(read.dim == dim for read in dims)


def _is_made_first(graph: Graph, parts: dict[str, NodePart]) -> bool:
    """Rule B5: is there such a node?"""
    early = set[str]()
    for node in graph.nodes:
        makers = [graph.producer[name].name for name in node.reads if name in graph.producer]
        if parts[node.name] is NodePart.WHOLE and early.issuperset(makers):
            early.add(node.name)
        elif parts[node.name] is not NodePart.WHOLE and not early.isdisjoint(makers):
            return True
    return False


def _phase(
    graph: Graph,
    node: Node,
    parts: dict[str, NodePart],
    phase: dict[str, int],
    whole: Collection[tuple[str, int]],
    stored: Collection[str],
    first: int,
) -> int:
    """`first`: of the walks."""
    part = parts[node.name]
    latest = first if part is not NodePart.WHOLE else 1
    for i, name in enumerate(node.reads):
        if (maker := graph.producer.get(name)) is None:
            continue
        at, kind = phase[maker.name], parts[maker.name]
        if kind is NodePart.FOLD:  # its result is ready when its walk has ended
            latest = max(latest, at + 1 if part is NodePart.WHOLE else at + 2)
        elif kind is NodePart.WHOLE:
            latest = max(latest, at if part is NodePart.WHOLE else at + 1)
        elif (node.name, i) in whole or (name in stored and part is NodePart.LOCAL):  # from an earlier walk
            latest = max(latest, at + 2)
        else:
            latest = max(latest, at + 1 if part is NodePart.WHOLE else at)
    return latest
