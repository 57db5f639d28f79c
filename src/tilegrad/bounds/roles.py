"""What each node is to a walk over tiles: local, a fold, or whole; and in which phase it runs.

Rule B1  A *local* node's output lies on every tiled axis, each tiled dimension of its inputs is driven by the
         output's dimension on the same axis, and that one drives something (or the operator makes any box anywhere).
Rule B2  A *fold* reads every tiled axis of what a walk makes whole, and can be accumulated tile by tile.
Rule B3  Everything else is *whole*: it runs once, on whole values.
Rule B4  Phases: tiled walks have even numbers, whole nodes odd ones. A local node joins the walk of its local inputs,
         or the first walk after the last fold or whole node it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..ir import Graph, Node
from ..ops import Reduction, find
from .axes import Axes, call_of


class Part(StrEnum):
    LOCAL = "local"
    FOLD = "fold"
    WHOLE = "whole"


@dataclass(frozen=True)
class Roles:
    tiled: tuple[str, ...]  # the axes that are cut
    part: dict[str, Part]  # by node
    phase: dict[str, int]  # by node
    local: frozenset[str]  # values that exist tile by tile


def sort_nodes(graph: Graph, axes: Axes, tiled: Sequence[str]) -> Roles:
    """Assign every node its part and its phase."""
    part = {node.name: _part(graph, node, axes, tiled) for node in graph.nodes}
    walked = {out for node in graph.nodes if part[node.name] is Part.LOCAL for out in node.outputs}
    for node in graph.nodes:
        if part[node.name] is Part.FOLD and node.inputs[0].value not in walked:
            part[node.name] = Part.WHOLE
    for node in graph.nodes:
        if part[node.name] is Part.LOCAL and _ends_in_head(graph, node, part, axes, tiled):
            part[node.name] = Part.FOLD if node.inputs[0].value in walked else Part.WHOLE
    phase: dict[str, int] = {}
    for node in graph.nodes:
        phase[node.name] = _phase(graph, node, part[node.name], phase, part)
    local = (out for node in graph.nodes if part[node.name] is Part.LOCAL for out in node.outputs)
    return Roles(tuple(tiled), part, phase, frozenset(local))


def _ends_in_head(graph: Graph, node: Node, part: dict[str, Part], axes: Axes, tiled: Sequence[str]) -> bool:
    """Pooling into bins that only whole nodes read: the end of the image, though it still has its axes."""
    op = find(node)
    if not isinstance(op, Reduction) or not op.binned or node.outputs[0] in graph.outputs:
        return False
    dims, first = axes.dims[node.inputs[0].value], len(graph.shape(node.inputs[0].value)) - op.spatial
    binned = all(axis in dims and dims[axis] >= first for axis in tiled)  # not along the batch
    return binned and all(part[reader.name] is Part.WHOLE for reader in graph.consumers[node.outputs[0]])


def _part(graph: Graph, node: Node, axes: Axes, tiled: Sequence[str]) -> Part:
    op, call = find(node), call_of(graph, node)
    rule = op.reads(call)
    if rule is None or node.name in axes.barriers or not tiled:
        return Part.WHOLE
    out = axes.dims[node.outputs[0]]
    driven, folded = True, True
    for i, dims in enumerate(rule):
        where = axes.dims[node.inputs[i].value]
        for axis in tiled:
            if axis not in where:
                continue
            drive = dims[where[axis]].dim
            driven &= drive is not None and out.get(axis) == drive
            folded &= drive is None
    cut = {read.dim for dims in rule for read in dims}
    if driven and all(axis in out and (op.anywhere or out[axis] in cut) for axis in tiled):
        return Part.LOCAL
    can_fold = isinstance(op, Reduction) and op.foldable(call)
    first = node.inputs[0].value if node.inputs else ""
    if can_fold and folded and len(node.inputs) == 1 and all(axis in axes.dims[first] for axis in tiled):
        return Part.FOLD if not any(axis in out for axis in tiled) else Part.WHOLE
    return Part.WHOLE


def _phase(graph: Graph, node: Node, part: Part, phase: dict[str, int], parts: dict[str, Part]) -> int:
    latest = 0 if part is not Part.WHOLE else 1
    for name in node.reads:
        if (maker := graph.producer.get(name)) is None:
            continue
        at, kind = phase[maker.name], parts[maker.name]
        if kind is Part.FOLD:  # its result is ready when its walk has ended
            latest = max(latest, at + 1 if part is Part.WHOLE else at + 2)
        elif kind is Part.WHOLE:
            latest = max(latest, at if part is Part.WHOLE else at + 1)
        else:
            latest = max(latest, at + 1 if part is Part.WHOLE else at)
    return latest
