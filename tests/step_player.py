"""A second simulator of schedules of whole nodes, naive on purpose: sets and dictionaries, nothing shared with
`tilegrad.sim`.

It plays a schedule on symbols. Every piece of memory has a content, the history of how it was made; a node must find
just what it finds when everything is kept. So a value that is missing, stale or overwritten is found out whatever
the reason, and bytes are counted on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilegrad.ir import Graph, Kind, Role
from tilegrad.schedule import Free, Move, Run, Schedule, ScheduleStep

Content = int  # a number for each history


@dataclass(frozen=True)
class Played:
    peak_bytes: int
    host_peak_bytes: int
    reruns: tuple[str, ...]


class Player:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.numbers: dict[object, Content] = {}
        self.root = {v.name: self._root(v.name) for v in graph.values}
        self.size = {v.name: v.type.bytes for v in graph.values if v.alias is None}
        resident = [v for v in graph.values if v.kind not in (Kind.ACTIVATION, Kind.GRADIENT) or v.target is not None]
        self.resident = {self.root[v.name] for v in resident}
        self.found: dict[str, object] = {}  # node -> what it finds when everything is kept
        cells = {name: self._number(name) for name in self.resident}
        for node in graph.nodes:
            self.found[node.name] = self._run(node.name, cells)
        self.result = {name: cells[self.root[name]] for name in graph.outputs}

    def _root(self, name: str) -> str:
        while (alias := self.graph.value[name].alias) is not None:
            name = alias
        return name

    def _number(self, history: object) -> Content:
        return self.numbers.setdefault(history, len(self.numbers))

    def _run(self, name: str, cells: dict[str, Content]) -> object:
        """Run a node on symbols; returns what it found."""
        node = self.graph.node[name]
        found = tuple(cells.get(self.root[i.value]) for i in node.inputs)
        added = {self.root[i.value] for i in node.inputs if i.role is Role.SUM}
        for out in node.outputs:
            if self.root[out] == out or self.root[out] in added:  # made, or added to; a view changes nothing
                cells[self.root[out]] = self._number((name, out, found))
        return found

    def made_by(self, name: str) -> set[str]:
        outputs = self.graph.node[name].outputs
        return {out for out in outputs if self.root[out] == out and out not in self.resident}

    def play(self, schedule: Schedule) -> Played:
        """Run all steps, and find every node's inputs as they should be."""
        self.cells = {name: self._number(name) for name in self.resident}
        self.host: dict[str, Content] = {}
        peak, host_peak, ran = self._bytes(self.cells), 0, list[str]()
        for at, step in enumerate(schedule.steps):
            peak = max(peak, self._step(step, f"step {at}: {step}"))
            host_peak = max(host_peak, self._bytes(self.host))
            if isinstance(step, Run):
                ran.append(step.island)
            if isinstance(step, Move) and step.store == "device":
                del self.host[step.value]
        assert {name: self.cells.get(self.root[name]) for name in self.graph.outputs} == self.result
        assert list(dict.fromkeys(ran)) == [n.name for n in self.graph.nodes]
        return Played(peak, host_peak, tuple(name for k, name in enumerate(ran) if name in ran[:k]))

    def _step(self, step: ScheduleStep, where: str) -> int:
        """Returns the bytes while it runs."""
        before = self._bytes(self.cells)
        if isinstance(step, Run):
            both = before + self._bytes(self.made_by(step.island))  # a value made once more is there twice
            assert self._run(step.island, self.cells) == self.found[step.island], where
            return both
        assert isinstance(step, Free | Move) and step.value not in self.resident, where
        if isinstance(step, Free):
            assert step.value not in {self.root[name] for name in self.graph.outputs}, where
            del self.cells[step.value]
        elif step.store == "host":
            self.host[step.value] = self.cells[step.value]
        else:
            assert step.store == "device" and step.value not in self.cells, where
            self.cells[step.value] = self.host[step.value]
        return max(before, self._bytes(self.cells))

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.size[name] for name in names)


def play(schedule: Schedule) -> Played:
    return Player(schedule.graph).play(schedule)


def moved(steps: Iterable[ScheduleStep], store: str) -> list[str]:
    """The values that begin to move to a store, in order."""
    return [step.value for step in steps if isinstance(step, Move) and step.store == store]
