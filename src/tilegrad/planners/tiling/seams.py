"""What happens to each value where two tiles meet: it is *carried* (its halo is handed on), *overlapped* (both tiles
compute it), or *kept whole* (the walk ends there, and the next one reads it by box).

Carrying copies the whole tile of a value, forward, again and backward; overlapping computes some rows twice, and more
of everything above. Which is cheaper is a question of bytes against arithmetic, and is asked value by value. Where
halos would outweigh the value itself (dilated branches), it is kept whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ...bounds import Axes, Cuts, Line, Spans, call_of, tile_line
from ...ir import Graph, Node
from ...ops import find
from ...schedule import TilePhase
from ...sim.machine import CPU, Machine

RUNS = 4.0  # what is computed twice: forward, again, and about twice that backward
PASSES = 6.0  # over a tile that is joined: read and written, three times
WIDE = 2.0  # times the value: from here on what tiles hold of it together is too much


@dataclass
class Seams:
    """Lines of one walk with their cuts, and what making and joining an element of each value costs."""

    graph: Graph
    axes: Axes
    lines: Mapping[str, Line]
    cuts: Mapping[str, Cuts]
    machine: Machine = CPU
    _make: dict[str, float] = field(default_factory=dict)

    def choose(self, nodes: Sequence[Node]) -> frozenset[str]:
        """The values to carry: all to begin with, and each is left to overlap where that costs less."""
        carried = {node.outputs[0] for node in nodes}
        bound = {node.outputs[0] for node in nodes if find(node).opaque}  # a gradient in parts is not theirs to see
        spans = self.spans(carried)
        best = self._seconds(nodes, carried, spans)
        for node in reversed(nodes):
            name = node.outputs[0]
            if name in bound or not self._joined(name, spans):
                continue
            trial = carried - {name}
            found = self.spans(trial)
            cost = self._seconds(nodes, trial, found)
            if cost < best:
                carried, spans, best = trial, found, cost
        return frozenset(carried)

    def spans(self, carried: Collection[str]) -> dict[str, Spans]:
        return {axis: tile_line(line, "stream", self.cuts[axis], carried) for axis, line in self.lines.items()}

    def wide(self, spans: Mapping[str, Spans], nodes: Sequence[Node]) -> set[str]:
        """Values of which tiles hold, or compute, more together than there is of them."""
        found = set()
        for node in nodes:
            name = node.outputs[0]
            for axis, each in spans.items():
                length = self.lines[axis].sizes[name]
                if sum(span.size for span in each.held[name]) > WIDE * length:
                    found.add(name)
        return found

    def _joined(self, name: str, spans: Mapping[str, Spans]) -> bool:
        return any(each.held[name] != each.own[name] for each in spans.values())

    def _seconds(self, nodes: Sequence[Node], carried: Collection[str], spans: Mapping[str, Spans]) -> float:
        total = 0.0
        for node in nodes:
            name = node.outputs[0]
            total += RUNS * self._make_s(node) * self._count(name, spans, "own")
            if name in carried and self._joined(name, spans):
                bytes_ = self.graph.type(name).item_bytes * self._count(name, spans, "held")
                total += PASSES * bytes_ / self.machine.bytes_per_s
        return total

    def _count(self, name: str, spans: Mapping[str, Spans], which: str) -> float:
        """Elements that all tiles together make, or hold."""
        dims = {self.axes.dims[name][axis] for axis in spans}
        rest = prod(n for dim, n in enumerate(self.graph.shape(name)) if dim not in dims)
        return rest * prod(sum(span.size for span in getattr(each, which)[name]) for each in spans.values())

    def _make_s(self, node: Node) -> float:
        """Seconds an element."""
        name = node.outputs[0]
        if name not in self._make:
            call, op = call_of(self.graph, node), find(node)
            size = max(1, call.out.size)
            moved = sum(t.bytes for t in (*call.inputs, *call.outputs)) / size
            flops = op.flops(call) if op.dense else 0.0
            rate = self.machine.rates.get(call.out.dtype, self.machine.flops_per_s)
            self._make[name] = max(flops / rate, moved / self.machine.bytes_per_s)
        return self._make[name]


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
            held = prod(sum(s.size for s in spans[a].held[name]) / n for a, n in lengths.items())
            own = prod(sum(s.size for s in spans[a].own[name]) / n for a, n in lengths.items())
            halos += size * max(0.0, held - own)
            tile += size * prod(max(s.size for s in spans[a].held[name]) / n for a, n in lengths.items())
        largest = max(largest, tile)
    return stored + halos + largest
