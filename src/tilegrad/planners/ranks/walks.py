"""The phases of a plan before they are a rank's: what is walked together, and what every index of the mesh does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...bounds import AXES, Axes, Cuts, Line, Placement, Spans
from ...bounds.lines import line_of, tile_line
from ...bounds.mesh import Mesh
from ...ir import Graph, Node
from ..tiling import leading_to, works_cheaply

Key = tuple[int, tuple[str, ...], bool]  # a phase: its number, the axes of its walk, and is it of the tail?


@dataclass(frozen=True)
class Walk:
    """A phase before it is a rank's: its lines, and for every axis what each index of the mesh does there."""

    key: Key
    nodes: tuple[Node, ...]
    folds: tuple[Node, ...]
    stores: tuple[str, ...]
    lines: Mapping[str, Line]
    spans: Mapping[str, tuple[Spans, ...]]  # by axis, by index in the mesh

    @property
    def tail(self) -> bool:
        return self.key[2]

    @cached_property
    def boxed(self) -> tuple[str, ...]:
        """What is read by box."""
        return tuple(dict.fromkeys(v for line in self.lines.values() for v in line.sources))

    @cached_property
    def whole(self) -> tuple[str, ...]:
        """What is read whole."""
        made = {n.outputs[0] for n in self.nodes}
        return tuple(dict.fromkeys(v for n in self.nodes for v in n.reads if v not in made and v not in self.boxed))


def make_walks(
    graph: Graph, axes: Axes, mesh: Mesh, placement: Placement, mode: str, tiles: Mapping[str, int]
) -> Iterator[Walk]:
    """All phases, in order."""
    kept, replays = _keep(graph, placement)
    keys = sorted({_key(node, placement) for node in graph.nodes})
    for key in keys:
        mine = [n for n in graph.nodes if _key(n, placement) == key]
        again = replays.get(key, set())
        nodes = [n for n in graph.nodes if (n in mine and not placement.is_fold(n)) or n.name in again]
        folds = tuple(n for n in mine if placement.is_fold(n))
        stores = tuple(n.outputs[0] for n in mine if not placement.is_fold(n) and n.outputs[0] in kept)
        if not key[1]:
            yield Walk(key, tuple(nodes), (), stores, {}, {})
            continue
        sinks = {*stores, *(f.inputs[0].value for f in folds)}
        if not sinks:
            continue
        nodes = leading_to(sinks, nodes)
        lines = {axis: line_of(graph, axes, nodes, axis, sinks) for axis in key[1]}
        spans = {axis: _spans(line, mesh, mode, tiles.get(axis, 1)) for axis, line in lines.items()}
        yield Walk(key, tuple(nodes), folds, stores, lines, spans)


def _key(node: Node, placement: Placement) -> Key:
    walked = placement.cut[node.outputs[0]] | placement.folds[node.name]
    return placement.phase[node.name], tuple(axis for axis in AXES if axis in walked), node.name in placement.tail


def _spans(line: Line, mesh: Mesh, mode: str, count: int) -> tuple[Spans, ...]:
    """What every index of the mesh makes along an axis, in `count` tiles."""
    return tuple(tile_line(line, mode, _cuts(line, mesh, at, count)) for at in range(mesh.size(line.axis)))


def _cuts(line: Line, mesh: Mesh, at: int, count: int) -> Cuts:
    found: dict[str, Sequence[int]] = {}
    for name in line.sinks:
        whole = mesh.cuts(line.axis, line.sizes[name])
        first, size = whole[at], whole[at + 1] - whole[at]
        found[name] = [first + size * t // count for t in range(count + 1)]
    return found


def _keep(graph: Graph, placement: Placement) -> tuple[set[str], dict[Key, set[str]]]:
    """Which computed values are kept, and which nodes are run again in which later phase: what is cheap and stands on
    kept values, as long as it is cut along the same axes."""
    kept = {name for name in graph.outputs if name in graph.producer}
    kept |= {new for _, new in graph.updates if new in graph.producer} | (placement.exchanged & graph.producer.keys())
    replays: dict[Key, set[str]] = {}

    def visit(value: str, key: Key) -> None:
        maker = graph.producer.get(value)
        if maker is None or (_key(maker, placement) == key and not placement.is_fold(maker)):
            return
        alike = not placement.is_fold(maker) and _key(maker, placement)[1] == key[1] and bool(key[1])
        if alike and value not in kept and works_cheaply(graph, maker):
            if maker.name not in replays.setdefault(key, set()):
                replays[key].add(maker.name)
                for name in maker.reads:
                    visit(name, key)
        else:
            kept.add(value)

    for node in graph.nodes:
        for name in node.reads:
            visit(name, _key(node, placement))
    return kept, replays
