"""A training graph as integers: what recompute and offload planners see.

The first stage is the forward pass followed by the first backward node. Every later stage may run forward nodes again,
in the graph's order, and then runs one backward node. Which values are kept from a stage to the next decides all: what
must run again follows, and so do bytes and seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...ir import Graph, Node, Phase
from ...schedule.whole import Roots, roots_of


@dataclass(frozen=True)
class StageProblem:
    """Forward nodes 0..n-1 in order; values (roots of memory) that they make; backward nodes as stages 0..m-1."""

    graph: Graph
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    values: tuple[str, ...]
    bytes: tuple[int, ...]  # of each value
    seconds: tuple[float, ...]  # of each forward node
    backward_seconds: tuple[float, ...]
    makes: tuple[tuple[int, ...], ...]  # forward node -> values
    reads: tuple[tuple[int, ...], ...]  # forward node -> values
    needs: tuple[tuple[int, ...], ...]  # stage -> values its backward node reads
    kept: frozenset[int]  # values handed over at the end
    before: tuple[int, ...]  # stage -> bytes of gradients and residents while forward nodes run again
    during: tuple[int, ...]  # stage -> the same while its backward node runs

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """Value -> forward node."""
        found = {v: i for i, made in enumerate(self.makes) for v in made}
        return tuple(found[v] for v in range(len(self.values)))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Value -> forward nodes that read it, in order."""
        found: list[list[int]] = [[] for _ in self.values]
        for i, read in enumerate(self.reads):
            for v in read:
                found[v].append(i)
        return tuple(map(tuple, found))

    @cached_property
    def last_need(self) -> tuple[int, ...]:
        """Value -> the last stage whose backward node reads it, or -1."""
        found = [-1] * len(self.values)
        for stage, needed in enumerate(self.needs):
            for v in needed:
                found[v] = stage
        return tuple(found)

    @cached_property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """Forward nodes that always run together. A node whose only product is read by the very next node alone, never
        by backward, and is no smaller than what that one makes is never worth keeping: the two are one unit."""
        needed = {v for needs in self.needs for v in needs} | self.kept
        found: list[tuple[int, ...]] = []
        chain: tuple[int, ...] = ()
        for i, made in enumerate(self.makes):
            chain += (i,)
            alone = len(made) == 1 and made[0] not in needed and self.readers[made[0]] == (i + 1,)
            if not (alone and self.bytes[made[0]] >= sum(self.bytes[v] for v in self.makes[i + 1])):
                found.append(chain)
                chain = ()
        return tuple(found)

    @cached_property
    def unit(self) -> dict[int, int]:
        """Forward node -> its unit."""
        return {i: k for k, nodes in enumerate(self.units) for i in nodes}

    def matters(self, needs: Sequence[Iterable[int]]) -> list[set[int]]:
        """The units that may still have to run for each of these needs or a later one."""
        found = [set[int]()]
        for needed in reversed(needs):
            units, stack = set(found[-1]), [self.maker[v] for v in needed]
            while stack:
                unit = self.unit[stack.pop()]
                if unit not in units:
                    units.add(unit)
                    stack += [self.maker[v] for i in self.units[unit] for v in self.reads[i]]
            found.append(units)
        return found[::-1]

    @cached_property
    def floor(self) -> int:
        """No plan needs less: some backward node with what it reads, and what is handed over."""
        handed = self.kept if self.backward else frozenset[int]()
        reads = (sum(self.bytes[v] for v in handed.union(needs)) for needs in self.needs)
        return max((*self.before, *map(int.__add__, self.during, reads)), default=0)

    @cached_property
    def fused(self) -> frozenset[int]:
        """Values inside a unit: never kept."""
        return frozenset(v for unit in self.units for i in unit[:-1] for v in self.makes[i])

    @cached_property
    def sources(self) -> tuple[int | None, ...]:
        """Stage -> the forward node that its backward node is of; what seeds backward has none."""
        position = {name: i for i, name in enumerate(self.forward)}
        names = (self.graph.node[b].attrs.get("of") for b in self.backward)
        return tuple(None if name is None else position[name] for name in names)

    @property
    def base_seconds(self) -> float:
        return sum(self.seconds) + sum(self.backward_seconds)

    def runs(self, again: Sequence[Sequence[int]]) -> list[str]:
        """Names in the order they run, given the forward nodes that run again before each stage's backward node."""
        found = list(self.forward)
        for stage, nodes in enumerate(again):
            found += [self.forward[i] for i in nodes]
            found.append(self.backward[stage])
        return found


def make_problem(graph: Graph, seconds: Mapping[str, float]) -> StageProblem:
    """Read a training graph. `seconds`: how long each node takes."""
    memory = roots_of(graph)
    forward = [n for n in graph.nodes if n.phase is Phase.FORWARD]
    backward = [n for n in graph.nodes if n.phase is not Phase.FORWARD]
    values = [v for n in forward for v in memory.writes(n.name)]
    index = {name: at for at, name in enumerate(values)}

    def pick(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(index[name] for name in names if name in index)

    before, during = _gradient_bytes(memory, backward)
    return StageProblem(
        graph=graph,
        forward=tuple(n.name for n in forward),
        backward=tuple(n.name for n in backward),
        values=tuple(values),
        bytes=tuple(memory.bytes[v] for v in values),
        seconds=tuple(seconds[n.name] for n in forward),
        backward_seconds=tuple(seconds[n.name] for n in backward),
        makes=tuple(pick(memory.writes(n.name)) for n in forward),
        reads=tuple(pick(memory.reads(n.name)) for n in forward),
        needs=tuple(pick(memory.reads(n.name)) for n in backward),
        kept=frozenset(pick(sorted(memory.kept))),
        before=tuple(before),
        during=tuple(during),
    )


def _gradient_bytes(memory: Roots, backward: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Bytes of gradients (and residents) before and during each backward node; a schedule cannot change them."""
    last: dict[str, int] = {}
    for at, node in enumerate(backward):
        for name in (*node.reads, *node.outputs):
            last[memory.root[name]] = at
    live: dict[str, int] = {}
    before, during = [], []
    for at, node in enumerate(backward):
        before.append(memory.resident_bytes + sum(live.values()))
        for name in memory.writes(node.name):
            live[name] = memory.bytes[name]
        during.append(memory.resident_bytes + sum(live.values()))
        for name in [n for n in live if last[n] == at and n not in memory.kept]:
            del live[name]
    return before, during
