"""Where gradients go: a question of the graph alone."""

from __future__ import annotations

from collections.abc import Collection

from ..ir import Graph, Node
from ..ops import find


def needed_gradients(graph: Graph, graded: Collection[str]) -> frozenset[str]:
    """The values whose gradient is wanted, given the outside values that require one."""
    found = set(graded)
    for node in graph.nodes:
        if _passes(node) and any(name in found for name in node.reads):
            found.update(out for out in node.outputs if graph.type(out).floating)
    return frozenset(found)


def reached_by(graph: Graph, outputs: Collection[str]) -> frozenset[str]:
    """The values that a gradient of these outputs comes by, even if it is zero when it gets there."""
    found = set(outputs)
    for node in reversed(graph.nodes):
        # the backward of a user's own function may give nothing
        if _passes(node) and not find(node).opaque and any(out in found for out in node.outputs):
            found.update(node.reads)
    return frozenset(found)


def _passes(node: Node) -> bool:
    return node.op != "detach" and not find(node).blind
