"""Edges of a scanned drawing: how each port that an operator must have is known.

A label `->port` belongs to an operator just below its row, `port->` to one just above. A row that has more labels for
operators below than these have ports is *crowded*: labels of long edges pass there, and can only be counted, for all
operators further down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...errors import FormatError
from ...rects import Edge, Evidence, RectGraph
from ...rects.system import Gain
from .drawing_text import Label


def weigh_edges(
    graph: RectGraph, bands: dict[str, int], rows: Sequence[Sequence[Label]]
) -> tuple[dict[Edge, Evidence], list[Label]]:
    """How each edge is known, and the labels that are left over. `bands`: of every node that is seen; row r stands
    between the bands r and r + 1."""
    free = [Counter((label.port, label.out) for label in row if label.port) for row in rows]
    crowded = [_is_crowded(graph, bands, row, at) for at, row in enumerate(free)]
    found: dict[Edge, Evidence] = {}
    late: list[Edge] = []
    for op in graph.operators:
        band = bands.get(op.name)
        for edge in op.edges():
            port, out = edge.port.strip("->"), edge.src == op.name
            row = None if band is None else band if out else band - 1
            near = row is not None and 0 <= row < len(free) and (out or not crowded[row]) and free[row][port, out] > 0
            if near and row is not None:
                free[row][port, out] -= 1
            if near or (op.kind == "set_zero" and band is not None):
                found[edge] = Evidence.SEEN
            else:
                late.append(edge)
    for edge in late:
        found[edge] = _far(graph, edge, bands, free, crowded)
    return found, [label for at, row in enumerate(rows) for label in _unused(row, free[at])]


def _is_crowded(graph: RectGraph, bands: dict[str, int], row: Counter[tuple[str, bool]], at: int) -> bool:
    ports = sum(len(op.inputs) for op in graph.operators if bands.get(op.name) == at + 1)
    return sum(times for (_, out), times in row.items() if not out) > ports


def _far(
    graph: RectGraph, edge: Edge, bands: dict[str, int], free: list[Counter[tuple[str, bool]]], crowded: list[bool]
) -> Evidence:
    """An edge without a label beside its operator: the label may stand further up or down."""
    out = edge.src in graph.operator
    port, band = edge.port.strip("->"), bands.get(edge.src if out else edge.dst)
    if band is None:
        return Evidence.INFERRED
    for at, row in enumerate(free):
        if row[port, out] > 0 and ((out and at > band) or (not out and crowded[at] and at < band)):
            row[port, out] -= 1
            return Evidence.SEEN if out else Evidence.COUNTED
    return Evidence.INFERRED


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
