"""A graph of rects for Graphviz: arrays as boxes with their dims and rects, operators as ovals, ports on the arrows."""

from __future__ import annotations

from collections.abc import Iterator

from ..region import Box
from .model import Array, Dim, RectGraph, RectOperator

LABEL = 120  # characters of a line


def to_dot(graph: RectGraph) -> str:
    """The text of a .dot file."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: RectGraph) -> Iterator[str]:
    node = {name: f"a{at}" for at, name in enumerate(graph.array)}
    node |= {name: f"o{at}" for at, name in enumerate(graph.operator)}
    yield f"digraph {_quote(graph.name)} {{"
    yield '  node [fontname="sans-serif"];'
    for array in graph.arrays:
        yield f"  {node[array.name]} [shape=box, label={_label(_array(array))}];"
    for op in graph.operators:
        yield f"  {node[op.name]} [shape=oval, label={_label(_operator(op))}];"
    for edge in graph.edges:
        style = ", style=dashed" if graph.evidence.get(edge) == "inferred" else ""
        yield f"  {node[edge.src]} -> {node[edge.dst]} [label={_quote(edge.port)}{style}];"
    yield "}"


def _array(array: Array) -> Iterator[str]:
    yield array.name
    yield f"dim={_dim(array.dim)}"
    yield f"read_rect={_rect(array.read_rect)}"
    yield f"write_rect={'None' if array.write_rect is None else _rect(array.write_rect)}"


def _operator(op: RectOperator) -> Iterator[str]:
    yield op.name
    if op.result_dim is not None:
        yield f"result_dim={_dim(op.result_dim)}"
    for key, rect in op.dists.items():
        yield f"{key}={_rect(rect)}"


def _dim(dim: Dim) -> str:
    return "[" + " ".join(map(str, dim)) + "]"


def _rect(rect: Box) -> str:
    return "[" + " ".join(f"{side.lo}:{side.hi}" for side in rect) + "]"


def _label(lines: Iterator[str]) -> str:
    return '"' + "\\n".join(_escape(line[:LABEL]) for line in lines) + '"'


def _escape(text: str) -> str:
    """Text inside double quotes; Graphviz ends lines at control characters and reads backslashes."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return clean.replace("\\", "\\\\").replace('"', '\\"')


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'
