"""Edges of a scanned drawing: how each port that an operator must have is known.

A label `->port` belongs to an operator just below its row, `port->` to one just above. A row that has more labels for
operators below than these have ports is *crowded*: labels of long edges pass there, and can only be counted, for all
operators further down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...errors import FormatError
from ...ir import Graph
from ...rects.step import Edge, edges, inputs_of
from ...rects.system import Gain
from .drawing_text import Label


def weigh_edges(
    graph: Graph, bands: dict[str, int], rows: Sequence[Sequence[Label]]
) -> tuple[dict[Edge, str], list[Label]]:
    """How each edge is known, and the labels that are left over. `bands`: of every node that is seen; row r stands
    between the bands r and r + 1."""
    free = [Counter((label.port, label.out) for label in row if label.port) for row in rows]
    crowded = [_is_crowded(graph, bands, row, at) for at, row in enumerate(free)]
    found: dict[Edge, str] = {}
    late: list[Edge] = []
    for node in graph.nodes:
        band = bands.get(node.name)
        for edge in edges(graph, node):
            port, out = edge[2].strip("->"), edge[0] == node.name
            row = None if band is None else band if out else band - 1
            near = row is not None and 0 <= row < len(free) and (out or not crowded[row]) and free[row][port, out] > 0
            if near and row is not None:
                free[row][port, out] -= 1
            if near or (node.op == "set_zero" and band is not None):
                found[edge] = "seen"
            else:
                late.append(edge)
    for edge in late:
        found[edge] = _far(graph, edge, bands, free, crowded)
    return found, [label for at, row in enumerate(rows) for label in _unused(row, free[at])]


def _is_crowded(graph: Graph, bands: dict[str, int], row: Counter[tuple[str, bool]], at: int) -> bool:
    ports = sum(len(inputs_of(graph, node)) for node in graph.nodes if bands.get(node.name) == at + 1)
    return sum(times for (_, out), times in row.items() if not out) > ports


def _far(
    graph: Graph, edge: Edge, bands: dict[str, int], free: list[Counter[tuple[str, bool]]], crowded: list[bool]
) -> str:
    """An edge without a label beside its operator: the label may stand further up or down."""
    src, dst, label = edge
    out = src in graph.node
    port, band = label.strip("->"), bands.get(src if out else dst)
    if band is None:
        return "inferred"
    for at, row in enumerate(free):
        if row[port, out] > 0 and ((out and at > band) or (not out and crowded[at] and at < band)):
            row[port, out] -= 1
            return "seen" if out else "counted"
    return "inferred"


def _unused(row: Sequence[Label], left: Counter[tuple[str, bool]]) -> list[Label]:
    left = Counter(left)
    found = []
    for label in reversed(row):
        if left[label.port, label.out] > 0:
            left[label.port, label.out] -= 1
            found.append(label)
    return found


def find_gain(rows: Sequence[Sequence[Label]], layers: int, file: str) -> Gain:
    """Which of the two gains is drawn: the gradient of a*(x+b) reads b, that of a*x+b does not."""
    count = Counter(label.port for row in rows for label in row if not label.out)
    if count["b"] > layers:
        return "a*(x+b)"
    if count["b"] == layers and count["a"] == 2 * layers:  # no label is lost
        return "a*x+b"
    what = f"{count['a']} labels '->a' and {count['b']} '->b': does the gradient of the gain read b?"
    raise FormatError(what, where=file, hint="scan it again")
