"""What lies between phases: which stored values are kept for backward, which are made again, which are not stored.

A statistic must be whole before anybody goes on, so a convolution's output between two of them is stored. It can be
*kept* until its backward. It can be made *again*: it goes after its last reader forward, and its phase runs once more
before a backward reads it. What that phase reads must be there, or be made again too: what is kept ends the chain. What
was made for the chain alone stays for its own backward, or is fleeting and made a third time. Or it is *fluid*: the
phases that read it run its convolution in their own tiles, forward and backward, and neither it nor its gradient is
ever whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...ir import Graph
from ...ops import Reduction, find
from ...schedule import KEPT, Again, TilePhase
from ...schedule.schedule import BackwardOrder, backward_uses, forward_uses, places, read_uses
from ...sim.clock import Spent

Sizes = NDArray[np.float64]
Lives = tuple[NDArray[np.int64], NDArray[np.int64], Sizes]  # from, to, bytes
SEGMENTS = (1, 2, 3, 4, 6, 8, 12)  # into which what is made again is divided by what is kept
STARTS = 16  # phases that are tried as the first from which on everything is kept
LOOKS = 16  # at what might as well be kept
MOST_REPLAYS = 6  # times all phases: what may run once more


@dataclass(frozen=True)
class Between:
    """What lies between phases beside the usual: `stored` though it is cheap, `fluid` though it is dear."""

    stored: frozenset[str] = frozenset()
    fluid: frozenset[str] = frozenset()


USUAL = Between()


@dataclass(frozen=True)
class HeldBytes:
    """Bytes besides tiles and halos while each phase runs, forward and backward, and while some run once more, if
    `again` is made again: which phases those are, one after another, and bytes of each."""

    again: Again
    before: Sizes = field(repr=False)
    after: Sizes = field(repr=False)
    replays: NDArray[np.int64] = field(repr=False)
    replayed: Sizes = field(repr=False)


@dataclass(frozen=True)
class Running:
    """What tiles of each phase need while they run, halos included: forward, backward, and once more; and the seconds
    of that."""

    forward: Sizes
    backward: Sizes
    replay: Sizes
    replay_s: Sizes  # of host and device

    def peak(self, held: HeldBytes) -> float:
        more = held.replayed + self.replay[held.replays]
        most = (held.before + self.forward, held.after + self.backward, more)
        return max(float(each.max(initial=0.0)) for each in most)

    def seconds(self, held: HeldBytes) -> float:
        return sum(self.cost(held))

    def cost(self, held: HeldBytes) -> Spent:
        host, device = self.replay_s[held.replays].sum(0)
        return Spent(float(host), float(device))


class Stock:
    """What phases store for one another. `needs`: the values that get a gradient; `graded`: those from outside."""

    def __init__(
        self,
        graph: Graph,
        phases: Sequence[TilePhase],
        needs: Collection[str],
        graded: Collection[str],
        *,
        train: bool,
        near: bool,
    ):
        self.graph, self.count, self.train = graph, len(phases), train
        self.outside = float(graph.outside_bytes(whole={name for phase in phases for name in phase.whole}))
        handed = {*graph.outputs, *(new for _, new in graph.updates)}
        first = {name: at for at, phase in reversed([*enumerate(phases)]) for name in phase.made}
        reader = {name: at for at, phase in enumerate(phases) for name in (*phase.boxed, *phase.whole)}
        forward = {name: at for at, phase in enumerate(phases) for name in forward_uses(phase)}
        uses = [backward_uses(phase, frozenset()) if train else set[str]() for phase in phases]
        backward = {name: at for at, names in reversed([*enumerate(uses)]) for name in names}
        names = [n for n in first if not graph.value[n].away and (near or n in handed or len(graph.shape(n)) <= 2)]
        self.names, self.place = names, {name: at for at, name in enumerate(names)}
        self.size = np.array([graph.type(n).bytes for n in names], float)
        self.first = np.array([first[n] for n in names], int)
        self.forward = np.array([forward[n] for n in names], int)
        self.backward = np.array([-2 if n in handed else backward.get(n, -1) for n in names], int)
        graded_names = [n for n in names if n in needs]
        self.grad_size = np.array([graph.type(n).bytes for n in graded_names], float)
        self.grad_end = np.array([first[n] for n in graded_names], int)
        readers = [self.count if n in graph.outputs else reader.get(n, first[n]) for n in graded_names]
        self.grad_begin = np.array(readers, int)
        self.weight_size = np.array([graph.type(n).bytes for n in graded], float)
        self.weight_begin = np.array([reader.get(n, self.count - 1) for n in graded], int)
        tiled = {n for phase in phases if phase.tiled for n in phase.stores}
        self.choices = [
            n for n in names if n in tiled and n not in handed and n in backward and len(graph.shape(n)) > 2
        ]
        chosen = set(self.choices)
        self.stores = [tuple(n for n in phase.stores if n in chosen) for phase in phases]
        self.reads = [(read_uses(p) & chosen, back & chosen) for p, back in zip(phases, uses, strict=True)]
        self._order = BackwardOrder(self.stores, self.reads)
        self._row = [self.place[name] for name in self._order.names]

    def held(self, again: Again = KEPT) -> HeldBytes:
        return self._held(again, self._order(again) if self.train else [])

    def bounded(self, again: Again) -> HeldBytes | None:
        """None where phases would run once more far too often."""
        most = (1 + MOST_REPLAYS) * self.count
        order = self._order(again, most)
        return self._held(again, order) if len(order) <= most else None

    def _held(self, again: Again, order: Sequence[tuple[int, int]]) -> HeldBytes:
        count = self.count
        end = count + len(order)
        back = np.full(count + 1, count)
        back[[at for at, made in order if not made]] = [t for t, (_, made) in enumerate(order, count) if not made]
        last = np.where(self.backward >= 0, back[self.backward], np.where(self.backward == -2, end, self.forward))
        lives = [(self.first, last, self.size), self._gone(order, again)]
        if self.train:
            lives.append((back[self.grad_begin], back[self.grad_end], self.grad_size))
            lives.append((back[self.weight_begin], np.full(len(self.weight_size), end), self.weight_size))
        change = np.zeros(end + 2)
        for begin, stop, size in lives:
            np.add.at(change, begin, size)
            np.add.at(change, np.minimum(stop, end) + 1, -size)
        there = np.cumsum(change) + self.outside
        after = there[back[:count]] if self.train else np.full(count, self.outside)
        replays = [(at, t) for t, (at, made) in enumerate(order, count) if made]
        phases, times = np.array(replays, int).reshape(-1, 2).T
        return HeldBytes(again, there[:count], after, phases, there[times])

    def _gone(self, order: Sequence[tuple[int, int]], again: Again) -> Lives:
        """When values are not there that are made again."""
        row, reads, remade = self._row, self._order.reads, self._order.bits(again.values)
        last = {bit: int(self.forward[row[bit]]) for bit in places(remade)}
        found: list[tuple[int, int, float]] = []
        for time, (at, made) in enumerate(order, self.count) if remade else ():
            found += [(last[bit] + 1, time - 1, -self.size[row[bit]]) for bit in places(made)]
            if again.fleeting:  # else none is made twice
                last |= dict.fromkeys(places((reads[at][0 if made else 1] | made) & remade), time)
        begin, stop, size = np.array(found, float).reshape(-1, 3).T
        return begin.astype(int), stop.astype(int), size

    @cached_property
    def floor(self) -> float:
        """Whatever is made again: a phase's backward needs what it reads, and the gradients of that."""
        if not self.choices or not self.train:
            held = self.held()
            return max(float(held.before.max(initial=0.0)), float(held.after.max(initial=0.0)))
        held, size = self.held(), {name: self.graph.type(name).bytes for name in self.choices}
        idle = [sum(size[n] for n in self._kept_at(at) - self.reads[at][1]) for at in range(self.count)]
        return float((held.after - np.array(idle, float)).max(initial=0.0))

    def _kept_at(self, at: int) -> set[str]:
        """Choices that are there, if all are kept, at a phase's backward."""
        place = self.place
        return {n for n in self.choices if self.backward[place[n]] <= at}

    def without_need(self, again: Again, running: Running, most: float, steps: int) -> Again:
        """Of what is made again, what might as well be kept in so many bytes is kept: the dearest first, in so many
        steps."""
        names = sorted(again.values, key=lambda n: (-running.replay_s[self.first[self.place[n]]].sum(), n))
        size = -(-len(names) // steps)
        for at in range(0, len(names), size or 1):
            less = replace(again, values=again.values.difference(names[at : at + size]))
            held = self.bounded(less)
            if held is not None and running.peak(held) <= most:
                again = less
        return again

    def proposed(self) -> Iterator[frozenset[str]]:
        """The last ones kept, for they are needed first; the others in segments, between which they are kept."""
        yield frozenset()
        made = sorted(self.choices, key=lambda n: int(self.first[self.place[n]]))
        starts = sorted({int(self.first[self.place[n]]) for n in made})
        step = -(-len(starts) // STARTS)
        for start in (*starts[::step], self.count):
            early = [n for n in made if self.first[self.place[n]] < start]
            total = sum(self.size[self.place[n]] for n in early)
            for segments in SEGMENTS:
                yield frozenset(self._inside(early, total / segments))

    def _inside(self, names: Sequence[str], most: float) -> Iterator[str]:
        """Of these, those that do not cross from one segment of so many bytes to the next."""
        ends, held = [], 0.0
        for name in names:
            held += self.size[self.place[name]]
            if held > most:
                ends.append(int(self.first[self.place[name]]))
                held = 0.0
        for name in names:
            made, last = self.first[self.place[name]], self.forward[self.place[name]]
            if not any(made <= end < last for end in ends):
                yield name


class Ladder:
    """Choices of what is made again, from none at all to the least memory: more time, less memory. `running`: of such
    tiles as may come, about."""

    def __init__(self, stock: Stock, running: Running):
        self.stock, self.running = stock, running
        self._refined: dict[Again, HeldBytes] = {}

    def within(self, running: Running, limits: Sequence[float]) -> list[HeldBytes]:
        """The first to fit each limit; the least where none does."""
        rungs = self._lasting
        if running.peak(rungs[-1]) > min(limits):
            rungs = self._every
        peaks = [running.peak(held) for held in rungs]
        least = min(range(len(peaks)), key=peaks.__getitem__)
        chosen = {next((at for at, peak in enumerate(peaks) if peak <= limit), least) for limit in limits}
        return [self._without_need(rungs[at]) for at in sorted(chosen)]

    def _without_need(self, held: HeldBytes) -> HeldBytes:
        if held.again not in self._refined:
            again = self.stock.without_need(held.again, self.running, self.running.peak(held), LOOKS)
            self._refined[held.again] = self.stock.held(again)
        return self._refined[held.again]

    @cached_property
    def _lasting(self) -> list[HeldBytes]:
        return self._front(self._held(fleeting=False))

    @cached_property
    def _every(self) -> list[HeldBytes]:
        """What is made for others to be made, made a third time: only where nothing else fits."""
        return self._front([*self._lasting, *self._held(fleeting=True)])

    def _held(self, *, fleeting: bool) -> list[HeldBytes]:
        found = (self.stock.bounded(Again(v, fleeting)) for v in dict.fromkeys(self.stock.proposed()))
        return [held for held in found if held is not None]

    def _front(self, found: Collection[HeldBytes]) -> list[HeldBytes]:
        """Those that need less than all that are faster."""
        least, front = inf, []
        figures = [(self.running.seconds(held), self.running.peak(held), at) for at, held in enumerate(found)]
        held = list(found)
        for _, peak, at in sorted(figures):
            if peak < least:
                least = peak
                front.append(held[at])
        return front


def levels(graph: Graph, stock: Stock) -> list[Between]:
    """From storing all that is dear to storing inputs of blocks alone: large values first, block by block."""
    place = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs}
    inputs = block_inputs(graph)
    borders = [place[name] for name in inputs]
    groups: dict[tuple[int, int], list[str]] = {}
    for name in stock.choices:
        if name not in inputs:
            groups.setdefault((-graph.type(name).bytes, bisect_left(borders, place[name])), []).append(name)
    found = [USUAL]
    for (_, block), names in sorted(groups.items()):
        ends = inputs[max(0, block - 1) : block + 1]
        found.append(Between(found[-1].stored.union(ends), found[-1].fluid.union(names)))
    return found


def block_inputs(graph: Graph) -> list[str]:
    """Values of the image that several nodes read, and beside which no other lives when they are made."""
    place = {node.name: at for at, node in enumerate(graph.nodes)}
    wide = [n.outputs[0] for n in graph.nodes if len(graph.shape(n.outputs[0])) > 2]
    readers = {v: [n for n in graph.consumers[v] if not isinstance(find(n), Reduction)] for v in wide}
    last = {v: max((place[n.name] for n in readers[v]), default=-1) for v in wide}
    found, reach = [], -1  # the last node that reads any of those before
    for name in wide:
        if reach <= place[graph.producer[name].name] and len(readers[name]) > 1:
            found.append(name)
        reach = max(reach, last[name])
    return found
