"""Cut a graph's walks into tiles of given sizes, and make a schedule of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from ...bounds import Axes, Cuts, Line, Spans, Tiling, check_axes
from ...errors import GridError
from ...ir import Graph
from ...region import cuts_of_count, cuts_of_size
from ...schedule import KEPT, Again, Islands, Schedule, Storage, TilePhase, phase_steps
from ...sim.machine import CPU, Machine
from .again import USUAL, Between
from .seams import Seams, held_bytes
from .walks import UncutPhase, Walks

TileSizes = Mapping[str, int]  # axis -> elements of the input per tile
MOST_ROUNDS = 3  # in which values are found that are better kept whole
MOST_LAG = 0.5  # of an image: where the network's end is further behind, no tile in the middle has a part of everything


def plan_plain(graph: Graph, *, train: bool = True) -> Schedule:
    """Everything whole: what plain PyTorch does, through the same engine."""
    return make_schedule(graph, "none", cut_tiles(Walks(graph), "none", {}), Storage.DEVICE, train)


def plan_tiles(
    graph: Graph,
    mode: str,
    tile: TileSizes,
    storage: str = Storage.DEVICE,
    *,
    train: bool = True,
    machine: Machine = CPU,
    carried: Collection[str] | None = None,
    walks: Walks | None = None,
) -> Schedule:
    """Tile a lowered graph with tiles of so many input elements per axis. `mode`: "auto" is "stream" with seams chosen
    for the machine; `carried`: in stream mode, the values whose halos are carried (default: all); `walks`: the graph
    sorted before."""
    phases = cut_tiles(walks or Walks(graph), mode, tile, machine, carried)
    return make_schedule(graph, "stream" if mode == "auto" else mode, phases, storage, train)


def cut_tiles(
    walks: Walks,
    mode: str,
    tile: TileSizes,
    machine: Machine = CPU,
    carried: Collection[str] | None = None,
    between: Between = USUAL,
) -> tuple[TilePhase, ...]:
    """The phases of `plan_tiles`. `between`: what lies between them."""
    graph, axes = walks.graph, walks.axes
    check_axes(graph, axes, tuple(tile))
    for axis, size in tile.items():
        if size < 1:
            raise GridError(f"a tile of {size} along {axis}", hint="at least 1")
    lengths = {axis: _length(graph, axes, axis) for axis in tile}
    shares = {axis: size / lengths[axis] for axis, size in tile.items()}
    chosen = mode == "auto"
    return _Tiles(walks, "stream" if chosen else mode, shares, machine, chosen, carried, between).phases()


def make_schedule(
    graph: Graph,
    mode: str,
    phases: tuple[TilePhase, ...],
    storage: str,
    train: bool,
    again: Again = KEPT,
) -> Schedule:
    steps = phase_steps(graph, phases, train=train, again=again)
    return Schedule(graph, mode, phases, storage, steps=steps, islands=Islands(phases))


def keepable(schedule: Schedule) -> list[str]:
    """Islands whose record could stay for backward, in the order they run."""
    return [p.name(tile) for p in schedule.phases if p.backward is p.forward for tile in p.tiles()]


def keep_last(schedule: Schedule, count: int) -> Schedule:
    """The same tiles, of which the last ones are not run again: they are needed first in backward and live shortest."""
    names = keepable(schedule)
    keep = frozenset(names[len(names) - count :])
    steps = phase_steps(schedule.graph, schedule.phases, train=schedule.trains, keep=keep, again=schedule.remade)
    return replace(schedule, steps=steps)


def _length(graph: Graph, axes: Axes, axis: str) -> int:
    """How long the image is along `axis`: the first input that has it, or whatever is longest."""
    inputs = [graph.shape(v)[axes.dims[v][axis]] for v in graph.inputs if axis in axes.dims[v]]
    return inputs[0] if inputs else max(graph.shape(v)[d[axis]] for v, d in axes.dims.items() if axis in d)


@dataclass
class _Tiles:
    """What tiles are made for."""

    walks: Walks
    mode: str
    shares: Mapping[str, float]  # of the image, a tile, along each axis
    machine: Machine = CPU
    chosen: bool = False  # are seams chosen?
    carried: Collection[str] | None = None
    between: Between = USUAL
    wide: set[str] = field(default_factory=set)  # values of which tiles would hold too much

    def phases(self) -> tuple[TilePhase, ...]:
        """Where halos outweigh a value, plans are also made in which it is kept whole; the smallest of all is taken."""
        stored, fluid = set(self.between.stored), self.between.fluid
        found: list[tuple[TilePhase, ...]] = []
        for _ in range(MOST_ROUNDS):
            self.wide = set()
            complete, kept = self.mode == "stream", frozenset(stored)
            parts = self.walks.parts(tuple(self.shares), complete=complete, stored=kept, fluid=fluid)
            found.append(tuple(p if isinstance(p, TilePhase) else self._cut(p) for p in parts))
            if not self.chosen or self.wide <= stored:
                break
            stored |= self.wide
        return min(found, key=held_bytes) if len(found) > 1 else found[0]

    def _cut(self, part: UncutPhase) -> TilePhase:
        phase, wide = self._known(part)
        self.wide |= wide
        return replace(phase, number=part.number)

    def _known(self, part: UncutPhase) -> tuple[TilePhase, set[str]]:
        carried = None if self.carried is None else frozenset(self.carried)
        key = "phase", self.mode, tuple(self.shares.items()), self.machine, self.chosen, carried
        if key not in part.known:
            part.known[key] = self._made(part)
        return cast(tuple[TilePhase, set[str]], part.known[key])

    def _made(self, part: UncutPhase) -> tuple[TilePhase, set[str]]:
        """A phase, and values of which its tiles would hold too much."""
        if self.chosen:  # where nothing is handed on there is nothing to choose
            phase, wide = replace(self, chosen=False)._known(part)
            if not _hands_on(phase):
                return phase, wide
        gather, wide = self.mode == "gather", set[str]()
        forward = self._tiling(part, "scatter" if gather else self.mode, wide)
        backward = self._tiling(part, self.mode, wide) if gather else forward
        phase = TilePhase(
            part.number,
            self.walks.graph,
            part.nodes,
            part.folds,
            part.boxed,
            part.whole,
            part.stores,
            forward,
            backward,
        )
        return phase, wide

    def _tiling(self, part: UncutPhase, mode: str, wide: set[str]) -> Tiling:
        graph, axes = self.walks.graph, self.walks.axes
        cuts = {axis: self._cuts(part, line, mode) for axis, line in part.lines.items()}
        carried = self.carried if mode == "stream" else None
        if self.chosen:
            every = {axis: self._spans(part, line, mode, cuts[axis], None) for axis, line in part.lines.items()}
            seams = Seams(graph, axes, part.lines, cuts, self.machine, every)
            carried = seams.choose(part.nodes)
        spans = {axis: self._spans(part, line, mode, cuts[axis], carried) for axis, line in part.lines.items()}
        if self.chosen:
            wide |= seams.wide(spans, part.nodes)
        kept = carried if carried is None else frozenset(carried)
        return Tiling(graph, axes, tuple(part.lines), mode, part.nodes, part.lines, spans, cuts, kept, part.loose)

    def _cuts(self, part: UncutPhase, line: Line, mode: str) -> Cuts:
        """Where an axis is cut: it is asked for each of the ways to cut the others."""
        key = ("cuts", line.axis, mode, self.shares[line.axis])
        if key not in part.known:
            names = line.starts(mode)
            sizes = {v: max(1, round(self.shares[line.axis] * line.sizes[v])) for v in names}
            count = max(-(-line.sizes[v] // sizes[v]) for v in names)
            cuts = {v: _cut(line.sizes[v], sizes[v], count) for v in names}
            part.known[key] = cuts
            if mode == "stream" and count > 1:
                level, spans = _level(self.walks, line, cuts, count, self.shares[line.axis])
                part.known.update({key: level, self._spans_key(line, mode, None): spans})
        found: Cuts = part.known[key]  # type: ignore[assignment]
        return found

    def _spans_key(self, line: Line, mode: str, carried: frozenset[str] | None) -> tuple[object, ...]:
        return "spans", line.axis, mode, self.shares[line.axis], carried

    def _spans(self, part: UncutPhase, line: Line, mode: str, cuts: Cuts, carried: Collection[str] | None) -> Spans:
        every = carried is None or all(out in carried for out, _ in line.steps)
        kept = None if every else frozenset(carried or ())
        key = self._spans_key(line, mode, kept)
        if key not in part.known:
            part.known[key] = self.walks.solved(line, mode, cuts, kept)
        found: Spans = part.known[key]  # type: ignore[assignment]
        return found


def _hands_on(phase: TilePhase) -> bool:
    """Is there a halo?"""
    tiling = phase.forward
    assert tiling is not None
    made = [node.outputs[0] for node in tiling.nodes]
    return any(spans.held[v].total > spans.own[v].total for spans in tiling.spans.values() for v in made)


def _level(walks: Walks, line: Line, cuts: dict[str, tuple[int, ...]], count: int, share: float) -> tuple[Cuts, Spans]:
    """Shift the cuts of what is made so that the first tile, which runs ahead of all others by the whole lag of the
    network, holds no more than they do: at the top of the network tiles are then alike, at its end the last grows.
    Where the lag is longer than a tile, also cut what is read instead, and so many tiles more that all are alike."""

    def heaviest(tried: tuple[Cuts, Spans]) -> float:
        rows: dict[int, float] = {}  # bytes of a row of all values that have the same track
        tracks = {id(track): track for track in tried[1].held.values()}
        for name, _ in line.steps:
            track = id(tried[1].held[name])
            rows[track] = rows.get(track, 0.0) + walks.graph.type(name).bytes / line.sizes[name]
        return float(np.sum([size * tracks[track].sizes for track, size in rows.items()], axis=0).max())

    spans = walks.solved(line, "stream", cuts)
    lag = max((spans.own[v][0].hi / line.sizes[v] for v in line.sizes), default=0.0) - 1.0 / count
    if lag * count < 0.05:
        return cuts, spans
    tried: list[tuple[Cuts, Spans]] = [(cuts, spans)]
    for part in (0.5, 1.0):
        shift = {v: round(part * lag * line.sizes[v]) for v in cuts}
        if all(shift[v] < cuts[v][1] for v in cuts):
            moved = {v: (0, *(c - shift[v] for c in track[1:-1]), track[-1]) for v, track in cuts.items()}
            tried.append((moved, walks.solved(line, "stream", moved)))
    if 1.0 < lag * count < MOST_LAG * count and line.sources:
        sizes = {v: max(1, round(share * line.sizes[v])) for v in line.sources}
        more = max(-(-round((1.0 + lag) * line.sizes[v]) // sizes[v]) for v in line.sources)
        read = {v: tuple(range(0, (more + 1) * size, size)) for v, size in sizes.items()}
        tried.append((read, walks.solved(line, "stream", read)))
    return min(tried, key=heaviest)


def _cut(n: int, size: int, count: int) -> tuple[int, ...]:
    """Tiles of `size` where that makes `count` of them, so that interior tiles share one shape."""
    cuts = cuts_of_size(n, size)
    return cuts if len(cuts) == count + 1 else cuts_of_count(n, count)
