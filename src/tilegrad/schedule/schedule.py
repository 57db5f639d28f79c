"""A schedule: phases in order, each a walk over tiles or a group of whole nodes.

Rule S1  Phases run in order; in backward in reverse order, and so do the tiles of a walk.
Rule S2  What a phase stores is covered exactly once by its tiles.
Rule S3  A step reads only what an earlier step of the tile made, loaded or joined.
Rule S4  A halo is received just as it was given by the tile before it along its axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import product

from ..bounds import Tiling, call_of, share_of
from ..ir import Graph, Node
from ..ops import find
from ..region import Box
from .steps import Compute, Fold, Free, Halo, Join, Load, Step, Store


class Storage(StrEnum):
    """Where halos and values between phases are kept."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True)
class Phase:
    """A walk over the tiles of local nodes, or, without a tiling, nodes that run once on whole values."""

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

    def tiles(self, *, backward: bool = False) -> list[tuple[int, ...]]:
        tiling = self.backward if backward else self.forward
        found: list[tuple[int, ...]] = list(product(*map(range, tiling.grid))) if tiling else [()]
        return found[::-1] if backward else found

    @cached_property
    def _cache(self) -> dict[tuple[bool, tuple[int, ...]], tuple[Step, ...]]:
        return {}

    def steps(self, tile: tuple[int, ...], *, backward: bool = False) -> tuple[Step, ...]:
        """What the tile does, in order; made once and kept."""
        tiling = self.backward if backward else self.forward
        shared = self.backward is self.forward
        key = (backward and not shared, tile)
        if key not in self._cache:
            steps = list(self._tile_steps(tiling, tile) if tiling else self._whole_steps())
            self._cache[key] = tuple(_with_frees(self.graph, steps))
        return self._cache[key]

    def _whole_steps(self) -> Iterator[Step]:
        for node in self.nodes:
            out = Box.full(self.graph.shape(node.outputs[0]))
            needs = find(node).needs(call_of(self.graph, node), out)
            yield Compute(node.name, out, needs or tuple(Box.full(self.graph.shape(name)) for name in node.reads))
            if node.outputs[0] in self.stores:
                yield Store(node.outputs[0], Box.full(self.graph.shape(node.outputs[0])))

    def _tile_steps(self, tiling: Tiling, tile: tuple[int, ...]) -> Iterator[Step]:
        for value in self.boxed:
            box = tiling.box("held", value, tile)
            if not box.empty:
                yield Load(value, box)
        folds: dict[str, list[Node]] = {}
        for node in self.folds:
            folds.setdefault(node.inputs[0].value, []).append(node)
        for node in tiling.nodes:
            value = node.outputs[0]
            own = tiling.box("own", value, tile)
            if not own.empty:
                yield Compute(node.name, own, tiling.reads(node, own))
            join = make_join(tiling, value, tile) if tiling.mode == "stream" else None
            if join is not None:
                yield join
            which = "complete" if tiling.mode == "gather" else "share"
            share = tiling.box(which, value, tile)
            if value in self.stores and not share.empty:
                yield Store(value, share)
            for fold in folds.get(value, ()):
                if not share.empty:
                    yield Fold(fold.name, share)


def make_join(tiling: Tiling, value: str, tile: tuple[int, ...]) -> Join | None:
    """The halos a tile receives and gives for one value, or None where it has none."""
    own, held = tiling.box("own", value, tile), tiling.box("held", value, tile)
    dims = [tiling.axes.dims[value][axis] for axis in tiling.tiled]
    receives, gives = [], []
    for k in reversed(range(len(dims))):  # the innermost axis first
        dim = dims[k]
        # outer axes: what the tile makes itself; inner axes: all it holds
        sides = [held[d] if d in dims[k + 1 :] else own[d] for d in range(len(own))]
        sides[dim] = held[dim]._replace(hi=own[dim].lo)
        box = Box(sides)
        if not box.empty:
            receives.append(Halo(k, dim, box))
        if tile[k] + 1 < tiling.grid[k]:
            after = tuple(t + (j == k) for j, t in enumerate(tile))
            next_held, next_own = tiling.box("held", value, after), tiling.box("own", value, after)
            sides[dim] = next_held[dim]._replace(hi=next_own[dim].lo)
            if not Box(sides).empty:
                gives.append(Halo(k, dim, Box(sides)))
    if not receives and not gives:
        return None
    return Join(value, own, held, tuple(receives), tuple(gives))


def _with_frees(graph: Graph, steps: list[Step]) -> Iterator[Step]:
    """Put a `Free` after the last step that touches a value."""
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in touched(graph, step):
            last[name] = at
    for at, step in enumerate(steps):
        yield step
        for name in dict.fromkeys(touched(graph, step)):
            if last[name] == at:
                yield Free(name)


def touched(graph: Graph, step: Step) -> tuple[str, ...]:
    """The values a step reads or makes."""
    match step:
        case Compute(node=name):
            node = graph.node[name]
            return (*node.reads, *node.outputs)
        case Fold(node=name):
            return (graph.node[name].inputs[0].value,)
        case Load(value=value) | Join(value=value) | Store(value=value) | Free(value=value):
            return (value,)


@dataclass(frozen=True)
class Schedule:
    """All phases of a forward pass (and, reversed, of a backward pass) over one lowered graph."""

    graph: Graph = field(repr=False)
    mode: str
    phases: tuple[Phase, ...]
    storage: Storage = Storage.DEVICE
    predicted: Mapping[str, int | float] = field(default_factory=dict)

    @cached_property
    def whole_share(self) -> float:
        """The share of all bytes that is made by whole nodes."""
        tiled = {node.name for phase in self.phases if phase.tiled for node in (*phase.nodes, *phase.folds)}
        return share_of(self.graph, lambda node: node.name not in tiled)

    @cached_property
    def work(self) -> float:
        """Arithmetic of the forward pass relative to running every node once."""
        plain = done = 0.0
        once: set[str] = set()
        for phase in self.phases:
            for node in phase.nodes:
                call = call_of(self.graph, node)
                cost = find(node).flops(call)
                size = call.out.size
                if node.name not in once:
                    plain += cost * size
                    once.add(node.name)
                done += cost * (phase.forward.computed(node.outputs[0]) if phase.forward else size)
        return done / plain if plain else 1.0
