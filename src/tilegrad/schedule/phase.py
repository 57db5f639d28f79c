"""A phase: a walk over the tiles of local nodes, or nodes that run once on whole values. Makes an island for each tile.

Between two phases lies what must be whole before anybody goes on: statistics, what a whole node reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from ..bounds import Tiling, call_of
from ..ir import Graph, Node
from ..ops import find
from ..region import Box
from .island import Handed, Island, touched
from .steps import Backward, Compute, Fold, Free, Halo, IslandStep, Join, Load, Run, ScheduleStep, Store

Tile = tuple[int, ...]


@dataclass(frozen=True)
class TilePhase:
    number: int
    graph: Graph = field(repr=False)
    nodes: tuple[Node, ...]
    folds: tuple[Node, ...] = ()
    boxed: tuple[str, ...] = ()  # stored values read box by box
    whole: tuple[str, ...] = ()  # stored values read whole: parameters, statistics, all that has no place
    stores: tuple[str, ...] = ()
    forward: Tiling | None = None
    backward: Tiling | None = None

    @property
    def tiled(self) -> bool:
        return self.forward is not None

    @property
    def grid(self) -> tuple[int, ...]:
        return self.forward.grid if self.forward else ()

    @property
    def made(self) -> tuple[str, ...]:
        """What is there when the phase has ended."""
        return (*self.stores, *(fold.outputs[0] for fold in self.folds))

    def tiles(self, *, backward: bool = False) -> list[Tile]:
        tiling = self.backward if backward else self.forward
        found: list[Tile] = list(product(*map(range, tiling.grid))) if tiling else [()]
        return found[::-1] if backward else found

    @cached_property
    def _islands(self) -> dict[str, TileIsland]:
        return {}

    @cached_property
    def _names(self) -> dict[tuple[Tile, bool], str]:
        return {}

    @cached_property
    def _kinds(self) -> dict[tuple[object, ...], TileIsland]:
        return {}

    def name(self, tile: Tile, *, backward: bool = False) -> str:
        """`3:0,1`; where backward goes over other tiles than forward, `3:0,1'`."""
        found = self._names.get((tile, backward))
        if found is None:
            other = "'" if backward and self.backward is not self.forward else ""
            found = f"{self.number}:{','.join(map(str, tile))}{other}" if self.tiled else str(self.number)
            self._names[tile, backward] = found
        return found

    def runs(self, keep: Collection[str] = ()) -> list[ScheduleStep]:
        """All its islands in turn; `keep`: those whose records stay."""
        if not keep:
            return [*self._runs]
        return [Run(step.island, keep=True) if step.island in keep else step for step in self._runs]

    def backwards(self, keep: Collection[str] = ()) -> list[ScheduleStep]:
        """All their backwards in turn; those who have no record run once more before."""
        return [step for name, steps in self._backwards for step in (steps[1:] if name in keep else steps)]

    @cached_property
    def _runs(self) -> list[Run]:
        return [Run(self.name(tile)) for tile in self.tiles()]

    @cached_property
    def _backwards(self) -> list[tuple[str, tuple[ScheduleStep, ...]]]:
        names = [self.name(tile, backward=True) for tile in self.tiles(backward=True)]
        return [(name, (Run(name, keep=True), Backward(name))) for name in names]

    def island(self, tile: Tile, *, backward: bool = False) -> Island:
        """What the tile does; made once and kept."""
        name = self.name(tile, backward=backward)
        if name not in self._islands:
            tiling = self.backward if backward else self.forward
            key = id(tiling), tiling.kind(tile) if tiling else ()
            found = self._islands[name] = TileIsland.at(name, self, tiling, tile, self._kinds.get(key))
            self._kinds.setdefault(key, found)
        return self._islands[name]

    def steps(self, tile: Tile, *, backward: bool = False) -> tuple[IslandStep, ...]:
        return self.island(tile, backward=backward).steps

    def make_steps(self, tiling: Tiling | None, tile: Tile) -> tuple[IslandStep, ...]:
        steps = list(self._tile_steps(tiling, tile) if tiling else self._whole_steps())
        return tuple(with_frees(self.graph, steps, frozenset(self.whole)))

    def _whole_steps(self) -> Iterator[IslandStep]:
        for node in self.nodes:
            out = Box.full(self.graph.shape(node.outputs[0]))
            needs = find(node).needs(call_of(self.graph, node), out)
            yield Compute(node.name, out, needs or tuple(Box.full(self.graph.shape(name)) for name in node.reads))
            if node.outputs[0] in self.stores:
                yield Store(node.outputs[0], out)

    def _tile_steps(self, tiling: Tiling, tile: Tile) -> Iterator[IslandStep]:
        gather = tiling.mode == "gather"
        for value in self.boxed:
            box = tiling.box("held", value, tile)
            if not box.empty:
                yield Load(value, box, tiling.box("share", value, tile) if gather else None)
        folds: dict[str, list[Node]] = {}
        for node in self.folds:
            folds.setdefault(node.inputs[0].value, []).append(node)
        for node in tiling.nodes:
            value = node.outputs[0]
            own = tiling.box("own", value, tile)
            if not own.empty:
                answers = self._answers(tiling, node, tile, own) if gather else None
                yield Compute(node.name, own, tiling.reads(node, own), answers)
            join = self._join(tiling, value, tile) if tiling.mode == "stream" and tiling.hands_on(value) else None
            if join is not None:
                yield join
            if value not in self.stores and value not in folds:
                continue
            share = tiling.box("complete" if gather else "share", value, tile)
            if value in self.stores and not share.empty:
                yield Store(value, share)
            for fold in folds.get(value, ()):
                if not share.empty:
                    yield Fold(fold.name, share)

    def _answers(self, tiling: Tiling, node: Node, tile: Tile, own: Box) -> tuple[Box, ...] | None:
        """Tiles overlap in gather mode: along an axis that an input has not (a weight has none) a tile answers for its
        share of the output only."""
        out = node.outputs[0]
        full, share = Box.full(own.shape), tiling.box("share", out, tile).within(own)
        found = []
        for name in node.reads:
            sides = list(full)
            for axis in tiling.tiled:
                if name in self.whole or name not in tiling.spans[axis].share:
                    dim = tiling.axes.dims[out][axis]
                    sides[dim] = share[dim]
            found.append(Box(sides))
        return tuple(found) if any(box != full for box in found) else None

    def _join(self, tiling: Tiling, value: str, tile: Tile) -> Join | None:
        """The halos a tile receives and gives for one value, or None where it has none."""
        own, held = tiling.box("own", value, tile), tiling.box("held", value, tile)
        dims = [tiling.axes.dims[value][axis] for axis in tiling.tiled]
        receives, gives = [], []
        for k in reversed(range(len(dims))):  # the innermost axis first
            dim = dims[k]
            # outer axes: what the tile makes itself; inner axes: all it holds
            sides = [held[d] if d in dims[k + 1 :] else own[d] for d in range(len(own))]
            sides[dim] = held[dim]._replace(hi=own[dim].lo)
            if not Box(sides).empty:
                receives.append(Halo(k, dim, Box(sides), self.name(_beside(tile, k, -1))))
            if tile[k] + 1 < tiling.grid[k]:
                after = _beside(tile, k, 1)
                next_held, next_own = tiling.box("held", value, after), tiling.box("own", value, after)
                sides[dim] = next_held[dim]._replace(hi=next_own[dim].lo)
                if not Box(sides).empty:
                    gives.append(Halo(k, dim, Box(sides), self.name(after)))
        if not receives and not gives:
            return None
        return Join(value, own, held, tuple(receives), tuple(gives))


class TileIsland(Island):
    """A tile's island. Its steps are made when they are asked for: all but places is known from one of its kind."""

    _phase: TilePhase
    _tiling: Tiling
    _tile: Tile

    @classmethod
    def at(cls, name: str, phase: TilePhase, tiling: Tiling | None, tile: Tile, kind: TileIsland | None) -> TileIsland:
        found = object.__new__(cls)
        found.__dict__.update(name=name, whole=frozenset(phase.whole), refers=None)
        found.__dict__.update(_phase=phase, _tiling=tiling, _tile=tile)
        if kind is not None:
            alike = {name: getattr(kind, name) for name in ("loads", "nodes", "folds", "stores")}
            found.__dict__.update(alike, _kind=kind)
        return found

    @property
    def phase(self) -> TilePhase:
        return self._phase

    @property
    def tile(self) -> Tile:
        return self._tile

    @property
    def kind(self) -> Island:
        found: Island = self.__dict__.get("_kind", self)
        return found

    @cached_property
    def steps(self) -> tuple[IslandStep, ...]:
        return self._phase.make_steps(self._tiling, self._tile)

    @cached_property
    def writes(self) -> tuple[Store | Fold, ...]:
        if self.kind is self:
            return super().writes
        which = "complete" if self._tiling.mode == "gather" else "share"
        graph, box = self._phase.graph, self._tiling.box
        boxes = [(step, box(which, touched(graph, step)[0], self._tile)) for step in self.kind.writes]
        return tuple(Store(s.value, box) if isinstance(s, Store) else Fold(s.node, box) for s, box in boxes)

    @cached_property
    def receives(self) -> tuple[Handed, ...]:
        return super().receives if self.kind is self else self._moved(self.kind.receives, -1)

    @cached_property
    def gives(self) -> tuple[Handed, ...]:
        return super().gives if self.kind is self else self._moved(self.kind.gives, 1)

    def _moved(self, halos: tuple[Handed, ...], by: int) -> tuple[Handed, ...]:
        peers = [self._phase.name(_beside(self._tile, axis, by)) for axis in range(len(self._tile))]
        return tuple((value, axis, peers[axis], size) for value, axis, _, size in halos)


def _beside(tile: Tile, axis: int, by: int) -> Tile:
    return tuple(t + by * (k == axis) for k, t in enumerate(tile))


def with_frees(graph: Graph, steps: list[IslandStep], whole: frozenset[str]) -> Iterator[IslandStep]:
    """Put a `Free` after the last step that touches a value of the island's own."""
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in touched(graph, step):
            last[name] = at
    for at, step in enumerate(steps):
        yield step
        for name in dict.fromkeys(touched(graph, step)):
            if last[name] == at and name not in whole:
                yield Free(name)
