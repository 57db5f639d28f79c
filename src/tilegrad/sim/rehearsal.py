"""Footprints found by running an island, autograd included, on tensors without data: once for all that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..bounds import needed_gradients
from ..execution import Executor, Pass
from ..execution.buffers import Buffers
from ..execution.field import Field
from ..execution.record import Record
from ..execution.saved import memory_of
from ..execution.shelf import Shelf
from ..execution.stores import Near, Slot
from ..ir import Graph, Kind
from ..ops import Place
from ..progress import tick
from ..region import Box
from ..schedule import Compute, Fold, Island, Islands, IslandStep, Join, Load, Run, Schedule, Storage, Store
from .footprint import FRESH, Footprint, RunKind
from .peak import PeakBytes

Strides = tuple[int, ...]


class Rehearsals:
    """The footprints of a schedule's islands. `graded`: outside values that need a gradient; `device`: the kind of
    device that it will run on."""

    def __init__(self, schedule: Schedule, graded: Collection[str], device: str = "cpu"):
        self.stage = _Stage(schedule, set(graded), device)
        self._known: dict[Hashable, Footprint] = {}

    def of(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        key = (shape_of(island), how)
        if key not in self._known:
            self._known[key] = self.stage.play(island.kind, how)
        return self._known[key]

    def backward(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        """Once it is known how the gradients that come to it lie in memory: what is not contiguous may be copied."""
        laid = self.stage.laid_out(island)
        if not laid and not how.lent:
            return self.of(island, how)
        key = (shape_of(island), how, laid)
        if key not in self._known:
            self._known[key] = self.stage.play(island.kind, how, dict(laid))
        return self._known[key]


class _Stage(Pass):
    """A pass that has whatever an island asks for."""

    def __init__(self, schedule: Schedule, graded: set[str], device: str):
        graph = schedule.graph
        tensors = {name: _blank(graph, name, schedule.owned(name).shape) for name in graph.outside}
        for name in graded:
            tensors[name].requires_grad_(tensors[name].is_floating_point())
        super().__init__(Executor(replace(schedule, steps=()), device), tensors, torch.device("meta"))
        self.needs = needed_gradients(graph, graded) if schedule.trains else frozenset()
        self.executor.readers = _readers(schedule)
        self.halos = self.given = _HaloShelf(schedule.storage)
        self.halo_grads = _HaloShelf(schedule.storage)
        self.strides: dict[str, Strides] = {}  # of values that an island made whole: later ones read them so
        self.grad_strides: dict[str, Strides] = {}  # of gradients that are not contiguous
        self.laid: Mapping[str, Strides] = {}
        self.partials: dict[tuple[str, tuple[int, ...]], tuple[Tensor, ...]] = {}  # of reductions, by box

    def laid_out(self, island: Island) -> tuple[tuple[str, Strides], ...]:
        """Of what it makes, whose gradients are not contiguous."""
        found = ((name, self.grad_strides.get(name)) for name in self.executor.made_by(island))
        return tuple((name, strides) for name, strides in found if strides is not None)

    def play(self, island: Island, how: RunKind, laid: Mapping[str, Strides] | None = None) -> Footprint:
        tick()
        self._clear()
        self.laid = laid or {}
        self.again = how.again
        with PeakBytes("meta") as peak, torch.no_grad():
            self._prepare(island, how)
            before = {name: _memory(field) for name, field in self.values.items()}
            base = peak.highest = peak.now
            record = Record(self, island, graded=how.keep, last=how.last, writes=self._writes(island, how))
            record.run()
            run_peak = peak.highest - base
            self.given.drop()
            stays = sum(t.numel() * t.element_size() for t in self.buffers.remembered.values())
            values = self._made(island, before)
            self.strides |= {name: self.values[name]._open().stride() for name in island.stores if name in self.values}
            saved = peak.now - base - sum(values.values()) - stays
            lies_in = self._lies_in(island, before)
            if not how.keep:
                return Footprint(run_peak, values, lies_in, stays=2 * stays)
            holds = self._held(list(self.values), peak)
            for name in island.reads_back(self.graph):
                if name not in self.values and name not in self.tensors:
                    self._have(name)
            begin = peak.highest = peak.now
            record.backward()
            back_peak = peak.highest - begin
            gradients = self._gradients(island)
            self._note_strides(island)
        return Footprint(run_peak, values, lies_in, saved, holds, 2 * stays, back_peak, gradients)

    def _clear(self) -> None:
        for held in (self.values, self.grads, self.leaves, self.sums, self.totals, self.known, self.records):
            held.clear()
        self.gone = set[str]()
        self.halos.items.clear()
        self.halo_grads.items.clear()
        self.buffers = Buffers(self.tensors)

    def _prepare(self, island: Island, how: RunKind) -> None:
        """What is there before the island runs, and what will be there before its backward."""
        for name in island.reads(self.graph):
            if name not in self.tensors or self.executor.region[name] != self.extent(name):
                self._have(name)
        for step in island.steps:
            match step:
                case Join(value=value, receives=receives, gives=gives):
                    for halo in receives:
                        self.halos.items[value, halo.peer, island.name] = self._strip(value, halo.box)
                    for halo in gives:
                        self.halo_grads.items[value, island.name, halo.peer] = self._strip(value, halo.box)
                case Store(value=value):
                    if value not in how.absent:
                        self._have(value)
                    if how.keep and value in self.needs:
                        self.grads[value] = self._there(value, self.laid.get(value))
                case Fold(node=name):
                    self.totals[name] = self._total(name, step.box)
                    result = self.graph.node[name].outputs[0]
                    if how.keep and result in self.needs:
                        self.grads[result] = self._there(result)
        if how.keep:
            self._prepare_gradients(island, how)

    def _total(self, name: str, box: Box) -> tuple[Tensor, ...]:
        """What a reduction has from other tiles."""
        key = name, box.shape
        if key not in self.partials:
            call, op = self.executor.calls[name], self.executor.reduction(name)
            source, result = call.node.inputs[0].value, call.node.outputs[0]
            others = zip(call.node.reads[1:], op.beside(call, box), strict=True)
            beside = [_blank(self.graph, other, part.shape) for other, part in others]
            place = Place(self.extent(result), (box,))
            self.partials[key] = op.partial(call, _blank(self.graph, source, box.shape), place, *beside)
        return tuple(torch.empty_like(part) for part in self.partials[key])

    def _prepare_gradients(self, island: Island, how: RunKind) -> None:
        for name in island.reads(self.graph):
            if name not in self.needs or name not in how.summed:
                continue
            if name in island.whole and name in self.tensors:
                self.leaf(name).grad = torch.empty_like(self.leaf(name))
            else:
                self.grads[name] = self._there(name)
                self.grads[name]._lent = name in how.lent

    def _field(self, name: str) -> Field:
        return Field(self.executor.region[name], Storage.DEVICE)

    def _storage(self, name: str) -> str:
        value = self.graph.value[name]
        return Storage.DISK if value.away and value.kind.computed else super()._storage(name)

    def read(self, name: str, box: Box) -> Tensor:
        found = super().read(name, box)
        new = name in self.tensors and self.graph.value[name].away and box != self.extent(name)
        return torch.empty_like(found) if new else found

    def write(self, name: str, box: Box, tile: Tensor) -> None:
        if self._storage(name) == Storage.DEVICE:  # else it goes elsewhere
            super().write(name, box, tile)

    def add_gradient(self, name: str, box: Box, grad: Tensor, *, shared: bool = False) -> None:
        if name not in self.tensors and self._storage(name) != Storage.DEVICE:
            self.gone.add(name)  # it goes elsewhere
        else:
            super().add_gradient(name, box, grad, shared=shared)

    def _have(self, name: str) -> None:
        self.values[name] = self._there(name, self.strides.get(name))

    def _there(self, name: str, strides: Strides | None = None) -> Field:
        region = self.executor.region[name]
        found = Field(region, Storage.DEVICE)
        blank = _blank(self.graph, name, region.shape)
        if strides is not None:
            blank = torch.empty_strided(blank.shape, strides, dtype=blank.dtype, device="meta")
        found.write(region, blank)
        if self._storage(name) != Storage.DEVICE:
            found._slot = _Far(found._open())
        return found

    def _strip(self, value: str, box: Box) -> tuple[Slot, torch.device]:
        return Near(_blank(self.graph, value, box.shape)), self.device

    def _writes(self, island: Island, how: RunKind) -> frozenset[str]:
        return how.absent if how.again else frozenset(island.stores)

    def _made(self, island: Island, before: dict[str, int]) -> dict[str, int]:
        """Bytes of what the run itself made whole."""
        found, known = dict[str, int](), set(before.values()) | {memory_of(t) for t in self.tensors.values()}
        for name in island.stores:
            if name in self.values and (memory := _memory(self.values[name])) not in known:
                known.add(memory)
                found[name] = self.values[name]._open().untyped_storage().nbytes()
        return found

    def _lies_in(self, island: Island, before: dict[str, int]) -> dict[str, str]:
        owners = {memory: name for name, memory in before.items()}
        found = {name: owners.get(_memory(self.values[name])) for name in island.stores if name in self.values}
        return {name: owner for name, owner in found.items() if owner is not None and owner != name}

    def _held(self, names: Collection[str], peak: PeakBytes) -> frozenset[str]:
        """Values whose memory the record holds: they are there still when we let go of them."""
        found, groups = set[str](), dict[int, list[str]]()
        for name in names:
            if name not in self.graph.outputs:  # the caller holds it anyway
                groups.setdefault(_memory(self.values[name]), []).append(name)
        for group in groups.values():
            before = peak.now
            for name in group:
                del self.values[name]
            if peak.now == before:
                found.update(name for name in group if self.graph.type(name).size)
        return frozenset(found)

    def _gradients(self, island: Island) -> dict[str, tuple[str, int]]:
        seeds = {_memory(self.grads[n]): n for n in self.executor.made_by(island) if n in self.grads}
        found: dict[str, tuple[str, int]] = dict.fromkeys(sorted(self.gone), (FRESH, 0))
        for name in island.reads(self.graph):
            if name in self.gone:
                continue
            grad = self._whole_gradient(name) if name in self.needs else None
            if grad is not None:
                owner = seeds.setdefault(memory_of(grad), name)
                found[name] = (FRESH if owner == name else owner, self._bytes(name, grad))
        return found

    def _note_strides(self, island: Island) -> None:
        for name in island.reads(self.graph):
            grad = self._whole_gradient(name) if name in self.needs and name not in self.gone else None
            if grad is not None and name not in self.tensors and not grad.is_contiguous():
                self.grad_strides[name] = grad.stride()
            else:
                self.grad_strides.pop(name, None)

    def _whole_gradient(self, name: str) -> Tensor | None:
        self._settle(name)
        return self.grads[name]._open() if name in self.grads else None

    def _bytes(self, name: str, grad: Tensor) -> int:
        away = name not in self.tensors and self._storage(name) != Storage.DEVICE
        return 0 if away else grad.numel() * grad.element_size()


def _memory(field: Field) -> int:
    return memory_of(field._open())


def _readers(schedule: Schedule) -> Counter[str]:
    """How many islands read a value whole; three stand for many."""
    found = Counter(name for phase in schedule.phases for name in phase.whole for _ in phase.tiles()[:3])
    if not isinstance(schedule.islands, Islands):
        numbers = {str(phase.number) for phase in schedule.phases}
        found.update(
            v for name, i in schedule.islands.items() if name.partition(":")[0] not in numbers for v in i.whole
        )
    return found


class _Far(Slot):
    """A tensor elsewhere: what is read is copied."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def open(self) -> Tensor:
        return self.tensor


class _HaloShelf(Shelf):
    """Halos by shape. What is received for the last time is the island's own from then on, and counts."""

    def __init__(self, storage: str):
        super().__init__(Storage.DEVICE)
        self.near = storage == Storage.DEVICE
        self.made: list[Tensor] = []

    def put(self, key: Hashable, tensor: Tensor) -> None:
        if self.near:
            self.made.append(torch.empty_like(tensor))

    def get(self, key: Hashable, *, last: bool) -> Tensor:
        found = self.items[key][0].open()
        return torch.empty_like(found) if last or not self.near else found

    def drop(self) -> None:
        self.made = []


def _blank(graph: Graph, name: str, shape: Sequence[int] | None = None) -> Tensor:
    type_ = graph.type(name)
    size = type_.shape if shape is None else tuple(shape)
    return torch.empty(size, dtype=getattr(torch, type_.dtype), device="meta")


def shape_of(island: Island) -> Hashable:
    """What makes two islands alike: shapes and paddings, not places."""
    kind = island.kind
    found = kind.__dict__.get("_shape")
    if found is None:
        found = kind.__dict__["_shape"] = _Shape((tuple(map(_shape, kind.steps)), island.refers))
    return found


class _Shape(tuple[Hashable, ...]):
    """Hashed once: it is long."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = super().__hash__()
        return found


def _shape(step: IslandStep) -> Hashable:
    match step:
        case Compute(node=node, out=out, reads=reads, answers=answers):
            return node, out.shape, tuple(box.shape for box in reads), answers
        case Join(value=value, held=held, receives=receives, gives=gives):
            return value, held.shape, tuple(h.box.shape for h in receives), tuple(h.box.shape for h in gives)
        case Load(value=value, box=box, share=share):
            return value, box.shape, None if share is None else share.shape
        case Store(value=value, box=box):
            return value, box.shape
        case Fold(node=node, box=box):
            return node, box.shape
    return ()


def parameters(graph: Graph) -> list[str]:
    return [v.name for v in graph.of_kind(Kind.PARAMETER)]


def elsewhere_bytes(schedule: Schedule) -> int:
    """Of inputs that lie elsewhere: what is never here, but for the next tile, which is read ahead."""
    types = {v.name: v.type for v in schedule.graph.values if v.away and not v.kind.computed}
    if not types:
        return 0
    islands = [schedule.islands[step.island] for step in schedule.steps if isinstance(step, Run)]
    loads = [s for island in islands for s in island.steps if isinstance(s, Load) and s.value in types]
    whole = {name for island in islands for name in island.whole}
    whole |= {load.value for load in loads if load.box == schedule.region(load.value)}
    ahead = (load.box.volume * types[load.value].item_bytes for load in loads if load.value not in whole)
    return sum(schedule.region(n).volume * types[n].item_bytes for n in types if n not in whole) - max(ahead, default=0)
