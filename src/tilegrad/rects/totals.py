"""What a step comes to: parameters, work and bytes. A multiply and an add are two flops."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..ir import Graph, Kind, Node
from .step import ROLES, arrays, held_of, inputs_of, outputs_of, role_of

_WEIGHTS = {"locally_connected": "filters", "linear": "weights"}


def total(graph: Graph) -> dict[str, Any]:
    """Of the whole step, over all workers, under the names that a file has for it."""
    params = {v.name: v.type for v in graph.of_kind(Kind.PARAMETER)}
    sizes = dict.fromkeys(ROLES, 0)
    for array in arrays(graph):
        sizes[role_of(graph, array)] += array.type.bytes
    grads = sum(type.bytes for name, type in params.items() if f"{name}.grad" in graph.value)
    macs = {node.name: flops_of(graph, node, whole=True) // 2 for node in graph.nodes}
    ahead = {node.name: macs[node.name] for node in graph.nodes if node.op in _WEIGHTS}
    forward, step = sum(ahead.values()), sum(macs.values())
    count = sum(type.size for type in params.values())
    return {
        "param_count": {name: type.size for name, type in params.items()},
        "param_total": count,
        "param_bytes_f32": sizes["param"],
        "macs_forward": ahead,
        "macs_forward_total": forward,
        "macs_backward_total": step - forward,
        "flops_forward": 2 * forward,
        "flops_backward": 2 * (step - forward),
        "flops_step": 2 * step,
        "flops_update_2_per_param": 2 * count,  # of plain gradient descent
        "bytes_by_role_f32": sizes,
        "bytes_all_arrays_f32": sum(sizes.values()),
        "param_grad_bytes_f32": grads,
        "activation_grad_bytes_f32": sizes["grad"] - grads,
    }


def count_kinds(graph: Graph) -> dict[str, int]:
    return dict(sorted(Counter(node.op for node in graph.nodes).items()))


def flops_of(graph: Graph, node: Node, *, whole: bool = False) -> int:
    """The work of one operator: on this worker, or on all together. Only sums over channels or space count: each weight
    is used once per image, and once more for every gradient that is made with it."""
    weights = _WEIGHTS.get(node.op.removesuffix("_grad"))
    if weights is None:
        return 0
    reads = inputs_of(graph, node)
    times = len(outputs_of(graph, node)) if node.op.endswith("_grad") else 1
    used = reads[weights].type.size if whole else held_of(reads[weights]).read.volume
    return 2 * times * reads["input"].type.shape[0] * used
