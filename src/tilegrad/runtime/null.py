"""The same islands without data: predict a step's peak before it runs.

What outlives a tile (kept halos, values between phases, gradients of both) is entered in a ledger, tile by tile, in
the order in which the engine would make and free it. What a tile needs while it runs is found by running it, autograd
included, on the meta device, once for all tiles of the same shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..ir import Graph, Kind
from ..ops import Place
from ..region import Box
from ..schedule import Compute, Fold, Join, Load, Phase, Schedule, Step, Storage, Store
from ..sim.memory import Alive, Memory
from .engine import Engine, Session
from .island import Island
from .peak import PeakBytes
from .storage import Shelf

LARGEST = 6  # tiles of a walk that are run to learn what a tile needs


@dataclass(frozen=True)
class Prediction:
    """Bytes on the device. `peak_bytes` is the most a step allocates beyond parameters, their gradients and the
    inputs; `total_bytes` is the most that is alive, those included."""

    peak_bytes: int
    total_bytes: int
    halo_bytes: int  # all halos that are kept at once, wherever they are kept
    worst: str  # where the peak lies: "phase 2, backward, tile (0, 0)"
    worst_node: str  # the node of that tile with the largest output
    kept_bytes: int = 0  # outputs and values between phases, on the device after the forward pass
    memory: Memory | None = field(default=None, repr=False)  # tile by tile, with what is alive at the peak


def predict(schedule: Schedule, graded: Sequence[str] | None = None, *, train: bool = True) -> Prediction:
    """Peak bytes of a training step, or of a forward pass. `graded`: outside values that need a gradient."""
    graph = schedule.graph
    names = [v.name for v in graph.of_kind(Kind.PARAMETER)] if graded is None else list(graded)
    ledger = _Ledger(schedule, set(names) if train else set())
    for phase in schedule.phases:
        ledger.forward(phase)
    halos, kept = ledger.halo_bytes, ledger.kept
    ledger.receive(graph.outputs if train else ())
    for phase in reversed(schedule.phases) if train else ():
        ledger.backward(phase)
    outside = sum(graph.type(v.name).bytes for v in graph.values if not v.kind.computed)
    total = int(ledger.total) + outside
    memory = Memory(
        device=tuple(outside + count for count in ledger.curve),
        host=tuple(ledger.away),
        peak_bytes=total,
        peak_step=max(range(len(ledger.curve)), key=ledger.curve.__getitem__, default=0),
        resident_bytes=outside,
        host_peak_bytes=max(ledger.away, default=0),
        alive=tuple(sorted(ledger.alive, key=lambda item: -item.bytes)),
        lifetimes=(),
        labels=tuple(ledger.labels),
    )
    return Prediction(int(ledger.peak), total, halos, ledger.worst, ledger.worst_node, kept, memory)


class _NullSession(Session):
    """Gives shapes where a session gives data, and keeps nothing."""

    def __init__(self, schedule: Schedule, graded: set[str]):
        graph = schedule.graph
        tensors = {v.name: _blank(graph, v.name) for v in graph.values if not v.kind.computed}
        for name in graded:
            tensors[name].requires_grad_(tensors[name].is_floating_point())
        super().__init__(Engine(schedule), tensors, torch.device("meta"), train=bool(graded))
        self.ready: dict[str, Tensor] = {}  # made before the count begins, as what is stored already
        self.halos = _NullShelf(schedule.storage)
        self.halo_grads = _NullShelf(schedule.storage)

    def read(self, name: str, box: Box) -> Tensor:
        if name in self.tensors:
            return super().read(name, box)
        if self._storage(name) is not Storage.DEVICE:
            return _blank(self.engine.graph, name, box.shape)  # a copy from where it waits
        if name not in self.ready:
            self.ready[name] = _blank(self.engine.graph, name)
        return self.ready[name][box.slices]

    def write(self, name: str, box: Box, tile: Tensor) -> None:
        return

    def gradient(self, name: str, box: Box | None) -> Tensor | None:
        found = self.ready.get(f"gradient of {name}")
        if found is None or box is None:
            return found
        return found[box.slices] if self._storage(name) is Storage.DEVICE else found[box.slices].clone()

    def add_gradient(self, name: str, box: Box, grad: Tensor, *, shared: bool = False) -> None:
        return

    def fold(self, node: str, part: tuple[Tensor, ...]) -> None:
        return


class _NullShelf(Shelf):
    """Halos by shape, made before the count begins."""

    def put(self, key: Any, tensor: Tensor) -> None:
        return

    def get(self, key: Any, *, last: bool) -> Tensor:
        found = self.items[key][0]
        assert isinstance(found, Tensor)
        # the last reader takes it off the shelf: from then on it is the tile's
        return torch.empty_like(found) if last or self.storage is not Storage.DEVICE else found


def _blank(graph: Graph, name: str, shape: Sequence[int] | None = None) -> Tensor:
    type_ = graph.type(name)
    size = type_.shape if shape is None else tuple(shape)
    return torch.empty(size, dtype=getattr(torch, type_.dtype), device="meta")


class _Ledger:
    """Bytes that outlive a tile, and the highest mark of those plus what a tile needs."""

    def __init__(self, schedule: Schedule, graded: set[str]):
        self.session = _NullSession(schedule, graded)
        self.graph, self.schedule = schedule.graph, schedule
        self.on_device = schedule.storage is Storage.DEVICE
        self.kept = self.halo_bytes = self.grad_bytes = 0
        self.parameter_grads = 0
        self.grads: set[str] = set()
        self.peak = self.total = 0.0
        self.worst = self.worst_node = ""
        self.curve: list[int] = []  # bytes on the device while each tile runs
        self.away: list[int] = []  # bytes of halos elsewhere
        self.labels: list[str] = []
        self.alive: list[Alive] = []
        self.halo_grads: dict[Any, int] = {}
        self.tiles: dict[Any, tuple[dict[Any, int], float]] = {}
        # where a network has many short phases, the tiles of each are alike
        self.largest = max(1, LARGEST // max(1, sum(phase.tiled for phase in schedule.phases)))

    def forward(self, phase: Phase) -> None:
        made = [*phase.stores, *(f.outputs[0] for f in phase.folds)]
        self.kept += sum(map(self._stored_bytes, made))
        # a tile that is run again in backward needs more there than here
        again = any(name in self.session.needs for name in made)
        for tile in phase.tiles():
            steps = phase.steps(tile)
            joins = [step for step in steps if isinstance(step, Join)]
            self.halo_bytes += sum(self._bytes(j.value, h.box) for j in joins for h in j.gives)
            if not again:
                self._mark(phase, tile, steps, graded=False)
            if not self.session.train:
                self.halo_bytes -= sum(self._bytes(j.value, h.box) for j in joins for h in j.receives)

    def receive(self, outputs: Sequence[str]) -> None:
        """The caller brings the gradients of the outputs."""
        self._add_gradients([name for name in dict.fromkeys(outputs) if name in self.session.needs])

    def backward(self, phase: Phase) -> None:
        made = [*phase.stores, *(f.outputs[0] for f in phase.folds)]
        if any(name in self.grads for name in made):
            needed = self.session.needs
            if len(phase.tiles(backward=True)) > 1:  # whole gradients that tiles add to; a single tile makes its own
                self._add_gradients([v for v in phase.boxed if v in needed])
            for tile in phase.tiles(backward=True):
                steps = phase.steps(tile, backward=True)
                joins = [step for step in steps if isinstance(step, Join)]
                self.halo_bytes -= sum(self._bytes(j.value, h.box) for j in joins for h in j.receives)
                self._mark(phase, tile, steps, graded=True)
                self._pass_halos(tile, joins)
                # the first tile that uses a weight makes its gradient, the others add to it
                self._add_gradients([v for v in (*phase.boxed, *self._weights(phase, steps)) if v in needed])
        for name in made:
            if name in self.graph.outputs:
                continue  # the caller still holds it, and its gradient
            self.kept -= self._stored_bytes(name)
            if name in self.grads and name not in self.session.tensors:
                self.grads.discard(name)
                self.grad_bytes -= self._gradient_bytes(name)

    def _add_gradients(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.grads:
                continue
            self.grads.add(name)
            if self.graph.value[name].kind is Kind.PARAMETER:
                self.parameter_grads += self._bytes(name)
            else:
                self.grad_bytes += self._gradient_bytes(name)

    def _pass_halos(self, tile: tuple[int, ...], joins: Sequence[Join]) -> None:
        for join in joins:
            if join.value in self.session.needs:
                for halo in join.gives:
                    after = tuple(t + (k == halo.axis) for k, t in enumerate(tile))
                    self.halo_grads.pop((join.value, halo.axis, after), None)
                for halo in join.receives:
                    self.halo_grads[join.value, halo.axis, tile] = self._bytes(join.value, halo.box)

    def _weights(self, phase: Phase, steps: Sequence[Step]) -> list[str]:
        """The whole values that a tile reads."""
        nodes = [self.graph.node[step.node] for step in steps if isinstance(step, Compute)]
        return list(dict.fromkeys(v for node in nodes for v in node.reads if v in phase.whole))

    def _mark(self, phase: Phase, tile: tuple[int, ...], steps: Sequence[Step], *, graded: bool) -> None:
        made = [v for v in self._weights(phase, steps) if graded and v in self.session.needs and v not in self.grads]
        weights = sum(self._bytes(v) for v in made if self.graph.value[v].kind is Kind.PARAMETER)
        if made:
            tile_bytes: float = self._run_tile(phase, tile, steps, graded)
        else:
            tile_bytes = self._tile_bytes(phase, steps, graded)
        halos = self.halo_bytes + sum(self.halo_grads.values()) if self.on_device else 0
        now = self.kept + halos + self.grad_bytes + tile_bytes
        place = f"phase {phase.number}, {'backward' if graded else 'forward'}, tile {tile}"
        self.curve.append(int(now + self.parameter_grads))
        self.away.append(0 if self.on_device else self.halo_bytes + sum(self.halo_grads.values()))
        self.labels.append(place)
        if now + self.parameter_grads > self.total:
            self.total = now + self.parameter_grads
            self.alive = self._composition(place, halos, tile_bytes)
        if now - weights > self.peak:
            self.peak = now - weights
            self.worst = place
            sizes = {s.node: s.out.volume for s in steps if isinstance(s, Compute)}
            self.worst_node = self.graph.node[max(sizes, key=sizes.__getitem__)].describe() if sizes else ""

    def _composition(self, place: str, halos: int, tile_bytes: float) -> list[Alive]:
        parts = (
            ("(the tile itself)", int(tile_bytes), place),
            ("(halos and their gradients)", halos, "tiles before and after"),
            ("(values kept between phases)", self.kept, "earlier phases"),
            ("(gradients of whole values)", self.grad_bytes, "later phases, and the caller"),
            ("(gradients of parameters)", self.parameter_grads, "all tiles so far"),
        )
        return [Alive(name, count, source) for name, count, source in parts if count]

    def _bytes(self, name: str, box: Box | None = None) -> int:
        type_ = self.graph.type(name)
        return type_.bytes if box is None else box.volume * type_.item_bytes

    def _gradient_bytes(self, name: str) -> int:
        """Device bytes of a whole gradient."""
        return self._bytes(name) if name in self.session.tensors else self._stored_bytes(name)

    def _stored_bytes(self, name: str) -> int:
        """Device bytes of a value that is stored whole."""
        here = self.on_device or name in self.graph.outputs or len(self.graph.shape(name)) <= 2
        return self._bytes(name) if here else 0

    def _tile_bytes(self, phase: Phase, steps: Sequence[Step], graded: bool) -> float:
        """Peak bytes inside one tile. The largest tiles of a walk are run; the others, which matter less, are taken
        to need as much in proportion to what they compute."""
        key = (phase.number, graded)
        if key not in self.tiles:
            tiles = [(t, phase.steps(t, backward=graded)) for t in phase.tiles(backward=graded)]
            kinds = {_signature(each): (t, each) for t, each in tiles}
            largest = sorted(kinds, key=lambda k: self._volume(kinds[k][1]), reverse=True)[: self.largest]
            exact = {k: self._run_tile(phase, *kinds[k], graded) for k in largest}
            rate = max(count / max(1, self._volume(kinds[k][1])) for k, count in exact.items())
            self.tiles[key] = (exact, rate)
        exact, rate = self.tiles[key]
        found = exact.get(_signature(steps))
        return found if found is not None else rate * self._volume(steps)

    def _volume(self, steps: Sequence[Step]) -> int:
        graph = self.graph
        outs = [(graph.node[s.node].outputs[0], s.out) for s in steps if isinstance(s, Compute)]
        return sum(self._bytes(name, box) for name, box in outs)

    def _run_tile(self, phase: Phase, tile: tuple[int, ...], steps: Sequence[Step], graded: bool) -> int:
        session, engine = self.session, self.session.engine
        session.ready.clear()
        shelf = session.halos
        shelf.items.clear()
        for step in steps:
            match step:
                case Join(value=value, receives=receives):
                    for halo in receives:
                        key = (phase.number, value, halo.axis, tile)
                        shelf.items[key] = (_blank(self.graph, value, halo.box.shape), session.device)
                case Load(value=value, box=box):
                    session.read(value, box)
                case Store(value=value):
                    if graded and value in self.grads:
                        session.ready[f"gradient of {value}"] = _blank(self.graph, value)
                case Fold(node=name):
                    call, op = engine.call(name), engine.reduction(name)
                    result, source = call.node.outputs[0], _blank(self.graph, call.node.inputs[0].value)
                    full = Place(Box.full(call.out.shape), (Box.full(source.shape),))
                    session.totals[name] = op.partial(call, source, full)
                    if graded and result in self.grads:
                        session.ready[f"gradient of {result}"] = _blank(self.graph, result)
        whole = {name: session.read(name, Box.full(session.shape(name))).detach() for name in phase.whole}
        for name, leaf in whole.items():
            leaf.requires_grad_(graded and name in session.needs)
            if leaf.requires_grad and name in self.grads:
                leaf.grad = torch.empty_like(leaf)  # gradients add up in place; the ledger counts them
        with PeakBytes("meta") as peak:
            _run(session, phase, tile, whole, steps, graded)
        return peak.bytes


def _signature(steps: Sequence[Step]) -> Any:
    """What makes two tiles alike: shapes and paddings, not places."""
    return tuple(_shape_of(step) for step in steps)


def _shape_of(step: Step) -> Any:
    match step:
        case Compute(node=node, out=out, reads=reads):
            return node, out.shape, tuple(box.shape for box in reads)
        case Join(value=value, held=held, receives=receives, gives=gives):
            return value, held.shape, tuple(h.box.shape for h in receives), tuple(h.box.shape for h in gives)
        case Load(value=value, box=box) | Store(value=value, box=box):
            return value, box.shape
        case Fold(node=node, box=box):
            return node, box.shape
    return ()


def _run(
    session: Session, phase: Phase, tile: tuple[int, ...], whole: dict[str, Tensor], steps: Sequence[Step], graded: bool
) -> None:
    island = Island(session, phase, tile, whole, graded=graded)
    if not graded:
        with torch.no_grad():
            island.run(steps)
        return
    with torch.enable_grad(), island.saved.hooks():
        island.run(steps)
        island.backward()


def plain_bytes(module: nn.Module, args: Any, kwargs: Any, *, train: bool) -> int:
    """What plain PyTorch allocates in one step of `module`, found by running it on tensors without data."""
    dtype = next((p.dtype for p in module.parameters()), None)

    def blank(item: Any) -> Any:
        if isinstance(item, Tensor):
            made = torch.empty_like(item, device="cpu")
            return made.requires_grad_(train and item.requires_grad)
        return torch.empty(item, dtype=dtype) if isinstance(item, tuple) and _is_shape(item) else item

    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(train):
        state = {name: blank(t) for name, t in _named(module)}
        args, kwargs = pytree.tree_map(blank, (args, kwargs), is_leaf=lambda x: isinstance(x, tuple) and _is_shape(x))
        with _replaced(module, state), PeakBytes("meta") as peak:  # which is what tensors without data are made of
            outputs = module(*args, **kwargs)
            roots = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
            if train and roots:
                torch.autograd.backward(roots, [torch.empty_like(t) for t in roots])
    return peak.bytes


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    every = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return [pair for each in every for pair in each]


@contextlib.contextmanager
def _replaced(module: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Other tensors in place of parameters and buffers, for backward too: a checkpoint runs the module again there."""
    places = [
        (registry, key, tensor, state[f"{prefix}.{key}" if prefix else key])
        for prefix, part in module.named_modules()
        for registry in (part._parameters, part._buffers)
        for key, tensor in registry.items()
        if (f"{prefix}.{key}" if prefix else key) in state
    ]
    known = {id(tensor): other for _, _, tensor, other in places}  # what is shared stays shared
    try:
        for registry, key, tensor, _ in places:
            registry[key] = known[id(tensor)]
        yield
    finally:
        for registry, key, tensor, _ in places:
            registry[key] = tensor


def _is_shape(item: tuple[Any, ...]) -> bool:
    return bool(item) and all(isinstance(n, int) for n in item)
