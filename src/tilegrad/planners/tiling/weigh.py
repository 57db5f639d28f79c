"""Bytes and seconds of tiles in closed form: from a graph analysed once, and the sizes of what each tile holds.

What autograd keeps of each node, and what its backward makes, is known from the training graph; so is when what comes
and goes while a tile runs. That is a table of moments and memories for each phase. A tile is a column of sizes, and its
peak the largest entry of a product. Seconds grow with what all tiles compute together, and with their number.

This is for choosing. What is chosen is rehearsed, and the rehearsal is what a plan says of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...bounds import Tiling, call_of, needed_gradients
from ...ir import Graph, Kind, Node, Phase
from ...kernels import Fused, with_kernels
from ...schedule import KEPT, Again, Storage, TilePhase
from ...schedule.whole import roots_of
from ...sim.clock import FREE
from ...sim.machine import Machine
from ...sim.training import training_graph
from .again import Ladder, Running, Sizes, Stock
from .seconds import PhaseClock, share_of
from .walks import whole_phase
from .weight import PhaseWeight, TileBytes, Weight, Weights

SURE = 0.92  # of a budget: what is weighed so should fit it


@dataclass(frozen=True)
class _Tape:
    """What one node's backward needs and makes, whole."""

    saves: frozenset[str] = frozenset()  # memories of values
    hidden: int = 0  # bytes besides
    work: int = 0  # for a moment, forward
    back_work: int = 0  # and backward
    weights: int = 0  # of gradients of weights, which are added up elsewhere
    grads: tuple[tuple[str, str | None], ...] = ()  # values that get one, and whose gradient's memory it lies in


@dataclass(frozen=True)
class _Moments:
    """A phase's memories (value, whole bytes) and when each is there: forward without a record, forward with one, and
    in its backward."""

    memories: tuple[tuple[str, int], ...]
    plain: Sizes
    graded: Sizes
    back: Sizes
    saved: Sizes  # by the record, at its end


class Scale:
    """A lowered graph, ready to weigh any tiles of it. `graded`: outside values that need a gradient; `of`: a graph
    that this one may be a part of, which was analysed before."""

    def __init__(self, graph: Graph, graded: Collection[str], train: bool, machine: Machine, of: Scale | None = None):
        self.graph, self.machine, self.train = graph, machine, train
        known = of.graph.node if of is not None else {}
        self.of = of if all(known.get(node.name) == node for node in graph.nodes) else None
        self.graded = tuple(graded) if train else ()
        self.needs = needed_gradients(graph, self.graded) if self.graded else frozenset[str]()
        self._moments: dict[tuple[object, ...], _Moments] = {}
        self._clock = PhaseClock(graph, machine)
        self._weighed: dict[object, PhaseWeight] = {}
        self._stocks: dict[object, Stock] = {}
        self._ladders: dict[int, Ladder] = {}

    @cached_property
    def _trained(self) -> Graph:
        return training_graph(self.graph, self.graded) if self.of is None else self.of._trained

    @cached_property
    def root(self) -> Mapping[str, str]:
        return roots_of(self._trained).root

    @cached_property
    def outside(self) -> int:
        return self.graph.outside_bytes()

    @cached_property
    def tapes(self) -> dict[str, _Tape]:
        value, found = self._trained.value, {node.name: _Tape() for node in self.graph.nodes}
        for node in self._trained.nodes:
            if node.phase is Phase.BACKWARD and (of := str(node.attrs.get("of", ""))) in found:
                found[of] = replace(self._tape(node), work=found[of].work)
            elif (work := f"{node.name}.work") in node.outputs:
                found[node.name] = _Tape(work=value[work].type.bytes)
        return found

    def _tape(self, node: Node) -> _Tape:
        value, root = self._trained.value, self.root
        saves = frozenset(root[i.value] for i in node.inputs if i.arg.startswith("saved."))
        hidden = sum(value[i.value].type.bytes for i in node.inputs if i.arg == "saved")
        work = weights = 0
        grads: dict[str, str | None] = {}
        for out in node.outputs:
            name = out.partition(".grad")[0]
            if out.endswith(".backward.work"):
                work += value[out].type.bytes
            elif name in self.graph.value and self.graph.value[name].kind is Kind.PARAMETER:
                weights += value[out].type.bytes
            else:
                alias = root[out].partition(".grad")[0] if root[out] != out else None
                grads[name] = alias if alias != name and alias in self.graph.value else None
        return _Tape(saves, hidden, 0, work, weights, tuple(grads.items()))

    # -- a phase's table -----------------------------------------------------------------------------------------------

    def moments(self, phase: TilePhase) -> _Moments:
        key = (tuple(node.name for node in phase.nodes), phase.stores)
        if key not in self._moments:
            self._moments[key] = self._find_moments(phase)
        return self._moments[key]

    def _find_moments(self, phase: TilePhase) -> _Moments:
        nodes, root = phase.nodes, self.root
        count = len(nodes)
        made = {out: at for at, node in enumerate(nodes) for out in node.outputs}
        hidden = self._hidden(phase)
        born: dict[str, int] = {}
        last: dict[str, int] = {}
        for name, at in made.items():
            if name not in hidden and (own := root[name]) in made:
                born[own] = min(born.get(own, at), at)
                last[own] = max(last.get(own, at), at)
        for at, node in enumerate(nodes):
            for name in node.reads:
                if (own := root[name]) in born:
                    last[own] = max(last[own], at)
        freed = dict.fromkeys(born, -1)  # in backward: behind the first node that saves it
        for at in reversed(range(count)):
            for own in self.tapes[nodes[at].name].saves:
                if own in born:
                    freed[own] = at
        kept = {own for own, at in freed.items() if at >= 0}
        names = list(born)
        extra = [at for at in range(count) if self.tapes[nodes[at].name].hidden]
        lives = list(self._gradient_lives(nodes).items())
        memories = [(own, self.graph.type(own).bytes) for own in names]
        memories += [(nodes[at].outputs[0], self.tapes[nodes[at].name].hidden) for at in extra]
        memories += [(name, self.graph.type(name).bytes) for name, _ in lives]
        works = [(node.outputs[0], self.tapes[node.name].work) for node in nodes]
        works += [(node.outputs[0], self.tapes[node.name].back_work) for node in nodes]
        works += [("", self.tapes[node.name].weights) for node in nodes]
        width = len(memories) + len(works)
        plain, graded, back = (np.zeros((count, width)) for _ in range(3))
        saved = np.zeros(width)
        for column, own in enumerate(names):
            plain[born[own] : last[own] + 1, column] = 1
            graded[born[own] : (count if own in kept else last[own] + 1), column] = 1
            saved[column] = own in kept
            if own in kept:
                back[freed[own] :, column] = 1
        for k, at in enumerate(extra, start=len(names)):
            graded[at:, k] = back[at:, k] = saved[k] = 1
        for k, (_, (begin, end)) in enumerate(lives, start=len(names) + len(extra)):
            back[end : begin + 1, k] = 1
        for at in range(count):
            plain[at, len(memories) + at] = graded[at, len(memories) + at] = 1
            back[at, len(memories) + count + at] = back[at, len(memories) + 2 * count + at] = 1
        return _Moments((*memories, *works), plain, graded, back, saved)

    def _hidden(self, phase: TilePhase) -> set[str]:
        """Values that a kernel never shows."""
        kept = {*phase.stores, *(fold.reads[0] for fold in phase.folds)}
        island = whole_phase(self.graph, phase.number, phase.nodes, kept).island(())
        calls = {node.name: call_of(self.graph, node) for node in phase.nodes}
        fused = (step for step in with_kernels(island, self.graph, calls, "cpu") if isinstance(step, Fused))
        return {self.graph.node[each.node].outputs[0] for step in fused for each in step.steps[:-1]}

    def _gradient_lives(self, nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
        """By whose gradient's memory it is: from the backward of which node to that of which. What is not made here is
        given away at the end."""
        made = {out: at for at, node in enumerate(nodes) for out in node.outputs}
        owner: dict[str, str] = {}
        lives: dict[str, tuple[int, int]] = {}
        for at in reversed(range(len(nodes))):
            for name, alias in self.tapes[nodes[at].name].grads:
                if name in self.needs:
                    own = owner.setdefault(name, owner.get(alias or name, alias or name))
                    begin, end = lives.get(own, (at, at))
                    lives[own] = (begin, min(end, made.get(name, 0)))
        return lives

    # -- tiles ---------------------------------------------------------------------------------------------------------

    def weigh(self, phases: Sequence[TilePhase], storage: str = Storage.DEVICE, again: Again = KEPT) -> Weight:
        near = storage == Storage.DEVICE
        return self._weights(phases, near)(self.stock(phases, near).held(again))

    def weigh_within(self, phases: Sequence[TilePhase], storage: str, budget: float) -> list[tuple[Again, Weight]]:
        """Ways to fit a budget, and some percent less: nothing is made again where that fits; else as little as may be.
        Where nothing fits, what needs least."""
        near = storage == Storage.DEVICE
        stock, weights = self.stock(phases, near), self._weights(phases, near)
        kept = weights(stock.held())
        if kept.total_bytes <= SURE * budget or not (near and self.train and stock.choices):
            return [(KEPT, kept)]
        if id(stock) not in self._ladders:
            self._ladders[id(stock)] = Ladder(stock, weights.running)
        limits = (budget, SURE * budget, SURE * SURE * budget)
        return [(held.again, weights(held)) for held in self._ladders[id(stock)].within(weights.running, limits)]

    def without_need(
        self, phases: Sequence[TilePhase], storage: str, again: Again, budget: float
    ) -> tuple[Again, Weight]:
        """Of what is made again, what might as well be kept in a budget is kept."""
        near = storage == Storage.DEVICE
        stock, weights = self.stock(phases, near), self._weights(phases, near)
        most = max(SURE * budget, weights.running.peak(stock.held(again)))
        again = stock.without_need(again, weights.running, most, len(stock.choices))
        return again, weights(stock.held(again))

    def stock(self, phases: Sequence[TilePhase], near: bool = True) -> Stock:
        """The same for all tiles of the same walks."""
        key = (near, tuple((phase.number, phase.stores, phase.boxed, phase.whole) for phase in phases))
        if key not in self._stocks:
            self._stocks[key] = Stock(self.graph, phases, self.needs, self.graded, train=self.train, near=near)
        return self._stocks[key]

    def _weights(self, phases: Sequence[TilePhase], near: bool) -> Weights:
        found = [self._phase_weight(phase, near) for phase in phases]
        halos = np.array([each.halos for each in found])
        forward_b, backward_b = (np.array([getattr(each, name) for each in found]) for name in ("forward", "backward"))
        replay_s = np.array([each.replay_s for each in found]).reshape(-1, 2)
        cost, again = FREE, FREE
        for each in found:
            cost, again = cost.plus(each.cost), again.plus(each.again)
        fresh = sum(each.fresh_s for each in found)
        kept = [each.saved for each in found]
        records = np.concatenate(kept) if kept else np.zeros(0)
        total, turn = float(halos.sum()), found[-1].turn if found else 0.0
        running = Running(forward_b + np.cumsum(halos), backward_b + total, forward_b + total, replay_s)
        saves = FREE.plus(again, 1 / max(1, len(records)))
        held = turn + total, total - self.outside
        return Weights(running, cost, *held, records, saves, self.machine.elapsed, fresh)

    def _phase_weight(self, phase: TilePhase, near: bool) -> PhaseWeight:
        """The same whatever the others are."""
        names = () if phase.tiled else tuple(node.name for node in phase.nodes)
        key = id(phase.forward), names, phase.stores, near
        if key not in self._weighed:
            self._weighed[key] = self._weigh_phase(phase, near)
        return self._weighed[key]

    def tile_bytes(self, phase: TilePhase, near: bool) -> TileBytes:
        """Of a phase that goes over the same tiles forward and backward."""
        table = self.moments(phase)
        bytes_, kinds = self._bytes(phase, phase.forward)
        fetched = 0.0 if near else self._fetched(phase, phase.boxed)
        given = 0.0 if near else self._fetched(phase, phase.stores)
        return TileBytes(
            kinds,
            fetched + (table.plain @ bytes_).max(0, initial=0.0),
            fetched + (table.graded @ bytes_).max(0, initial=0.0),
            fetched + given + (table.back @ bytes_).max(0, initial=0.0),
            table.saved @ bytes_,
        )

    def _bytes(self, phase: TilePhase, tiling: Tiling | None) -> tuple[Sizes, NDArray[np.int64]]:
        """Of each memory, for each kind of tile; and which kind each tile is."""
        whole = np.array([size for _, size in self.moments(phase).memories], float)[:, None]
        sizes, kinds = self._tiles(phase, tiling)
        return whole * sizes, kinds

    def _weigh_phase(self, phase: TilePhase, near: bool) -> PhaseWeight:
        table = self.moments(phase)
        bytes_, kinds = self._bytes(phase, phase.forward)
        fetched = 0.0 if near else self._fetched(phase, phase.boxed)
        forward_b = fetched + float((table.plain @ bytes_).max(initial=0.0))
        forward, replay, once, backward, link, fresh = self._clock.seconds(phase, near)
        halos = self._halos(phase) if near else 0.0
        found = PhaseWeight(phase, halos, forward_b, replay, forward.plus(link), fresh)
        if not self.train:
            return found
        if phase.backward is not phase.forward:
            bytes_, _ = self._bytes(phase, phase.backward)
        most = np.maximum((table.graded @ bytes_).max(0, initial=0.0), (table.back @ bytes_).max(0, initial=0.0))
        fetched += 0.0 if near else self._fetched(phase, phase.stores)  # their gradients
        saved = table.saved @ bytes_
        keeps = phase.backward is phase.forward
        return replace(
            found,
            cost=found.cost.plus(once).plus(backward).plus(link, 2),
            backward=fetched + float(most.max(initial=0.0)),
            turn=float((most - saved).max(initial=0.0)),
            saved=saved[kinds] if keeps else found.saved,
            again=once if keeps else FREE,
        )

    def most_bytes(self, phase: TilePhase, near: bool) -> float:
        """What a tile of a phase needs, and all halos there."""
        found = self._phase_weight(phase, near)
        return found.halos + max(found.forward, found.backward)

    def computed_s(self, nodes: Sequence[Node]) -> float:
        """Forward and, in training, backward of these nodes once: no tiles that run them take less."""
        return self.machine.elapsed(0.0, sum(self._clock.whole_s(node, back=self.train) for node in nodes))

    def floor(self, phases: Sequence[TilePhase], storage: str) -> float:
        """What is there between phases: no tiles of these walks need less."""
        return self.stock(phases, storage == Storage.DEVICE).floor

    def _tiles(self, phase: TilePhase, tiling: Tiling | None) -> tuple[Sizes, NDArray[np.int64]]:
        """Of each memory the share that a tile holds: a column for each kind of tile; and which kind each tile is."""
        memories = self.moments(phase).memories
        if tiling is None:
            return np.ones((len(memories), 1)), np.zeros(1, np.int64)
        names = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in memories))}
        share = np.ones((len(names), 1))
        kinds = np.zeros(1, np.int64)
        for axis in tiling.tiled:
            sizes, lengths = tiling.spans[axis].held, tiling.lines[axis].sizes
            full = np.ones(tiling.spans[axis].count)
            tracks = [sizes[name].sizes / max(1, lengths[name]) if name in sizes else full for name in names]
            rows = np.stack(tracks) if tracks else full[None]
            known: dict[bytes, int] = {}  # where tiles of each kind are first met
            first = np.array([known.setdefault(column.tobytes(), at) for at, column in enumerate(rows.T.copy())])
            unique, which = np.unique(first, return_inverse=True)
            share = (share[:, :, None] * rows[:, None, unique]).reshape(len(share), -1)
            kinds = (kinds[:, None] * len(unique) + which[None, :]).reshape(-1)
        return share[[names[name] for name, _ in memories]], kinds

    def _fetched(self, phase: TilePhase, names: Sequence[str]) -> float:
        """What a tile has here of values that are kept elsewhere, at most."""
        total, tiling = 0.0, phase.forward
        if tiling is None:
            return total
        for name in names:
            if self.graph.value[name].kind.computed and len(self.graph.shape(name)) > 2:
                tracks = ((tiling.spans[a].held.get(name), tiling.lines[a].sizes.get(name, 1)) for a in tiling.tiled)
                shares = (int(track.sizes.max()) / max(1, n) for track, n in tracks if track is not None)
                total += self.graph.type(name).bytes * prod(shares)
        return total

    def _halos(self, phase: TilePhase) -> float:
        """All that tiles hand on: what they hold beyond what they make."""
        tiling = phase.forward
        if tiling is None or tiling.mode != "stream":
            return 0.0
        names = [node.outputs[0] for node in tiling.nodes]
        beyond = (share_of(tiling, name, "held") - share_of(tiling, name, "own") for name in names)
        return sum(self.graph.type(name).bytes * share for name, share in zip(names, beyond, strict=True))
