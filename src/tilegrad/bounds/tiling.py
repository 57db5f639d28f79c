"""Tiles of a graph: every axis solved by itself, boxes put together on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from ..errors import GridError
from ..ir import Graph, Node
from ..ops import find
from ..region import Box, Interval, Track, cuts_of_count
from .axes import Axes, call_of, label_axes
from .lines import Cuts, Line, Spans, kinds_along, line_of, sinks_of, tile_line
from .roles import NodePart, sort_nodes


@dataclass(frozen=True)
class Tiling:
    """A grid of tiles over local nodes of a graph."""

    graph: Graph
    axes: Axes
    tiled: tuple[str, ...]
    mode: str
    nodes: tuple[Node, ...]
    lines: Mapping[str, Line]  # by axis
    spans: Mapping[str, Spans]  # by axis
    # What lines and spans follow from, where `tile_nodes` made them.
    cuts: Mapping[str, Cuts] = field(default_factory=dict, repr=False)  # by axis
    carried: Collection[str] | None = None
    whole: Collection[tuple[str, int]] = ()

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.spans[axis].count for axis in self.tiled)

    @property
    def last(self) -> str:
        """The last value that lies on the tiled axes: the network's output, or what its head reduces."""
        sinks = next(iter(self.lines.values())).sinks
        return sinks[-1]

    def tiles(self) -> list[tuple[int, ...]]:
        return list(product(*map(range, self.grid)))

    def kind(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Equal for tiles that are the same but for their place: in sizes, halos, paddings and neighbours."""
        return tuple(self._kinds[axis][t] for axis, t in zip(self.tiled, tile, strict=True))

    @cached_property
    def _kinds(self) -> dict[str, list[int]]:
        return {axis: kinds_along(self.lines[axis], self.spans[axis]) for axis in self.tiled}

    def box(self, which: str, value: str, tile: Sequence[int]) -> Box:
        """The `own`, `held`, `share` or `complete` box of a value for a tile; dimensions off the axes are whole."""
        key = which, value
        if key not in self._sides:
            self._sides[key] = self._sides_of(which, value)
        full, cut = self._sides[key]
        sides = full.copy()
        for at, dim, low, high in cut:
            sides[dim] = Interval(low[tile[at]], high[tile[at]])
        return Box(sides)

    @cached_property
    def _sides(self) -> dict[tuple[str, str], tuple[list[Interval], list[tuple[int, int, list[int], list[int]]]]]:
        return {}

    def _sides_of(self, which: str, value: str) -> tuple[list[Interval], list[tuple[int, int, list[int], list[int]]]]:
        """Of all tiles: the whole of each dimension, and along which axis it is cut, from where to where."""
        cut = []
        for at, axis in enumerate(self.tiled):
            tracks: Mapping[str, Track] = getattr(self.spans[axis], which)
            if value in tracks:
                ends = tracks[value]
                cut.append((at, self.axes.dims[value][axis], ends.lo.tolist(), ends.hi.tolist()))
        return [Interval(0, n) for n in self.graph.shape(value)], cut

    def hands_on(self, value: str) -> bool:
        """Does any tile hold more of a value than it makes itself?"""
        if value not in self._handed:
            spans = self.spans.values()
            pairs = [(s.own[value], s.held[value]) for s in spans if value in s.held]
            self._handed[value] = any(own is not held and (held.lo < own.lo).any() for own, held in pairs)
        return self._handed[value]

    @cached_property
    def _handed(self) -> dict[str, bool]:
        return {}

    def computed(self, value: str) -> float:
        """Elements of `value` computed by all tiles together: a product of sums, since axes are independent."""
        total = float(self.graph.type(value).size)
        for axis in self.tiled:
            n = self.graph.shape(value)[self.axes.dims[value][axis]]
            total *= self.spans[axis].own[value].total / n
        return total

    def reads(self, node: Node, out: Box) -> tuple[Box, ...]:
        """What the node reads to make `out`, not clipped."""
        boxes = find(node).needs(call_of(self.graph, node), out)
        assert boxes is not None
        return boxes

    def side(self, which: str, value: str, axis: str, t: int) -> Interval:
        tracks: Mapping[str, Sequence[Interval]] = getattr(self.spans[axis], which)
        return tracks[value][t]


def tile_nodes(
    graph: Graph,
    axes: Axes,
    nodes: Sequence[Node],
    mode: str,
    tiled: Sequence[str],
    cut: Callable[[Line], Cuts],
    sinks: Collection[str] | None = None,
    whole: Collection[tuple[str, int]] = (),
    carried: Collection[str] | None = None,
) -> Tiling:
    """Tile these local nodes; `cut` chooses where each axis is cut, given its line. `whole`: inputs that are stored
    and read whole (`Roles.whole`); `carried`: the values whose halos are carried, by default all."""
    ends = sinks_of(graph, nodes) if sinks is None else sinks
    lines = {axis: line_of(graph, axes, nodes, axis, ends, whole) for axis in tiled}
    cuts = {axis: cut(line) for axis, line in lines.items()}
    spans = {axis: tile_line(line, mode, cuts[axis], carried) for axis, line in lines.items()}
    return Tiling(graph, axes, tuple(tiled), mode, tuple(nodes), lines, spans, cuts, carried, whole)


def tile_graph(graph: Graph, mode: str, grid: Mapping[str, int]) -> Tiling:
    """Cut the graph into `grid` tiles per axis (`{"h": 4, "w": 4}`), all of its local part in one walk.

    What folds and whole nodes give (statistics, global branches) is taken as known: this is geometry.
    """
    axes = label_axes(graph)
    check_axes(graph, axes, tuple(grid))
    roles = sort_nodes(graph, axes, tuple(grid))
    nodes = [n for n in graph.nodes if roles.part[n.name] is NodePart.LOCAL]
    if not nodes:
        raise GridError(f"nothing in '{graph.name}' can be tiled along {', '.join(grid)}")

    def cut(line: Line) -> Cuts:
        count, leader = grid[line.axis], _leader(line, mode)
        if count > line.sizes[leader]:
            raise GridError(
                f"{count} tiles along {line.axis}, but '{leader}' has only {line.sizes[leader]} elements there",
                hint=f"at most {line.sizes[leader]} tiles along {line.axis}",
            )
        return {name: cuts_of_count(line.sizes[name], count) for name in line.starts(mode)}

    return tile_nodes(graph, axes, nodes, mode, tuple(grid), cut, whole=roles.whole)


def _leader(line: Line, mode: str) -> str:
    """The value whose grid the caller means: the input in gather mode, else the last spatial value."""
    return line.sources[0] if mode == "gather" and line.sources else line.sinks[-1]


def check_axes(graph: Graph, axes: Axes, wanted: Sequence[str]) -> None:
    found = sorted({axis for dims in axes.dims.values() for axis in dims})
    for axis in wanted:
        if axis not in found:
            raise GridError(
                f"'{graph.name}' has no axis '{axis}'",
                hint=f"one of {', '.join(found)}" if found else "a network with convolutions or pools",
            )
