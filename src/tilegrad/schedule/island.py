"""An island: nodes that run together on boxes, under one autograd record.

A tile of a walk is an island, and so is a single node, and so is the whole network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..ir import Graph
from ..ops import find
from .steps import Compute, Fold, Free, IslandStep, Join, Load, Store

Handed = tuple[str, int, str, int]  # of a halo: value, axis, the other island, elements


@dataclass(frozen=True, eq=False)
class Island:
    """`whole`: stored values that are read whole. `refers`: what its record looks up by name when its backward runs,
    since it may be freed, moved or made again in between; None: the record itself holds what it needs."""

    name: str
    steps: tuple[IslandStep, ...] = field(repr=False)
    whole: frozenset[str] = frozenset()
    refers: frozenset[str] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Island) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash((self.name, self.whole, self.refers))

    @property
    def _fields(self) -> tuple[object, ...]:
        return self.name, self.steps, self.whole, self.refers

    @property
    def kind(self) -> Island:
        """An island that this one is the same as, but for its place."""
        return self

    @cached_property
    def loads(self) -> tuple[str, ...]:
        """Stored values that are read by box."""
        return tuple(dict.fromkeys(step.value for step in self.steps if isinstance(step, Load)))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(step.node for step in self.steps if isinstance(step, Compute))

    @cached_property
    def folds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.node for step in self.steps if isinstance(step, Fold)))

    @cached_property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.value for step in self.steps if isinstance(step, Store)))

    @cached_property
    def joins(self) -> tuple[Join, ...]:
        return tuple(step for step in self.steps if isinstance(step, Join))

    @cached_property
    def writes(self) -> tuple[Store | Fold, ...]:
        """What becomes of the boxes that it makes."""
        return tuple(step for step in self.steps if isinstance(step, Store | Fold))

    @cached_property
    def receives(self) -> tuple[Handed, ...]:
        return tuple((j.value, halo.axis, halo.peer, halo.box.volume) for j in self.joins for halo in j.receives)

    @cached_property
    def gives(self) -> tuple[Handed, ...]:
        return tuple((j.value, halo.axis, halo.peer, halo.box.volume) for j in self.joins for halo in j.gives)

    @property
    def saved(self) -> str:
        """What steps call the memory of its record."""
        return f"{self.name}.saved"

    def reads(self, graph: Graph) -> tuple[str, ...]:
        """Stored values that running it reads."""
        return self.kind._uses(graph)[0]

    def reads_back(self, graph: Graph) -> tuple[str, ...]:
        """Stored values that its backward reads: what its record refers to, and what a fold had from a stored value."""
        return self.kind._uses(graph)[1]

    def _uses(self, graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What running it and its backward read: found once."""
        known: tuple[Any, ...] = self.__dict__.get("_used", (None, (), ()))
        if known[0] is not graph:
            known = self.__dict__["_used"] = graph, self._reads(graph), self._reads_back(graph)
        return known[1:]

    def _reads(self, graph: Graph) -> tuple[str, ...]:
        nodes = [graph.node[name] for name in self.nodes]
        whole = [v for node in nodes for v in node.reads if v in self.whole]
        beside = [v for name in self.folds for v in graph.node[name].reads[1:]]
        return tuple(dict.fromkeys((*self.loads, *whole, *beside)))

    def _reads_back(self, graph: Graph) -> tuple[str, ...]:
        folded = [graph.node[name].reads[0] for name in self.folds]
        again = [v for v in folded if v in self.stores]
        return tuple(dict.fromkeys((*sorted(self.refers or ()), *again)))


def unread_nodes(graph: Graph, island: Island) -> frozenset[str]:
    """Nodes whose result the island only stores, and whose operators can be differentiated without being run: where it
    runs again for its backward, they need not."""
    uses: dict[str, int] = {}
    for step in island.steps:
        for name in touched(graph, step) if isinstance(step, Compute | Join) else ():
            uses[name] = uses.get(name, 0) + 1
    made = {s.node: graph.node[s.node].outputs[0] for s in island.steps if isinstance(s, Compute) and s.answers is None}
    alone = (n for n, out in made.items() if uses[out] == 1 and out in island.stores)
    return frozenset(n for n in alone if find(graph.node[n]).gradient_alone)


def touched(graph: Graph, step: IslandStep) -> tuple[str, ...]:
    """The values a step reads or makes."""
    match step:
        case Compute(node=name):
            node = graph.node[name]
            return (*node.reads, *node.outputs)
        case Fold(node=name):
            return (graph.node[name].inputs[0].value,)
        case Load(value=value) | Join(value=value) | Store(value=value) | Free(value=value):
            return (value,)
