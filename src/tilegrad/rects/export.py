"""A graph of rects as JSON, in the form of the repaired drawing; `load_rect_json` reads it back."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..region import Box
from .kinds import KINDS
from .model import Array, Edge, RectGraph, RectOperator, RectRole
from .totals import count_kinds, total

_LEGEND = {
    "rect": "[begin, end] per dimension, half-open",
    "weights_dims": "[out, 1, 1, in, kh, kw, oh, ow]",
    "partition": "read_rect, write_rect and dist_* are those of one worker; counts and totals are of the whole step",
}


def format_rect_json(graph: RectGraph) -> str:
    """The graph, with its counts, totals and edges, as JSON text."""
    document = {
        "source": graph.name,
        "legend": _LEGEND,
        "counts": _counts(graph),
        "totals": _totals(graph),
        "arrays": [_array(graph, array) for array in graph.arrays],
        "operators": [_operator(op) for op in graph.operators],
        "edges": [_edge(graph, edge) for edge in graph.edges],
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


def _counts(graph: RectGraph) -> dict[str, Any]:
    counts: dict[str, Any] = {"arrays": len(graph.arrays), "operators": len(graph.operators)}
    counts |= {"edges": len(graph.edges), "by_kind": count_kinds(graph)}
    if graph.evidence:
        counts |= {f"edges_{name}": times for name, times in sorted(Counter(graph.evidence.values()).items())}
    return counts


def _totals(graph: RectGraph) -> dict[str, Any]:
    found = total(graph)
    sizes = {str(role): found.bytes_by_role.get(role, 0) for role in RectRole}
    return {
        "param_count": dict(found.params),
        "param_total": found.param_total,
        "param_bytes_f32": sizes["param"],
        "macs_forward": dict(found.macs_forward),
        "macs_forward_total": found.forward_flops // 2,
        "macs_backward_total": found.backward_flops // 2,
        "flops_forward": found.forward_flops,
        "flops_backward": found.backward_flops,
        "flops_step": found.step_flops,
        "flops_update_2_per_param": found.update_flops,
        "bytes_by_role_f32": sizes,
        "bytes_all_arrays_f32": found.bytes,
        "param_grad_bytes_f32": found.param_grad_bytes,
        "activation_grad_bytes_f32": sizes["grad"] - found.param_grad_bytes,
    }


def _rect(rect: Box | None) -> list[list[int]] | None:
    return None if rect is None else [[side.lo for side in rect], [side.hi for side in rect]]


def _array(graph: RectGraph, array: Array) -> dict[str, Any]:
    users = graph.readers[array.name]
    in_place = [f"{op.name} (in place)" for op, port in users if op.kind == "update" and port == "params"]
    return {
        "name": array.name,
        "dim": list(array.dim),
        "role": str(array.role),
        "read_rect": _rect(array.read_rect),
        "write_rect": _rect(array.write_rect),
        "writers": [f"{op.name}:{port}" for op, port in graph.writers[array.name]] + in_place,
        "readers": [f"{op.name}:{port}" for op, port in users],
    }


def _operator(op: RectOperator) -> dict[str, Any]:
    found: dict[str, Any] = {"name": op.name, "kind": op.kind, "inputs": dict(op.inputs), "outputs": dict(op.outputs)}
    if op.result_dim is not None:
        found["result_dim"] = list(op.result_dim)
    if op.dists or op.attrs:
        found["attrs"] = {key: _rect(rect) for key, rect in op.dists.items()} | dict(op.attrs)
    return found | {"math": KINDS[op.kind].math}


def _edge(graph: RectGraph, edge: Edge) -> dict[str, str]:
    found = edge._asdict()
    return found | {"evidence": str(graph.evidence[edge])} if edge in graph.evidence else found
