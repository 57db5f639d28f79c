"""Which values ranks own by box, and what each node does along every axis of a mesh.

A value that lies on a mesh axis is *cut* along it: every rank owns one interval. Along the other axes all ranks hold
the same. What a node does along a mesh axis that its inputs are cut along:

Rule P1  *local*: every dimension on the axis is driven by the output's: the output is cut along it too.
Rule P2  *fold*: the axis is read whole by a reduction that can be accumulated: ranks combine their parts, and all of
         them have the result. A node may be local along one axis and fold another.
Rule P3  *gather*: the axis is read whole by anything else that has a box rule (a view that flattens the image, a map of
         one pixel): every rank fetches all of it and computes the same. An operator without a box rule is an error.
Rule P4  Phases: a local node joins the phase of its inputs where they are cut along the same axes; what reads a fold's
         result, a value that is exchanged (`exchanged`), or values cut along fewer axes begins a later one.
Rule P5  The *tail* is every node whose output is not cut and of which nothing is made that is, by folds neither: what
         every rank computes alike to the end. Its gradients count on the first rank alone, and nothing of them is made
         on others. A planner may gather nodes that could be cut (`whole`), to make it longer.
Rule P6  Of what was gathered so, convolutions with large weights that nobody else reads are *shared*: each rank makes
         some of the channels, and what backward makes with their weights. To that end all ranks go back through the
         tail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..errors import GridError
from ..ir import Graph, Kind, Node
from ..ops import Call, Op, Reduction, find
from ..region import Box
from .axes import Axes, call_of

NONE: frozenset[str] = frozenset()
SHARED_BYTES = 1 << 18  # of weights: for less, ranks do not meet twice


@dataclass(frozen=True)
class Placement:
    mesh: tuple[str, ...]  # axes, by their names in the graph
    cut: Mapping[str, frozenset[str]]  # by value: the axes it is cut along
    folds: Mapping[str, frozenset[str]]  # by node: the axes it folds
    phase: Mapping[str, int]  # by node
    exchanged: frozenset[str]  # values whose halos move between ranks although nothing else ends there
    tail: frozenset[str] = frozenset()  # nodes
    whole: frozenset[str] = frozenset()  # nodes of it that are gathered although they could be cut
    shared: frozenset[str] = frozenset()  # of these, those whose channels ranks share

    def is_fold(self, node: Node) -> bool:
        return bool(self.folds[node.name])


def place_values(
    graph: Graph, axes: Axes, mesh: Sequence[str], exchanged: Collection[str] = (), whole: Collection[str] = ()
) -> Placement:
    """Place all values of a lowered graph. `whole`: nodes that are gathered although they could be cut."""
    cut: dict[str, frozenset[str]] = {}
    for value in graph.values:
        if not value.kind.computed:
            owned = value.kind in (Kind.INPUT, Kind.PARAMETER)  # of buffers and constants every rank has all
            cut[value.name] = frozenset(a for a in mesh if owned and a in axes.dims[value.name])
    folds: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        apart = node.name in whole
        cut[node.outputs[0]], folds[node.name] = (NONE, NONE) if apart else _place(graph, axes, node, cut, mesh)
    tail = _tail(graph, cut, folds)
    phase: dict[str, int] = {}
    for node in graph.nodes:
        phase[node.name] = _phase(graph, node, cut, folds, phase, frozenset(exchanged), tail)
    shared = frozenset(node.name for node in graph.nodes if node.name in tail & set(whole) and _is_shared(graph, node))
    return Placement(tuple(mesh), cut, folds, phase, frozenset(exchanged), tail, frozenset(whole), shared)


def _tail(graph: Graph, cut: Mapping[str, frozenset[str]], folds: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Rule P5."""
    found = set[str]()
    for node in reversed(graph.nodes):
        readers = (reader for out in node.outputs for reader in graph.consumers[out])
        if not cut[node.outputs[0]] and not folds[node.name] and all(reader.name in found for reader in readers):
            found.add(node.name)
    return frozenset(found)


def _is_shared(graph: Graph, node: Node) -> bool:
    """Rule P6."""
    call = call_of(graph, node)
    if not find(node).by_channels or call.attr("groups", 1) > 1:
        return False
    weight = node.reads[call.index["weight"]]
    mine = graph.value[weight].kind is Kind.PARAMETER and graph.consumers[weight] == (node,)
    return mine and weight not in graph.outputs and graph.type(weight).bytes >= SHARED_BYTES


def read_by_tail(graph: Graph, tail: Collection[str]) -> frozenset[str]:
    """What nobody else reads."""
    readers = graph.consumers
    return frozenset(v.name for v in graph.values if readers[v.name] and all(n.name in tail for n in readers[v.name]))


def _place(
    graph: Graph, axes: Axes, node: Node, cut: Mapping[str, frozenset[str]], mesh: Sequence[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The axes a node's output is cut along, and those it folds."""
    op, call = find(node), call_of(graph, node)
    rule = op.reads(call)
    concerned = frozenset().union(*(cut[name] for name in node.reads)) if node.inputs else frozenset[str]()
    made = axes.dims[node.outputs[0]]
    if op.anywhere:  # it makes any box of what no input drives
        concerned |= {axis for axis in mesh if axis in made}
    if not concerned:
        return frozenset(), frozenset()
    if rule is None:
        raise _no_rule(node, sorted(concerned))
    if op.opaque or any((node.name, i) in axes.whole for i in range(len(node.inputs))):
        return (
            frozenset(),
            frozenset(),
        )  # gathered: axes that cannot be told apart, and a backward that needs all of a gradient
    local, folds = set[str](), set[str]()
    for axis in concerned:
        drives = [
            dims[axes.dims[slot.value][axis]].dim
            for slot, dims in zip(node.inputs, rule, strict=True)
            if axis in cut[slot.value]
        ]
        if axis in made and all(drive == made[axis] for drive in drives):
            local.add(axis)
        elif drives and all(drive is None for drive in drives) and _can_fold(op, call, node):
            folds.add(axis)
    if folds and len(local) + len(folds) < len(concerned):
        folds.clear()  # what is gathered along one axis anyway is reduced whole
    return frozenset(local), frozenset(folds)


def _can_fold(op: Op, call: Call, node: Node) -> bool:
    if not isinstance(op, Reduction) or not op.foldable(call):
        return False
    return len(node.inputs) == 1 or bool(op.beside(call, Box.full(call.inputs[0].shape)))


def _no_rule(node: Node, axes: Sequence[str]) -> GridError:
    return GridError(
        f"'{node.op}' has no box rule, so it cannot be cut along {', '.join(axes)} across ranks",
        where=node.describe(),
        hint=f"a mesh without {', '.join(axes)}, or another layer",
    )


def _phase(
    graph: Graph,
    node: Node,
    cut: Mapping[str, frozenset[str]],
    folds: Mapping[str, frozenset[str]],
    phase: Mapping[str, int],
    exchanged: frozenset[str],
    tail: frozenset[str],
) -> int:
    latest = 0
    walked = cut[node.outputs[0]] | folds[node.name]  # the axes of the walk it belongs to
    for name in node.reads:
        maker = graph.producer.get(name)
        if maker is None:
            continue
        moved = name in exchanged and not folds[node.name]  # a fold reads no halo
        same = (
            not folds[maker.name] and cut[name] == walked and not moved and (maker.name in tail) == (node.name in tail)
        )
        latest = max(latest, phase[maker.name] + (not same))
    return latest
