"""What a step comes to: parameters, work and bytes. A multiply and an add are two flops; elements have four bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .model import RectGraph, RectOperator, RectRole

ELEMENT_BYTES = 4
_WEIGHTS = {"locally_connected": "filters", "linear": "weights"}


@dataclass(frozen=True)
class Totals:
    """Of the whole step, over all workers."""

    params: Mapping[str, int]  # elements, by array
    macs_forward: Mapping[str, int]  # by operator
    forward_flops: int
    backward_flops: int
    bytes_by_role: Mapping[RectRole, int]
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


def total(graph: RectGraph) -> Totals:
    params = {a.name: prod(a.dim) for a in graph.arrays if a.role is RectRole.PARAM}
    sizes = Counter[RectRole]()
    for array in graph.arrays:
        sizes[array.role] += ELEMENT_BYTES * prod(array.dim)
    flops = {op.name: flops_of(graph, op, whole=True) for op in graph.operators}
    forward = {op.name: flops[op.name] // 2 for op in graph.operators if op.kind in _WEIGHTS}
    ahead = 2 * sum(forward.values())
    grads = ELEMENT_BYTES * sum(count for name, count in params.items() if f"{name}.grad" in graph.array)
    return Totals(params, forward, ahead, sum(flops.values()) - ahead, dict(sizes), grads)


def count_kinds(graph: RectGraph) -> dict[str, int]:
    return dict(sorted(Counter(op.kind for op in graph.operators).items()))


def flops_of(graph: RectGraph, op: RectOperator, *, whole: bool = False) -> int:
    """The work of one operator: on this worker, or on all together. Only sums over channels or space count: each weight
    is used once per image, and once more for every gradient that is made with it."""
    weights = _WEIGHTS.get(op.kind.removesuffix("_grad"))
    if weights is None:
        return 0
    array = graph.array[op.inputs[weights]]
    times = sum(port.endswith(".delta") for port in op.outputs) if op.kind.endswith("_grad") else 1
    used = prod(array.dim) if whole else array.read_rect.volume
    return 2 * times * graph.array[op.inputs["input"]].dim[0] * used
