"""Values, nodes and the graph they form. All frozen: a pass returns a new graph.

A `Value` is written once, by one node, or comes from outside (input, parameter, buffer, constant).
A `Node` reads values in named *roles*, has plain attributes, and belongs to a *phase*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ..region import Box
from .types import TensorType

Attr = Any  # None | bool | int | float | str | list | dict of these: whatever JSON can say


class Kind(StrEnum):
    """Where a value comes from."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"

    @property
    def computed(self) -> bool:
        return self in (Kind.ACTIVATION, Kind.GRADIENT)


class Role(StrEnum):
    """What a node reads an input as."""

    DATA = "data"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    RETAINED_INPUT = "retained_input"
    RETAINED_OUTPUT = "retained_output"
    SUM = "sum"  # a gradient so far, which the node adds to in place


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Held:
    """What one rank has of a value: the box it reads, and the box it writes. A parameter is written nowhere."""

    read: Box
    write: Box | None = None


@dataclass(frozen=True, slots=True)
class Value:
    name: str
    type: TensorType
    kind: Kind = Kind.ACTIVATION
    target: str | None = None  # parameter or buffer: its name in the module's state_dict; gradient: its parameter
    alias: str | None = None  # the value whose memory it lives in
    held: Held | None = None  # where the value is split over ranks: the boxes of this one
    away: bool = False  # in no memory as a whole: an input that is read, or an output that is written, box by box
    axes: tuple[tuple[str, int], ...] = ()  # of an input: which dimensions are known to lie on which axes


@dataclass(frozen=True, slots=True)
class Input:
    """One value that a node reads: `arg` is the operator's own name for it ("weight", "tensors.1")."""

    arg: str
    value: str
    role: Role = Role.DATA


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the user's model a node was written."""

    module: str = ""  # path in the module tree: "layer1.0.conv2"
    line: str = ""  # "model.py:41"

    def __str__(self) -> str:
        return " ".join(part for part in (self.module, f"({self.line})" if self.line else "") if part)


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    op: str  # ATen base name: "conv2d"
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    target: str = ""  # full operator: "aten.conv2d.default"
    phase: Phase = Phase.FORWARD
    source: Source = Source()
    time_s: float | None = None  # measured, where an importer knows it

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(i.value for i in self.inputs)

    def describe(self) -> str:
        """For messages: `conv2d 'layer1.0.conv2' (model.py:41)`."""
        return " ".join(part for part in (self.op, f"'{self.name}'", str(self.source)) if part)


@dataclass(frozen=True)
class Graph:
    """Values and nodes in an order in which they can run."""

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...] = ()
    updates: tuple[tuple[str, str], ...] = ()  # (buffer, value that replaces it after the step)
    name: str = "graph"

    @cached_property
    def value(self) -> dict[str, Value]:
        return {v.name: v for v in self.values}

    @cached_property
    def outside(self) -> tuple[str, ...]:
        """Values that no node makes: inputs, parameters, buffers, constants."""
        return tuple(v.name for v in self.values if not v.kind.computed)

    @cached_property
    def node(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def producer(self) -> dict[str, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        found: dict[str, dict[str, Node]] = {v.name: {} for v in self.values}
        for node in self.nodes:
            for name in node.reads:
                found[name][node.name] = node
        return {name: tuple(nodes.values()) for name, nodes in found.items()}

    def type(self, name: str) -> TensorType:
        return self.value[name].type

    def shape(self, name: str) -> tuple[int, ...]:
        return self.value[name].type.shape

    def of_kind(self, *kinds: Kind) -> Iterator[Value]:
        return (v for v in self.values if v.kind in kinds)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.of_kind(Kind.INPUT))

    def outside_bytes(self, whole: Collection[str] = ()) -> int:
        """What is there before and after a step. `whole`: inputs that are read whole, wherever they lie at first."""
        return sum(v.type.bytes for v in self.values if not v.kind.computed and (not v.away or v.name in whole))

    def with_axes(self, axes: Mapping[str, Mapping[str, int]]) -> Graph:
        """The same, where dimensions of inputs are known to lie on axes of the image."""
        values = (replace(v, axes=tuple(axes[v.name].items())) if v.name in axes else v for v in self.values)
        return replace(self, values=tuple(values))

    def with_away(self, names: Collection[str]) -> Graph:
        """The same, with these values in no memory as a whole."""
        values = (replace(v, away=True) if v.name in names else v for v in self.values)
        return replace(self, values=tuple(values)) if names else self
