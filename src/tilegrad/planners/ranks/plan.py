"""Who owns what, who needs what of whom, and when: the plan of a step on a mesh, the same on every rank.

- Every value that is kept (inputs, outputs, what later phases read, parameters that live on space) is *owned* by box.
- A phase is one walk over local nodes. A rank makes its own share of what the phase stores, and for that reads boxes
  that may reach into its neighbours': the *halo*. What lies between is computed by both.
- Halos of a value are *exchanged* once, before the first phase that reads them, wide enough for all that follow. In
  backward their gradients go back once, and are summed by the owner.

Everything follows from box rules, so no rank has to ask another what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from ...bounds import Axes, Placement, Tiling, label_axes, needed_gradients, place_values, read_by_tail
from ...bounds.mesh import Coords, Mesh, check_fits
from ...errors import GridError
from ...ir import Build, Graph, Kind, Node
from ...ops import Reduction, find
from ...region import Box, Interval
from ...schedule import Exchange, Finish, Islands, Schedule, ScheduleStep, Seat, Strip, Sum, TilePhase, Turn
from ...schedule.schedule import backward_uses, forward_uses, with_frees
from ..tiling import whole_phase
from .walks import Key, Walk, make_walks


class OwnedSide(NamedTuple):
    """Of a value along an axis that it is cut along: what one index of the mesh owns, what it needs, and what of its
    own any index needs."""

    own: Interval
    needed: Interval
    wanted: Interval


@dataclass(frozen=True)
class MeshPlan:
    graph: Graph = field(repr=False)
    axes: Axes = field(repr=False)
    mesh: Mesh
    placement: Placement = field(repr=False)
    walks: tuple[Walk, ...] = field(repr=False)
    mode: str = "scatter"

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def owned(self, value: str, coords: Coords) -> Box:
        """The box of a value that a rank answers for; whole along axes that it is not cut along."""
        return self._box(value, coords, lambda side: side.own)

    def needed(self, value: str, coords: Coords) -> Box:
        """The box of a value that a rank reads in any phase."""
        return self._box(value, coords, lambda side: side.needed)

    def region(self, value: str, coords: Coords) -> Box:
        """What a rank allocates: its own box with margins for what it needs of others."""
        return self._box(value, coords, lambda side: side.own.hull(side.needed))

    def _box(self, value: str, coords: Coords, choose: Callable[[OwnedSide], Interval]) -> Box:
        sides = [Interval(0, n) for n in self.graph.shape(value)]
        for axis, each in self.sides(value).items():
            sides[self.axes.dims[value][axis]] = choose(each[self.mesh.index(coords, axis)])
        return Box(sides)

    def sides(self, value: str) -> dict[str, list[OwnedSide]]:
        """By axis that a value is cut along, in the order of the mesh, and by index."""
        if value not in self._sides:
            cut = [axis for axis in self.mesh.axes if axis in self.placement.cut[value]]
            self._sides[value] = {axis: self._along(value, axis) for axis in cut}
        return self._sides[value]

    @cached_property
    def _sides(self) -> dict[str, dict[str, list[OwnedSide]]]:
        return {}

    def _along(self, value: str, axis: str) -> list[OwnedSide]:
        length = self.graph.shape(value)[self.axes.dims[value][axis]]
        cuts, needed = self.mesh.cuts(axis, length), list[Interval]()
        for at in range(self.mesh.size(axis)):
            found = Interval(0, 0)
            for walk in self.readers[value]:
                tracked = axis in walk.spans and value in walk.spans[axis][at].held
                for span in walk.spans[axis][at].held[value] if tracked else [Interval(0, length)]:
                    found = found.hull(span)
            needed.append(found)
        everyone = reduce(Interval.hull, needed, Interval(0, 0))
        own = [Interval(cuts[at], cuts[at + 1]) for at in range(len(needed))]
        return [OwnedSide(mine, want, mine.meet(everyone)) for mine, want in zip(own, needed, strict=True)]

    @cached_property
    def told(self) -> frozenset[str]:
        """The values whose gradients are the first rank's alone (rule P5), which tells them to the others."""
        return read_by_tail(self.graph, self.placement.tail)

    @cached_property
    def told_buffers(self) -> frozenset[str]:
        """Buffers whose new values every rank computes from whole maps: the first rank tells its own, to the bit."""
        made = {out for node in self.graph.nodes if node.name in self.placement.whole for out in node.outputs}
        return frozenset(old for old, new in self.graph.updates if new in made)

    @cached_property
    def full(self) -> bool:
        """Has every rank a part of everything?"""
        spans = (one for walk in self.walks for along in walk.spans.values() for one in along)
        tracks = (track for one in spans for track in (*one.own.values(), *one.held.values()))
        return not any(span.empty for track in tracks for span in track)

    @cached_property
    def readers(self) -> dict[str, list[Walk]]:
        found: dict[str, list[Walk]] = {v.name: [] for v in self.graph.values}
        for walk in self.walks:
            for value in (*walk.boxed, *walk.whole):
                found[value].append(walk)
        return found

    # -- exchange ------------------------------------------------------------------------------------------------------

    @cached_property
    def exchanges(self) -> dict[Key, tuple[str, ...]]:
        """The values whose halos are exchanged before each phase: those it is the first to read."""
        found: dict[Key, list[str]] = {walk.key: [] for walk in self.walks}
        for value, walks in self.readers.items():
            if walks and self.placement.cut[value]:
                found[walks[0].key].append(value)
        return {key: tuple(values) for key, values in found.items()}

    def _first_read(self, walk: Walk, needs: Collection[str]) -> tuple[str, ...]:
        """Parameters that no earlier walk reads: their gradients are complete when this one has run backward."""
        mine = dict.fromkeys((*walk.boxed, *walk.whole))
        weights = [v for v in mine if self.graph.value[v].kind is Kind.PARAMETER and v in needs]
        return tuple(v for v in weights if self.readers[v][0] is walk)

    @property
    def moved(self) -> list[tuple[str, ...]]:
        """What is exchanged together, where anything moves."""
        return [values for values in self.exchanges.values() if self.stages(values)]

    def stages(self, values: Sequence[str]) -> list[str]:
        """The axes along which anything of these values moves: one after another, so that what lies across a corner
        comes by way of a neighbour, and there are two messages to an axis."""
        return [axis for axis in self.mesh.axes if any(self._moves_along(value, axis) for value in values)]

    def _moves_along(self, value: str, axis: str) -> bool:
        return any(not side.own.holds(side.needed) for side in self.sides(value).get(axis, ()))

    def strips(self, value: str, coords: Coords, axis: str, back: bool = False) -> Iterator[tuple[Strip, bool]]:
        """What a rank takes of others along an axis, and (True) gives. `back`: only what has a gradient."""
        if not self._moves_along(value, axis):
            return
        k = self.mesh.axes.index(axis)
        for at in range(self.mesh.size(axis)):
            peer = (*coords[:k], at, *coords[k + 1 :])
            for given, reader, owner in ((False, coords, peer), (True, peer, coords)) if peer != coords else ():
                if back and not self._has_gradient(value, axis, reader):
                    continue
                if not (box := self._handed(value, axis, reader, owner)).empty:
                    yield Strip(value, box, self.mesh.rank(peer)), given

    def _has_gradient(self, value: str, axis: str, reader: Coords) -> bool:
        """Of what only the tail reads the first rank alone has a gradient; it goes on along one axis after another."""
        ways = self.mesh.axes[: self.mesh.axes.index(axis) + 1]
        return value not in self.told or not any(reader[k] for k, a in enumerate(ways) if a in self.sides(value))

    def _handed(self, value: str, axis: str, reader: Coords, owner: Coords) -> Box:
        """Along axes before this one the owner has by now what both need; along those behind it, its own."""
        sides, before = [Interval(0, n) for n in self.graph.shape(value)], True
        for each, found in self.sides(value).items():
            side, dim = found[self.mesh.index(reader, each)], self.axes.dims[value][each]
            if each == axis:
                sides[dim], before = side.needed.meet(found[self.mesh.index(owner, each)].own), False
            else:
                sides[dim] = side.needed if before else side.wanted
        return Box(sides)

    # -- a rank's part -------------------------------------------------------------------------------------------------

    def schedule(self, coords: Coords, graded: Collection[str] = (), *, kept: bool = True) -> Schedule:
        """What one rank runs. `graded`: outside values that need a gradient; `kept`: records stay for backward."""
        phases = self.phases(coords)
        names = {v.name for v in self.graph.values}
        mute = {n for n in self.graph.outputs if not self._is_first(n, coords)}
        seat = Seat(
            self.mesh.rank(coords),
            {name: self.owned(name, coords) for name in names},
            {name: self.region(name, coords) for name in names},
            frozenset(mute),
            self.placement.tail,
            self.placement.shared,
            frozenset(self.mesh.axes),
            (list(self.mesh.coords()).index(coords), self.mesh.count),
        )
        keep = frozenset(p.name(tile) for p in phases for tile in p.tiles()) if kept else frozenset[str]()
        needs = needed_gradients(self.graph, graded)
        steps = with_frees(self.graph, phases, list(self._groups(phases, coords, needs, keep)))
        return Schedule(self.graph, self.mode, phases, steps=steps, islands=Islands(phases), seat=seat)

    def exchange_steps(self, coords: Coords, needs: Collection[str] = ()) -> list[Exchange]:
        """What a rank tells others in a step, in order. `needs`: values whose gradient flows back."""
        forth = [step for walk in self.walks for step in self._exchange(walk, coords)]
        return forth + [step for walk in reversed(self.walks) for step in self._exchange(walk, coords, needs)]

    def phases(self, coords: Coords) -> tuple[TilePhase, ...]:
        return tuple(self._phase(walk, coords) for walk in self.walks)

    def _is_first(self, name: str, coords: Coords) -> bool:
        """Does the gradient of an output count here?"""
        cut = self.placement.cut[name]
        return all(coords[k] == 0 for k, axis in enumerate(self.mesh.axes) if axis not in cut)

    def _groups(
        self, phases: Sequence[TilePhase], coords: Coords, needs: Collection[str], keep: frozenset[str]
    ) -> Iterator[tuple[list[ScheduleStep], set[str]]]:
        """The steps of every phase, forward and back, with what ranks tell each other before and after."""
        for walk, phase in zip(self.walks, phases, strict=True):
            steps: list[ScheduleStep] = [*self._exchange(walk, coords)]
            steps += phase.runs(keep if needs else ())
            yield steps + [self._finish(fold, coords) for fold in walk.folds], forward_uses(phase)
        yield [Turn()], {*self.graph.outputs, *(new for _, new in self.graph.updates)}
        summed = set[str]()
        for walk, phase in zip(reversed(self.walks), reversed(phases), strict=True) if needs else ():
            folds = [fold for fold in walk.folds if fold.outputs[0] in needs]
            steps = [Sum(fold.outputs[0], self.placement.folds[fold.name]) for fold in folds]
            steps += phase.backwards(keep)
            steps += self._exchange(walk, coords, needs)
            mine = self._first_read(walk, needs)
            summed.update(mine)
            yield steps + [self._sum(name) for name in mine], backward_uses(phase, keep)
        if needs:
            rest = [v.name for v in self.graph.values if not v.kind.computed and v.name in needs]
            yield [self._sum(name) for name in rest if name not in summed], set()

    def _sum(self, name: str) -> Sum:
        cut = self.placement.cut[name]
        return Sum(name, frozenset(self.mesh.axes) - cut, later=True, first=name in self.told and not cut)

    def _finish(self, fold: Node, coords: Coords) -> Finish:
        axes = self.placement.folds[fold.name]
        parts = tuple(self.owned(fold.inputs[0].value, c) for c in self.mesh.alike(coords, axes))
        return Finish(fold.name, axes, parts)

    def _exchange(self, walk: Walk, coords: Coords, needs: Collection[str] | None = None) -> list[Exchange]:
        """Of what a walk is the first to read; in backward (`needs`) its gradients, by the same way back. None where no
        rank has anything to tell."""
        back = needs is not None
        values = tuple(v for v in self.exchanges[walk.key] if needs is None or v in needs)
        found = []
        for axis in self.stages(values):
            strips = [each for value in values for each in self.strips(value, coords, axis, back)]
            takes, gives = (tuple(strip for strip, given in strips if given is way) for way in (back, not back))
            found.append(Exchange(values, gives, takes, back))
        return found[::-1] if back else found

    def _phase(self, walk: Walk, coords: Coords) -> TilePhase:
        at = self.walks.index(walk)
        if not walk.lines:
            return whole_phase(self.graph, at, walk.nodes, set(walk.stores))
        tiled = walk.key[1]
        spans = {axis: walk.spans[axis][self.mesh.index(coords, axis)] for axis in tiled}
        tiling = Tiling(self.graph, self.axes, tiled, self.mode, walk.nodes, walk.lines, spans)
        return TilePhase(at, self.graph, walk.nodes, walk.folds, walk.boxed, walk.whole, walk.stores, tiling, tiling)


def plan_mesh(
    graph: Graph,
    mesh: Mesh,
    *,
    exchanged: Collection[str] = (),
    whole: Collection[str] = (),
    tiles: Mapping[str, int] | None = None,
) -> MeshPlan:
    """The plan for a lowered graph. `exchanged`: values whose halos move between ranks although the walk could go on;
    `whole`: nodes that every rank runs whole; `tiles`: how many tiles each rank cuts its own box into, by axis."""
    graph = separate_folds(graph)
    axes = label_axes(graph)
    placement = place_values(graph, axes, mesh.axes, {*exchanged, *_before_owned_weights(graph, axes, mesh)}, whole)
    _check_mesh(graph, axes, mesh, placement)
    mode = "stream" if tiles and max(tiles.values()) > 1 else "scatter"
    return MeshPlan(
        graph, axes, mesh, placement, tuple(make_walks(graph, axes, mesh, placement, mode, tiles or {})), mode
    )


def _check_mesh(graph: Graph, axes: Axes, mesh: Mesh, placement: Placement) -> None:
    known = [axis for value in graph.values for axis, _ in value.axes]  # what parts were cut along
    for axis in mesh.axes:
        values = [v for v in graph.of_kind(Kind.INPUT) if axis in placement.cut[v.name]]
        for value in values:
            check_fits(mesh, axis, value.type.shape[axes.dims[value.name][axis]], f"input '{value.name}'")
        if not values and mesh.size(axis) > 1 and (axis in known or not known):
            what = f"{mesh.size(axis)} ranks along {axis}, but the network has no input that can be cut along it"
            raise GridError(what, hint=f"a mesh without {axis}, or layers that read near what they make")


def separate_folds(graph: Graph) -> Graph:
    """A fold accumulates what a walk makes: between two folds a copy stands for that walk."""
    if not any(_folds_a_fold(graph, node) for node in graph.nodes):
        return graph
    build = Build(graph.name)
    build.values = {v.name: v for v in graph.values}
    build.updates = list(graph.updates)
    for node in graph.nodes:
        if _folds_a_fold(graph, node):
            source = node.inputs[0]
            build.source, build.prefix = node.source, f"{node.name}."
            copy = build.emit("clone", [("self", source.value)], build.type(source.value), {}, "aten.clone.default")
            node = _reading(node, copy)
        build.nodes.append(node)
    return build.graph(graph.outputs)


def _folds_a_fold(graph: Graph, node: Node) -> bool:
    maker = graph.producer.get(node.inputs[0].value) if node.inputs else None
    return isinstance(find(node), Reduction) and maker is not None and isinstance(find(maker), Reduction)


def _reading(node: Node, value: str) -> Node:
    return replace(node, inputs=(replace(node.inputs[0], value=value), *node.inputs[1:]))


def _before_owned_weights(graph: Graph, axes: Axes, mesh: Mesh) -> Iterator[str]:
    """What an operator reads beside weights that live on space: with its halo exchanged, no weights have to move."""
    for node in graph.nodes:
        owned = [
            slot.value
            for slot in node.inputs
            if graph.value[slot.value].kind is Kind.PARAMETER and any(a in axes.dims[slot.value] for a in mesh.axes)
        ]
        if owned:
            yield from (slot.value for slot in node.inputs if slot.value in graph.producer)
            yield from node.outputs
