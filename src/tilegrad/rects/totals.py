"""What a step comes to: parameters, work and bytes. A multiply and an add are two flops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..ir import Graph, Kind, Node
from .step import arrays, held_of, inputs_of, outputs_of, role_of

_WEIGHTS = {"locally_connected": "filters", "linear": "weights"}


@dataclass(frozen=True)
class Totals:
    """Of the whole step, over all workers."""

    params: Mapping[str, int]  # elements, by array
    macs_forward: Mapping[str, int]  # by operator
    forward_flops: int
    backward_flops: int
    bytes_by_role: Mapping[str, int]
    param_grad_bytes: int

    @property
    def param_total(self) -> int:
        return sum(self.params.values())

    @property
    def step_flops(self) -> int:
        return self.forward_flops + self.backward_flops

    @property
    def update_flops(self) -> int:
        """Of plain gradient descent: a multiply and an add each."""
        return 2 * self.param_total

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_role.values())


def total(graph: Graph) -> Totals:
    params = {v.name: v.type for v in graph.of_kind(Kind.PARAMETER)}
    sizes = Counter[str]()
    for array in arrays(graph):
        sizes[role_of(graph, array)] += array.type.bytes
    flops = {node.name: flops_of(graph, node, whole=True) for node in graph.nodes}
    forward = {node.name: flops[node.name] // 2 for node in graph.nodes if node.op in _WEIGHTS}
    ahead = 2 * sum(forward.values())
    grads = sum(type.bytes for name, type in params.items() if f"{name}.grad" in graph.value)
    counts = {name: type.size for name, type in params.items()}
    return Totals(counts, forward, ahead, sum(flops.values()) - ahead, dict(sizes), grads)


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
