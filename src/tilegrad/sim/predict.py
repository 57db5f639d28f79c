"""Bytes over time: walk a schedule's steps with the footprints of its islands.

Everything that outlives a step is entered when it is made and struck out when it goes, in the order in which the
executor makes and frees it. What an island needs while it runs is its footprint's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from ..bounds import needed_gradients
from ..region import Box
from ..schedule import (
    Backward,
    Exchange,
    Finish,
    Free,
    Island,
    Move,
    Run,
    Schedule,
    ScheduleStep,
    Storage,
    Sum,
    Turn,
)  # fmt: skip
from ..schedule.whole import NodeIslands, roots_of
from .footprint import Footprint, Footprints, GraphFootprints, RunKind, largest_node
from .ledger import Gradients, Tally
from .memory import Alive, Memory, Prediction
from .offsets import Lifetime
from .rehearsal import Rehearsals, elsewhere_bytes, parameters

HALOS = "(halos and their gradients)"


def predict(
    schedule: Schedule, graded: Sequence[str] | None = None, footprints: Footprints | None = None
) -> Prediction:
    """Peak bytes of a schedule. `graded`: outside values that need a gradient."""
    names = parameters(schedule.graph) if graded is None else list(graded)
    if footprints is None:
        explicit = isinstance(schedule.islands, NodeIslands)
        footprints = (
            GraphFootprints(schedule.graph) if explicit else Rehearsals(schedule, names if schedule.trains else ())
        )
    walk = _Walk(schedule, footprints, names if schedule.trains else ())
    for at, step in enumerate(schedule.steps):
        walk.step(at, step)
    return walk.result()


def measure_memory(schedule: Schedule) -> Memory:
    found = predict(schedule).memory
    assert found is not None
    return found


class _Walk:
    def __init__(self, schedule: Schedule, footprints: Footprints, graded: Collection[str]):
        self.schedule, self.graph, self.footprints = schedule, schedule.graph, footprints
        self.near = schedule.storage == Storage.DEVICE
        self.explicit = isinstance(footprints, GraphFootprints)
        self.needs = needed_gradients(self.graph, graded) if graded else frozenset[str]()
        self.full = {v.name: schedule.region(v.name) for v in self.graph.values}
        self.roots = roots_of(self.graph)
        self.values: set[str] = set()
        self.born: dict[str, int] = {}
        self.lifetimes: list[Lifetime] = []
        self.guests: dict[str, str] = {}  # values in another's memory
        self.held: dict[str, int] = {}  # by records: how many hold a value
        self.sizes = Tally()  # of values that are there or held
        self.saved = Tally()
        self.holds: dict[str, frozenset[str]] = {}
        self.back: dict[str, RunKind] = {}
        self.grads = Gradients(self.graph)
        self.halos = Tally()
        self.halo_most = 0
        self.stays = 0
        self.away = Tally()
        self.peak = self.total = 0
        self.worst = ""
        self.worst_island: Island | None = None
        self.most: tuple[Any, ...] = ({}, {}, {}, {}, 0, "", 0)  # what was there at the peak
        self.device: list[int] = []
        self.running: list[int] = []
        self.host: list[int] = []
        self.labels: list[str] = []
        self.again = False
        self._makes: dict[int, tuple[str, ...]] = {}
        self.last_run = {step.island: at for at, step in enumerate(schedule.steps) if isinstance(step, Run)}
        ends: dict[str, int] = {}
        for at, step in enumerate(schedule.steps):
            if isinstance(step, Backward):
                for name in self._made(schedule.islands[step.island]):
                    ends[name] = at
        self.ends: dict[int, list[str]] = {}
        for name, at in ends.items():
            self.ends.setdefault(at, []).append(name)

    def _made(self, island: Island) -> tuple[str, ...]:
        """The same for all islands of a kind."""
        key = id(island.kind)
        if key not in self._makes:
            self._makes[key] = (*island.stores, *(self.graph.node[name].outputs[0] for name in island.folds))
        return self._makes[key]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, at: int, step: ScheduleStep) -> None:
        """Each leaves one mark."""
        self.at = at
        match step:
            case Run(island=name, keep=keep):
                self._run(at, self.schedule.islands[name], keep)
            case Backward(island=name):
                self._backward(at, self.schedule.islands[name])
            case Finish(node=name):
                self._have(self.graph.node[name].outputs[0])
                self._mark(0, f"the result of {name}", None)
            case Turn():
                self.again = True
                self._turn()
                self._mark(0, "the caller's gradients", None)
            case Exchange():
                self._exchange(step)
            case Sum(value=name):
                self._mark(self._bytes(name), f"the sum of {name}", None)
            case Free(value=value):
                self._mark(0, f"free {value}", None)
                self._free(value)
            case Move(value=value, store=Storage.DEVICE):
                self._fetch(value)
            case Move(value=value):
                self.away[value] = self._here(value)
                self._mark(0, f"move {value}", None)

    def _turn(self) -> None:
        """The caller brings the gradients of the outputs, and holds them to the end."""
        for name in dict.fromkeys(self.graph.outputs):
            times, size = self.graph.outputs.count(name), self._bytes(name)
            if name in self.needs:
                self.stays += times * size
                self.grads.put(name, f"caller's {name}", size if times > 1 else 0)
                if times == 1:
                    self.grads.lent.add(name)

    def _run(self, at: int, island: Island, keep: bool) -> None:
        absent = self.schedule.written[at].difference(self.values)
        if self.again and self.schedule.is_for_backward(at) and not self._asked(island):
            self._mark(0, f"no gradient for {island.name}", None)
            return
        last = self.last_run[island.name] == at
        summed = frozenset[str]()
        if keep:  # before the turn its backward comes later
            summed = self._summed(island) if self.again else self._summed_later(island)
        if last:
            self._take_halos(island)
        how = RunKind(keep, self.again, last, absent, summed)
        found = self.footprints.of(island, how, self._now)
        if self.explicit:
            self._run_explicit(found, island)
            return
        self._mark(found.run_peak, f"{'again' if self.again else 'forward'} {island.name}", island)
        for name, size in found.values.items():
            self._have(name, size)
        for name in absent:
            self.values.add(name)
            owner = self.roots.root[found.lies_in[name]] if name in found.lies_in else name
            if owner not in (name, self.roots.root[name]):
                self._hold(owner)
                self.guests[name] = owner
        if not self.again:
            for value, _, peer, size in island.gives:
                self.halos[value, island.name, peer] = size * self.graph.type(value).item_bytes
            self.halo_most = max(self.halo_most, self.halos.total)
        self.stays += found.stays
        if keep:
            self.saved[island.name], self.holds[island.name], self.back[island.name] = found.saved, found.holds, how
            for name in found.holds:
                self._hold(name)

    def _run_explicit(self, found: Footprint, island: Island) -> None:
        """A node of a training graph: all that it needs are values."""
        twice = {name: size for name, size in found.values.items() if name in self.sizes}  # made while it is there
        for name, size in found.values.items():
            if name not in twice:
                self._have(name, size)
        self._mark(sum(twice.values()), island.name, island)
        for name, size in twice.items():
            self._have(name, size)

    def _asked(self, island: Island) -> bool:
        if not self.grads.where.keys().isdisjoint(self._made(island)):
            return True
        return any(("gradient", value, island.name, peer) in self.halos for value, _, peer, _ in island.gives)

    def _exchange(self, step: Exchange) -> None:
        for strip in step.takes:
            if not step.gradient:
                self._have(strip.value)
            elif strip.value in self.needs and strip.value not in self.grads:
                self.grads.put(strip.value, (strip.value, self.at), self._bytes(strip.value))
        sent = sum(self._bytes(strip.value, strip.box) for strip in (*step.gives, *step.takes))
        self._mark(sent, f"{'gradients of halos' if step.gradient else 'halos'} of {', '.join(step.values)}", None)

    def _summed_later(self, island: Island) -> frozenset[str]:
        """Of what an island reads, what will have a gradient when its backward runs: others that read it come later."""
        return frozenset(name for name in island.reads(self.graph) if self._readers_after(island.name, name))

    def _readers_after(self, island: str, name: str) -> bool:
        return self._last_reader.get(name, island) != island

    @cached_property
    def _last_reader(self) -> dict[str, str]:
        """The island whose backward is the first to give a value a gradient."""
        found: dict[str, str] = {}
        met: set[int] = set()  # kinds: all of one read the same
        for step in self.schedule.steps:
            if isinstance(step, Backward) and id(island := self.schedule.islands[step.island].kind) not in met:
                met.add(id(island))
                for name in island.reads(self.graph):
                    found.setdefault(name, step.island)
        return found

    def _backward(self, at: int, island: Island) -> None:
        how = self.back.pop(island.name, None)
        found = self._footprint(island, how) if how is not None else None
        self._mark(found.back_peak if found is not None else 0, f"backward of {island.name}", island)
        if found is not None:
            self._end_record(island)
            for value, _, peer, _ in island.gives:
                self.halos.drop(("gradient", value, island.name, peer))
            for value, _, peer, size in island.receives:
                if value in self.needs:
                    self.halos["gradient", value, peer, island.name] = size * self.graph.type(value).item_bytes
            for name, (owner, size) in found.gradients.items():
                self.grads.add(name, owner, size, self.at)
        for name in self.ends.get(at, ()):
            self.grads.drop(name)

    def _footprint(self, island: Island, how: RunKind) -> Footprint:
        """Of a backward, now that it is known what lies where."""
        summed = self._summed(island)
        how = how._replace(summed=summed, lent=summed & self.grads.lent)
        return self.footprints.backward(island, how, self._now)

    def _summed(self, island: Island) -> frozenset[str]:
        """Of what an island reads, what has a gradient."""
        return frozenset(filter(self.grads.where.__contains__, island.reads(self.graph)))

    def _end_record(self, island: Island) -> None:
        self.saved.drop(island.name)
        for name in self.holds.pop(island.name, ()):
            self._release(name)

    def _hold(self, name: str) -> None:
        self.held[name] = self.held.get(name, 0) + 1

    def _release(self, name: str) -> None:
        self.held[name] -= 1
        if not self.held[name]:
            del self.held[name]
            if name not in self.values:
                self._die(name)

    def _take_halos(self, island: Island) -> None:
        for value, _, peer, _ in island.receives:
            self.halos.drop((value, peer, island.name))

    def _free(self, value: str) -> None:
        if value not in self.graph.value and value.removesuffix(".saved") in self.saved:
            name = value.removesuffix(".saved")
            if value in self.away:
                self.saved[name] = 0
            else:
                self._end_record(self.schedule.islands[name])
                self.back.pop(name, None)
        elif value not in self.graph.value:
            self.grads.drop(value.removesuffix(".grad"))
        elif value not in self.graph.outputs:
            for name in [n for n in self.values if self.roots.root[n] == value]:
                self.values.discard(name)
                if name not in self.held:
                    self._die(name)
                if name in self.guests:
                    self._release(self.guests.pop(name))

    def _here(self, value: str) -> int:
        if value in self.graph.value:
            return self.sizes.get(value, 0)
        if value.endswith(".saved"):
            return self.saved.get(value.removesuffix(".saved"), 0)
        return self.grads.bytes(value.removesuffix(".grad"))

    def _fetch(self, value: str) -> None:
        size = self.away[value]
        if value in self.graph.value:
            self._have(value, size)
        elif value.endswith(".saved"):
            self.saved[value.removesuffix(".saved")] = size
        else:
            name = value.removesuffix(".grad")
            self.grads.put(name, (name, self.at), size)
        self._mark(0, f"fetch {value}", None)
        self.away.drop(value)  # the copy is given up

    # -- what is there -------------------------------------------------------------------------------------------------

    def _have(self, name: str, size: int | None = None) -> None:
        if name not in self.values or size is not None:
            if name in self.held and name not in self.values:
                self._leave_to_records(name)
            elif name in self.sizes:  # made once more while it is there
                self._die(name, self.at + 1)
            self.values.add(name)
            self.sizes[name] = self._stored_bytes(name) if size is None else size
            self.born[name] = self.at

    def _leave_to_records(self, name: str) -> None:
        """Made once more while records hold the memory that it had: that is theirs alone from now on."""
        theirs = f"{name} before {self.at}"
        self.sizes[theirs], self.born[theirs] = self.sizes[name], self.born[name]
        self.held[theirs] = self.held.pop(name)
        self.sizes.drop(name)
        for island, names in self.holds.items():
            if name in names:
                self.holds[island] = names - {name} | {theirs}

    def _die(self, name: str, at: int | None = None) -> None:
        if name in self.sizes:
            self.lifetimes.append(Lifetime(name, self.sizes[name], self.born[name], self.at if at is None else at))
            self.sizes.drop(name)

    def _stored_bytes(self, name: str) -> int:
        """Device bytes of a value that is stored whole."""
        if self.graph.value[name].away:
            return 0
        here = self.near or name in self.graph.outputs or len(self.graph.shape(name)) <= 2
        return self._bytes(name) if here else 0

    def _bytes(self, name: str, box: Box | None = None) -> int:
        type_ = self.graph.type(name)
        return (self.full[name] if box is None else box).volume * type_.item_bytes

    # -- the curve -----------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        halos = self.halos.total if self.near else 0
        return self.sizes.total + self.saved.total + self.stays + halos + self.grads.memories.total

    def _mark(self, more: int, label: str, island: Island | None) -> None:
        halos = self.halos.total if self.near else 0
        weights = self.grads.weights.total
        now = self._now + more
        self.device.append(now)
        self.running.append(more + self.saved.get(island.name, 0) if island is not None else 0)
        self.host.append(self.away.total + self.halos.total - halos)
        self.labels.append(label)
        if now > self.total:
            self.total, grads = now, self.grads
            self.most = dict(self.sizes), dict(grads.where), dict(grads.memories), dict(self.saved), more, label, halos
        if now - weights > self.peak:
            self.peak, self.worst, self.worst_island = now - weights, label, island

    def _composition(self) -> list[Alive]:
        sizes, where, memories, saved, more, label, halos = self.most
        source = self.graph.producer
        found = [Alive(str(n), size, source[n].describe() if n in source else "") for n, size in sizes.items()]
        found += [Alive(f"{n}.grad", memories[memory], "gradient") for n, memory in where.items()]
        found += [Alive(f"{n}.saved", size, "kept for backward") for n, size in saved.items()]
        found += [Alive("(what runs)", more, label), Alive(HALOS, halos, "tiles before and after")]
        return [item for item in found if item.bytes]

    def result(self) -> Prediction:
        outside = self.roots.resident_bytes - (0 if self.explicit else elsewhere_bytes(self.schedule))
        if self.schedule.seat is not None:
            names = [v for v in self.graph.values if not v.kind.computed]
            outside = sum(self.schedule.owned(v.name).volume * v.type.item_bytes for v in names)
        outside += int(self.schedule.predicted.get("early_bytes", 0))
        for name in list(self.sizes):
            self._die(str(name), len(self.device))
        memory = Memory(
            device=tuple(outside + count for count in self.device),
            host=tuple(self.host),
            peak_bytes=self.total + outside,
            peak_step=max(range(len(self.device)), key=self.device.__getitem__, default=0),
            resident_bytes=outside,
            host_peak_bytes=max(self.host, default=0),
            alive=tuple(sorted(self._composition(), key=lambda item: -item.bytes)),
            lifetimes=tuple(self.lifetimes) if self.explicit else (),  # every piece of memory is a value
            labels=() if self.explicit else tuple(self.labels),
        )
        node = largest_node(self.graph, self.worst_island) if self.worst_island is not None else ""
        figures = self.peak, self.total + outside, self.halo_most
        return Prediction(*figures, self.worst, node, memory, tuple(self.running))
