"""Books of a walk over steps: counts with their sum, and gradients that share memory."""

from __future__ import annotations

from collections.abc import Hashable

from ..ir import Graph, Kind


class Tally(dict[Hashable, int]):
    """Counts, and their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __setitem__(self, key: Hashable, count: int) -> None:
        self.total += count - self.get(key, 0)
        super().__setitem__(key, count)

    def drop(self, key: Hashable) -> None:
        self.total -= super().pop(key, 0)


class Gradients:
    """By value: which memory its gradient lies in. Several may share one."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.where: dict[str, Hashable] = {}
        self.memories = Tally()
        self.sharers: dict[Hashable, set[str]] = {}
        self.weights = Tally()  # of parameters
        self.lent: set[str] = set()  # values whose gradient somebody else read, or may read, in the same memory

    def __contains__(self, name: str) -> bool:
        return name in self.where

    def put(self, name: str, memory: Hashable, size: int) -> None:
        if memory not in self.memories:
            self.memories[memory], self.sharers[memory] = size, set()
        if self.sharers[memory]:
            self.lent |= {name, *self.sharers[memory]}
        self.sharers[memory].add(name)
        self.where[name] = memory
        if self.graph.value[name].kind is Kind.PARAMETER:
            self.weights[name] = size

    def add(self, name: str, owner: str, size: int, at: int) -> None:
        """One more gradient of a value. `owner`: whose memory it lies in, or nobody's."""
        if name not in self.where:
            shared = self.where.get(owner) if owner else None
            self.put(name, shared if shared is not None else (name, at), size)
        elif self.is_shared(name):  # somebody else reads it: the sum is elsewhere
            self.drop(name)
            self.put(name, (name, at), size)

    def is_shared(self, name: str) -> bool:
        return name in self.where and name in self.lent

    def drop(self, name: str) -> None:
        memory = self.where.pop(name, None)
        self.lent.discard(name)
        if memory is not None:
            self.weights.drop(name)
            self.sharers[memory].discard(name)
            if not self.sharers[memory]:
                self.memories.drop(memory)

    def bytes(self, name: str) -> int:
        return self.memories[self.where[name]] if name in self.where else 0
