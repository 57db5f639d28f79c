"""Grow a graph node by node: what capture and lowering use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .graph import Attr, Graph, Input, Kind, Node, Phase, Role, Source, Value
from .types import TensorType


class Build:
    """Collects values and nodes; names are made unique."""

    def __init__(self, name: str = "graph"):
        self.name = name
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.updates: list[tuple[str, str]] = []
        self.source = Source()  # given to the nodes emitted from here on
        self._free: dict[str, int] = {}  # by name: the least number that may be free
        self.prefix = ""  # of the names of nodes emitted without a name of their own

    def value(self, name: str, type: TensorType, kind: Kind = Kind.ACTIVATION, target: str | None = None) -> str:
        name = self.fresh(name)
        self.values[name] = Value(name, type, kind, target)
        return name

    def fresh(self, name: str) -> str:
        if name not in self.values:
            return name
        number = self._free.get(name, 1)
        while f"{name}_{number}" in self.values:
            number += 1
        self._free[name] = number
        return f"{name}_{number}"

    def emit(
        self,
        op: str,
        inputs: Sequence[tuple[str, str]],
        type: TensorType,
        attrs: Mapping[str, Attr] | None = None,
        target: str = "",
        name: str | None = None,
    ) -> str:
        """Add a node with one output and return the output's name (which is the node's name too)."""
        out = self.value(name or self.prefix + op, type)
        slots = tuple(Input(arg, value, self._role(value)) for arg, value in inputs)
        self.nodes.append(
            Node(out, op, slots, (out,), MappingProxyType(dict(attrs or {})), target, Phase.FORWARD, self.source)
        )
        return out

    def _role(self, value: str) -> Role:
        return Role.PARAMETER if self.values[value].kind is Kind.PARAMETER else Role.DATA

    def type(self, name: str) -> TensorType:
        return self.values[name].type

    def graph(self, outputs: Sequence[str]) -> Graph:
        return Graph(tuple(self.values.values()), tuple(self.nodes), tuple(outputs), tuple(self.updates), self.name)
