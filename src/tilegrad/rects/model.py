"""Arrays, operators and the graph they form: one training step, as one worker sees it.

- An *array* has a dim, the same on every worker, and the rects of it that this worker reads and writes. A rect is a
  `Box`: half-open, one interval per dimension, perhaps empty.
- An *operator* reads and writes arrays through named ports. Its `dists` are the rects it works on, under the names
  they are printed with: `dist_input`, `dist_filters`, `dist_result`, or, for the classifier, `read_rect`, `write_rect`.
- *Edges* are not stored: each port is one. Where a graph was read from a drawing, `evidence` says how each is known.

How rects tell who has what:

- Params have no write_rect: they are updated in place, and a worker has what it reads.
- An activation is written by its owner, and read_rect less write_rect is the halo that comes from others.
- Ports called `*.delta` add to what is there. A gradient's read_rect is what its owner has; what its write_rect holds
  beyond that goes to the neighbours, and is added there.
- The classifier sums over space, of which a worker has a part, and yet it writes all logits: its read_rect is a part of
  its input, and so what it writes is a part of the sum. The workers' parts are added. The gradient of a gain is summed
  likewise.
- All else that every worker writes whole (labels, probabilities, loss, metric) every worker makes by itself.

Graphs are equal when their arrays and operators are, in whatever order and under whatever name.
The rules are in `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from ..region import Box

Dim = tuple[int, ...]


class RectRole(StrEnum):
    """What an array is for."""

    INPUT = "input"
    PARAM = "param"
    ACTIVATION = "activation"
    GRAD = "grad"
    LOSS = "loss"
    METRIC = "metric"


class Evidence(StrEnum):
    """How an edge is known."""

    SEEN = "seen"  # its label stands beside the operator, or the operator's name names the array
    COUNTED = "counted"  # its label stands in a crowded row, where there are as many as operators need
    INFERRED = "inferred"  # no label: the kind of operator must have this port


class Edge(NamedTuple):
    """An arrow between an operator and an array; the port is printed "->input" or "output->"."""

    src: str
    dst: str
    port: str


@dataclass(frozen=True, slots=True)
class Array:
    name: str
    dim: Dim
    role: RectRole
    read_rect: Box
    write_rect: Box | None


@dataclass(frozen=True, slots=True)
class RectOperator:
    name: str
    kind: str  # one of `KINDS`
    inputs: Mapping[str, str]  # port: array
    outputs: Mapping[str, str]
    result_dim: Dim | None = None
    dists: Mapping[str, Box] = field(default_factory=lambda: MappingProxyType({}))
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def edges(self) -> Iterator[Edge]:
        for port, array in self.inputs.items():
            yield Edge(array, self.name, f"->{port}")
        for port, array in self.outputs.items():
            yield Edge(self.name, array, f"{port}->")


@dataclass(frozen=True, eq=False)
class RectGraph:
    """Arrays and operators of one step on one worker."""

    arrays: tuple[Array, ...]
    operators: tuple[RectOperator, ...]
    name: str = "step"
    evidence: Mapping[Edge, Evidence] = field(default_factory=lambda: MappingProxyType({}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RectGraph):
            return NotImplemented
        return (self.array, self.operator) == (other.array, other.operator)

    def __hash__(self) -> int:
        return hash((frozenset(self.array), frozenset(self.operator)))

    @cached_property
    def array(self) -> dict[str, Array]:
        return {array.name: array for array in self.arrays}

    @cached_property
    def operator(self) -> dict[str, RectOperator]:
        return {op.name: op for op in self.operators}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(edge for op in self.operators for edge in op.edges())

    @cached_property
    def writers(self) -> dict[str, tuple[tuple[RectOperator, str], ...]]:
        """By array: the operators that write it, and through which port."""
        return self._users(lambda op: op.outputs)

    @cached_property
    def readers(self) -> dict[str, tuple[tuple[RectOperator, str], ...]]:
        return self._users(lambda op: op.inputs)

    def _users(
        self, ports: Callable[[RectOperator], Mapping[str, str]]
    ) -> dict[str, tuple[tuple[RectOperator, str], ...]]:
        found: dict[str, list[tuple[RectOperator, str]]] = {array.name: [] for array in self.arrays}
        for op in self.operators:
            for port, name in ports(op).items():
                found[name].append((op, port))
        return {name: tuple(users) for name, users in found.items()}

    def owned(self, array: Array) -> Box:
        """What this worker has of an array, without what it has for others or from them."""
        if array.write_rect is None:
            return array.read_rect
        if array.role is RectRole.GRAD and any(op.kind != "set_zero" for op, _ in self.writers[array.name]):
            return array.read_rect
        return array.write_rect
