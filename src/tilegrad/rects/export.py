"""A graph of rects as JSON, in the form of the repaired drawing; `load_rect_json` reads it back."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ..ir import Graph, Node
from .kinds import KINDS
from .step import arrays, edges, held_of, inputs_of, listed, outputs_of, result_dim, role_of
from .totals import count_kinds, total

_LEGEND = {
    "rect": "[begin, end] per dimension, half-open",
    "weights_dims": "[out, 1, 1, in, kh, kw, oh, ow]",
    "partition": "read_rect, write_rect and dist_* are those of one worker; counts and totals are of the whole step",
}


def format_rect_json(graph: Graph) -> str:
    """The graph, with its counts, totals and edges, as JSON text."""
    writers, readers = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for src, dst, port in edges(graph):
        users, user = (readers[src], dst) if port.startswith("->") else (writers[dst], src)
        users.append(f"{user}:{port.strip('->')}")
    for name, new in graph.updates:
        writers[name].append(f"{graph.producer[new].name} (in place)")
    document = {
        "source": graph.name,
        "legend": _LEGEND,
        "counts": _counts(graph),
        "totals": total(graph),
        "arrays": [
            {
                "name": a.name,
                "dim": list(a.type.shape),
                "role": role_of(graph, a),
                "read_rect": listed(held_of(a).read),
                "write_rect": listed(held_of(a).write),
                "writers": writers[a.name],
                "readers": readers[a.name],
            }
            for a in arrays(graph)
        ],
        "operators": [_operator(graph, node) for node in graph.nodes],
        "edges": [edge for node in graph.nodes for edge in _edges(graph, node)],
    }
    return _lines(document)


def _lines(document: dict[str, Any]) -> str:
    """One array, operator or edge a line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            items = ",\n".join(f"  {json.dumps(item)}" for item in value)
            parts.append(f" {json.dumps(key)}: [\n{items}\n ]" if value else f" {json.dumps(key)}: []")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _counts(graph: Graph) -> dict[str, Any]:
    counts: dict[str, Any] = {"arrays": len(arrays(graph)), "operators": len(graph.nodes)}
    counts |= {"edges": len(list(edges(graph))), "by_kind": count_kinds(graph)}
    how = Counter(how for node in graph.nodes for how in node.attrs.get("evidence", {}).values())
    return counts | {f"edges_{name}": times for name, times in sorted(how.items())}


def _operator(graph: Graph, node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"name": node.name, "kind": node.op}
    for key, ports in (("inputs", inputs_of(graph, node)), ("outputs", outputs_of(graph, node))):
        found[key] = {port: array.name for port, array in ports.items()}
    if node.op != "linear_grad":  # its own is not printed
        found["result_dim"] = list(result_dim(graph, node))
    if attrs := {key: value for key, value in node.attrs.items() if key != "evidence"}:
        found["attrs"] = attrs
    return found | {"math": KINDS[node.op].math}


def _edges(graph: Graph, node: Node) -> Iterator[dict[str, str]]:
    for src, dst, port in edges(graph, node):
        how = node.attrs.get("evidence", {}).get(port)
        yield {"src": src, "dst": dst, "port": port} | ({} if how is None else {"evidence": how})
