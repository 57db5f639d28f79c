"""What happens to each value where two tiles meet: it is *carried* (its halo is handed on), *overlapped* (both tiles
compute it), or *kept whole* (the walk ends there, and the next one reads it by box).

Carrying copies the whole tile of a value, forward, again and backward; overlapping computes some rows twice, and more
of everything above. Which is cheaper is a question of bytes against arithmetic, and is asked value by value. Where
halos would outweigh the value itself (dilated branches), it is kept whole.

All tiles but those at the borders are alike, so the question is asked of one in the middle. Where a tile ends does not
depend on what is carried; where it begins does: a carried value where the tile before ended, an overlapped one where
its readers need it. Values that are made where their one reader is (rule L5 of `bounds/lines.py`) are one question.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...bounds import Axes, Cuts, Line, Spans, call_of, tile_line
from ...ir import Graph, Node
from ...ops import find
from ...region import POINT, Window
from ...schedule import TilePhase
from ...sim.clock import CALLS, JOIN, PYTHON, whole_seconds
from ...sim.machine import CPU, Machine

RUNS = 4.0  # what is computed twice: forward, again, and about twice that backward
PASSES = 6.0 * JOIN  # over a tile that is joined: read and written, three times
JOINS = 3.0  # times: forward, again, backward
WIDE = 2.0  # times the value: from here on what tiles hold of it together is too much

Starts = dict[str, tuple[int, ...]]  # per value: where the tile begins to need it, along each axis


@dataclass
class Seams:
    """Lines of one walk with their cuts, and what making and joining an element of each value costs."""

    graph: Graph
    axes: Axes
    lines: Mapping[str, Line]
    cuts: Mapping[str, Cuts]
    machine: Machine = CPU
    every: Mapping[str, Spans] | None = None  # with everything carried, where that is known

    def choose(self, nodes: Sequence[Node]) -> frozenset[str]:
        """The values to carry: all to begin with. From the end of the walk on, each seam is moved up to the next one
        where that costs less."""
        middle = _Middle(self, nodes)
        for name in reversed(middle.names):
            if middle.joined(name):
                middle.move_up(name)
        chosen = frozenset(middle.carried)
        middle.carried = set(middle.names)
        best = min((chosen, middle.bound), key=middle.seconds)
        return frozenset(name for one in best for name in middle.members[one])

    def seconds(self, nodes: Sequence[Node], carried: Collection[str]) -> float:
        """What a tile in the middle takes, given what is carried."""
        return _Middle(self, nodes).seconds(carried)

    def spans(self, carried: Collection[str]) -> dict[str, Spans]:
        return {axis: tile_line(line, "stream", self.cuts[axis], carried) for axis, line in self.lines.items()}

    def wide(self, spans: Mapping[str, Spans], nodes: Sequence[Node]) -> set[str]:
        """Values of which tiles hold, or compute, more together than there is of them, and of which a window reads more
        than one element: what lies between them and the next such value goes with it."""
        found = set[str]()
        for axis, line in self.lines.items():
            readers = line.readers()
            for name in (node.outputs[0] for node in nodes):
                if spans[axis].held[name].total > WIDE * line.sizes[name]:
                    found |= {name} if any(window != POINT for _, window in readers[name]) else set()
        return found


class _Middle:
    """A tile in the middle: where it needs each value from, given what is carried."""

    def __init__(self, seams: Seams, nodes: Sequence[Node]):
        self.seams, self.graph, self.machine = seams, seams.graph, seams.machine
        lines = [line for axis, line in seams.lines.items() if len(next(iter(seams.cuts[axis].values()))) > 2]
        one = _one(lines, [node.outputs[0] for node in nodes])
        self.names = [name for name, last in one.items() if name == last]  # in an order in which they are made
        self.members: dict[str, list[str]] = {name: [] for name in self.names}
        for name, last in one.items():
            self.members[last].append(name)
        self.place = {name: at for at, name in enumerate(self.names)}
        self.carried = set(self.names)
        self.bound = frozenset(one[node.outputs[0]] for node in nodes if find(node).opaque)  # no gradient in parts
        known = seams.every or {line.axis: tile_line(line, "stream", seams.cuts[line.axis]) for line in lines}
        spans = [known[line.axis] for line in lines]
        tiles = [each.count // 2 for each in spans]
        pairs = list(zip(spans, tiles, strict=True))
        self.begin: Starts = {n: tuple(int(each.own[n].lo[t]) for each, t in pairs) for n in self.names}
        self.end: Starts = {n: tuple(int(each.own[n].hi[t]) for each, t in pairs) for n in self.names}
        self.need: Starts = {n: tuple(int(each.held[n].lo[t]) for each, t in pairs) for n in self.names}
        self.due = [  # what must be made begins there, whoever reads it
            {n: int(each.share[n].lo[t]) if n in line.sinks else line.sizes[n] for n in self.names}
            for line, (each, t) in zip(lines, pairs, strict=True)
        ]
        self.readers: list[dict[str, list[tuple[str, Window]]]] = []
        self.above: dict[str, set[str]] = {name: set() for name in self.names}
        for line in lines:
            read: dict[str, dict[tuple[str, Window], None]] = {name: {} for name in self.names}
            for out, reads in line.steps:
                for name, window in reads:
                    if name in one and one[name] != one[out]:
                        read[one[name]][one[out], window] = None
                        self.above[one[out]].add(one[name])
            self.readers.append({name: list(pairs) for name, pairs in read.items()})
        dims = {n: {seams.axes.dims[n][line.axis] for line in lines} for n in one}
        rest = {n: prod(s for d, s in enumerate(self.graph.shape(n)) if d not in dims[n]) for n in one}
        self.bytes = {n: self.graph.type(n).item_bytes * rest[n] for n in self.names}  # of a place along the axes
        self.make_s = dict.fromkeys(self.names, 0.0)
        for node in nodes:
            name, call = node.outputs[0], call_of(self.graph, node)
            spent = whole_seconds(call, self.machine)[0]
            self.make_s[one[name]] += spent / max(1, call.out.size) * rest[name]

    def joined(self, name: str) -> bool:
        """Is a halo handed on for it?"""
        return name in self.carried and any(a < b for a, b in zip(self.need[name], self.begin[name], strict=True))

    def move_up(self, name: str) -> None:
        """Compute a value's halo instead, from halos above: of those that are joined already, or, where none was needed
        so far, of what they are made from."""
        if name in self.bound:
            return
        need: Starts = {}
        free, seen, saved = {name}, {name}, 0.0  # `free`: from now on not carried
        todo = [-self.place[name]]
        while todo:
            value = self.names[-heapq.heappop(todo)]
            need[value] = self._needed(value, need, free)
            if value not in self.bound and not self.joined(value):
                free.add(value)
            saved += self._seconds(value, self.need[value], value in self.carried)
            saved -= self._seconds(value, need[value], value in self.carried and value not in free)
            if value in free:
                for above in self.above[value] - seen:
                    seen.add(above)
                    heapq.heappush(todo, -self.place[above])
        if saved > 0.0:
            self.carried -= free
            self.need |= need

    def seconds(self, carried: Collection[str]) -> float:
        """Of all values."""
        need: Starts = {}
        free = self.carried - set(carried)
        for name in reversed(self.names):
            need[name] = self._needed(name, need, free)
        return sum(self._seconds(name, need[name], name not in free) for name in self.names)

    def _needed(self, value: str, need: Starts, free: Collection[str]) -> tuple[int, ...]:
        """From where on its readers need a value."""
        found = []
        for axis, readers in enumerate(self.readers):
            low = self.due[axis][value]
            for out, window in readers[value]:
                own = out in self.carried and out not in free
                begin = self.begin[out][axis] if own else need.get(out, self.need[out])[axis]
                if begin < self.end[out][axis]:
                    low = min(low, max(0, window.reads(begin, self.end[out][axis]).lo))
            found.append(low)
        return tuple(found)

    def _seconds(self, name: str, need: tuple[int, ...], carried: bool) -> float:
        begin, end = self.begin[name], self.end[name]
        held = prod(max(0, e - min(a, b)) for a, b, e in zip(need, begin, end, strict=True))
        if not carried:
            return RUNS * self.make_s[name] * held
        own = prod(max(0, e - b) for b, e in zip(begin, end, strict=True))
        total = RUNS * self.make_s[name] * own
        if any(a < b for a, b in zip(need, begin, strict=True)):
            bytes_ = self.bytes[name] * held
            calls = JOINS * CALLS * 2 * len(need) * PYTHON * self.machine.launch_s
            total += PASSES * bytes_ / self.machine.bytes_per_s + calls
        return total


def _one(lines: Sequence[Line], names: Sequence[str]) -> dict[str, str]:
    """Of values that are made where their one reader is, along all lines, the last; of all others themselves."""
    one = dict(zip(names, names, strict=True))
    for name in reversed(names):
        readers = {line.folded.one[name] for line in lines}
        if len(readers) == 1 and (reader := readers.pop()) != name and reader in one:
            one[name] = reader
    return one


def held_bytes(phases: Sequence[TilePhase]) -> float:
    """About what a walk forward and back holds at most: what is stored, halos, and the largest tile."""
    stored = halos = largest = 0.0
    for phase in phases:
        graph = phase.graph
        stored += sum(2 * graph.type(name).bytes for name in phase.stores if name not in graph.outputs)  # and gradients
        tiling = phase.forward
        if tiling is None:
            largest = max(largest, sum(graph.type(v).bytes for n in phase.nodes for v in n.outputs))
            continue
        tile = 0.0
        for node in tiling.nodes:
            name, size = node.outputs[0], graph.type(node.outputs[0]).bytes
            lengths = {axis: max(1, tiling.lines[axis].sizes[name]) for axis in tiling.tiled}
            spans = tiling.spans
            held = prod(spans[a].held[name].total / n for a, n in lengths.items())
            own = prod(spans[a].own[name].total / n for a, n in lengths.items())
            halos += size * max(0.0, held - own)
            tile += size * prod(int(spans[a].held[name].sizes.max()) / n for a, n in lengths.items())
        largest = max(largest, tile)
    return stored + halos + largest
