"""The one loop over phases and tiles.

An `Engine` belongs to a schedule and is used again for every step of training. A `Session` is one forward pass and
its backward pass: the values and halos it keeps, the gradients it gathers. Dropping the session frees them all.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..bounds import call_of
from ..errors import RunError
from ..ir import Graph, Node
from ..ops import Call, Op, Place, Reduction, find
from ..region import Box
from ..schedule import Phase, Schedule, Storage
from .island import Island
from .storage import Shelf, Whole

LOW = (torch.float16, torch.bfloat16)


class Engine:
    """A schedule, ready to run: calls and operators looked up once."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.graph: Graph = schedule.graph
        self._calls: dict[str, Call] = {}
        self._ops: dict[str, Op] = {}
        for node in self.graph.nodes:
            self._calls[node.name] = call_of(self.graph, node)
            self._ops[node.name] = find(node)

    def call(self, node: str) -> Call:
        return self._calls[node]

    def op(self, node: str) -> Op:
        return self._ops[node]

    def reduction(self, node: str) -> Reduction:
        op = self._ops[node]
        assert isinstance(op, Reduction)
        return op

    def needs(self, graded: set[str]) -> frozenset[str]:
        """The values whose gradient is wanted, given the outside values that require one."""
        found = set(graded)
        for node in self.graph.nodes:
            if self._passes(node) and any(name in found for name in node.reads):
                found.update(out for out in node.outputs if self.graph.type(out).floating)
        return frozenset(found)

    def reached(self, graded: set[str]) -> frozenset[str]:
        """The values that a gradient of these outputs comes by, even if it is zero when it gets there."""
        found = set(graded)
        for node in reversed(self.graph.nodes):
            # the backward of a user's own function may give nothing
            if self._passes(node) and not self.op(node.name).opaque and any(out in found for out in node.outputs):
                found.update(node.reads)
        return frozenset(found)

    def _passes(self, node: Node) -> bool:
        return node.op != "detach" and not self.op(node.name).blind


class Session:
    """One forward pass and, where gradients are wanted, its backward pass."""

    def __init__(
        self,
        engine: Engine,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        *,
        train: bool,
        seed: int = 0,
        autocast: torch.dtype | None = None,
    ):
        self.engine, self.tensors, self.device, self.train = engine, tensors, device, train
        self.seed, self.autocast = seed, autocast
        graded = {name for name, t in tensors.items() if t.requires_grad} if train else set()
        self.needs = engine.needs(graded)
        self.output_names = engine.graph.outputs
        self.values: dict[str, Whole] = {}
        self.totals: dict[str, tuple[Tensor, ...]] = {}
        self.halos = Shelf(engine.schedule.storage)
        self.halo_grads = Shelf(engine.schedule.storage)
        self.grads: dict[str, Whole] = {}
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.halo_bytes = 0
        self.versions: dict[str, int] = {}
        self.before: dict[str, Tensor] = {}
        self.spent = False

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        """The graph's outputs, and the buffers to replace."""
        graph = self.engine.graph
        with torch.no_grad(), self._precision():
            for at, phase in enumerate(self.engine.schedule.phases):
                self._forward_phase(phase)
                if not self.train:
                    self._drop_unread(at)
        self.halo_bytes = self.halos.bytes
        self.versions = {name: version_of(t) for name, t in self._recomputed_from().items()}
        outputs = [self._outside(name) for name in graph.outputs]
        updates = [(old, self._outside(new)) for old, new in graph.updates]
        self._hand_over()
        if self.train:  # backward reads buffers as they were
            self.before = {old: self.tensors[old].clone() for old, _ in graph.updates if old in self._read_again}
        return outputs, updates

    def _hand_over(self) -> None:
        """Keep no hold of what is given away: an output knows its session, which would so keep itself alive. Where a
        later phase reads an output again, the session looks at the same memory through a tensor of its own."""
        for name in {*self.engine.graph.outputs, *(new for _, new in self.engine.graph.updates)} & self.values.keys():
            if name in self._read_again:
                self.values[name].part()
            else:
                del self.values[name]

    def _recomputed_from(self) -> dict[str, Tensor]:
        """What backward reads again and others may write to: inputs, parameters, and outputs that we go on reading."""
        graph = self.engine.graph
        replaced = {old for old, _ in graph.updates}
        found = {name: t for name, t in self.tensors.items() if name not in replaced}
        again = self._read_again & self.values.keys()
        return found | {name: self._outside(name) for name in graph.outputs if name in again}

    @property
    def _read_again(self) -> frozenset[str]:
        """What the phases of a backward pass read."""
        return frozenset(name for phase in self.engine.schedule.phases for name in (*phase.boxed, *phase.whole))

    def _outside(self, name: str) -> Tensor:
        if name in self.tensors:
            return self.tensors[name].to(self.device)
        return self.read(name, self.extent(name))

    def _forward_phase(self, phase: Phase) -> None:
        whole = {name: self.read(name, Box.full(self.shape(name))) for name in phase.whole}
        for tile in phase.tiles():
            Island(self, phase, tile, whole, graded=False).run(phase.steps(tile))
        for fold in phase.folds:
            call, op = self.engine.call(fold.name), self.engine.reduction(fold.name)
            if fold.name not in self.totals:  # nothing to fold: an empty batch
                nothing = self.empty(fold.inputs[0].value, call.inputs[0].shape)
                full = Place(Box.full(call.out.shape), (Box.full(call.inputs[0].shape),))
                self.totals[fold.name] = op.partial(call, nothing, full)
            result = op.finish(call, self.totals[fold.name])
            self.write(fold.outputs[0], Box.full(result.shape), result)

    def _drop_unread(self, at: int) -> None:
        """In inference, forget what no later phase reads."""
        later = self.engine.schedule.phases[at + 1 :]
        graph = self.engine.graph
        wanted = {name for phase in later for name in (*phase.boxed, *phase.whole)}
        wanted |= {*graph.outputs, *(new for _, new in graph.updates)}
        for name in [name for name in self.values if name not in wanted]:
            del self.values[name]

    # -- backward --------------------------------------------------------------------------------------------------

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the outside values, given those of the outputs."""
        self.spent = True
        self._check_unchanged()
        for name, grad in zip(self.engine.graph.outputs, grads, strict=True):
            if grad is not None and name in self.needs:
                self.add_gradient(name, self.extent(name), grad, shared=True)
        for phase in reversed(self.engine.schedule.phases):
            self._backward_phase(phase)
            for node in (*phase.nodes, *phase.folds):
                if phase is self._home(node.outputs[0]):
                    self.values.pop(node.outputs[0], None)
                    self.grads.pop(node.outputs[0], None)
        found = {n: g.read(Box.full(self.shape(n))) for n, g in self.grads.items() if n in self.tensors}
        given = {n for n, grad in zip(self.engine.graph.outputs, grads, strict=True) if grad is not None}
        for name in self.engine.reached(given) & self.needs & self.tensors.keys() - found.keys():
            found[name] = torch.zeros_like(self.tensors[name])
        return found

    def _check_unchanged(self) -> None:
        for name, tensor in self._recomputed_from().items():
            if version_of(tensor) != self.versions[name]:
                raise RunError(
                    f"'{name}' was written to after the forward pass, and backward needs it as it was",
                    hint="backward before optimizer.step() and before writing in place to inputs and outputs",
                )

    def _home(self, value: str) -> Phase | None:
        """The phase that stores a value (replayed nodes run in others too)."""
        for phase in self.engine.schedule.phases:
            if value in phase.stores or any(value == f.outputs[0] for f in phase.folds):
                return phase
        return None

    def _backward_phase(self, phase: Phase) -> None:
        made = [*phase.stores, *(f.outputs[0] for f in phase.folds)]
        if not any(name in self.grads for name in made):
            return
        whole: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        for name in phase.whole:
            leaf = self.read(name, Box.full(self.shape(name))).detach()
            if name in self.needs:
                leaf.requires_grad_()
                if leaf.dtype in LOW:
                    _sum_in_single(leaf, name, sums)
            whole[name] = leaf
        for tile in phase.tiles(backward=True):
            island = Island(self, phase, tile, whole, graded=True)
            try:
                with torch.enable_grad(), island.saved.hooks():
                    with self._precision():
                        island.run(phase.steps(tile, backward=True))
                    island.backward()
            finally:
                island.close()
        for name, leaf in whole.items():
            found = sums.get(name, leaf.grad)
            if found is not None:
                self.add_gradient(name, Box.full(self.shape(name)), found)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return torch.autocast(self.device.type, enabled=False) if self.device.type != "meta" else _nothing()
        return torch.autocast(self.device.type, self.autocast)

    # -- what islands ask for --------------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        return self.engine.graph.shape(name)

    def extent(self, name: str) -> Box:
        """The part of a value that this session answers for: all of it."""
        return Box.full(self.shape(name))

    def read(self, name: str, box: Box) -> Tensor:
        if name in self.values:
            return self.values[name].read(box)
        if name not in self.tensors and not self.engine.graph.type(name).size:
            return self.empty(name, box.shape)  # no tile ever made a part of it
        tensor = self.before.get(name, self.tensors[name])
        found = tensor if box.shape == tuple(tensor.shape) else tensor[box.slices]
        return found.detach().to(self.device, non_blocking=True)

    def write(self, name: str, box: Box, tile: Tensor) -> None:
        if name not in self.values:
            self.values[name] = Whole(self.shape(name), self._storage(name))
        self.values[name].write(box, tile)

    def _storage(self, name: str) -> Storage:
        """Values between phases and their gradients wait where halos do; what is small or the caller's stays."""
        graph = self.engine.graph
        between = name not in self.tensors and name not in graph.outputs and len(self.shape(name)) > 2
        return self.engine.schedule.storage if between else Storage.DEVICE

    def empty(self, name: str, shape: Sequence[int]) -> Tensor:
        dtype = getattr(torch, self.engine.graph.type(name).dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def fold(self, node: str, part: tuple[Tensor, ...]) -> None:
        call, op = self.engine.call(node), self.engine.reduction(node)
        have = self.totals.get(node)
        self.totals[node] = part if have is None else op.combine(call, have, part)

    def gradient(self, name: str, box: Box | None) -> Tensor | None:
        found = self.grads.get(name)
        return None if found is None else found.read(self.extent(name) if box is None else box)

    def add_gradient(self, name: str, box: Box, grad: Tensor, *, shared: bool = False) -> None:
        """Add to the gradient of a whole value. `shared`: the caller's tensor must not be written to."""
        if name not in self.grads:
            self.grads[name] = Whole(self.shape(name), self._storage(name))
        place = self.tensors[name].device if name in self.tensors else grad.device
        self.grads[name].add(box, grad.to(place), shared=shared and self._accumulates(name))

    def _accumulates(self, name: str) -> bool:
        return bool(self.engine.graph.consumers[name]) or self.engine.graph.outputs.count(name) > 1

    def seed_of(self, node: str) -> int:
        return seed_of(self.seed, node)


def seed_of(seed: int, node: str) -> int:
    """A random operator's own seed."""
    return seed ^ zlib.crc32(node.encode()) << 20


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to in place, as autograd counts."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def _nothing() -> Any:
    yield


def _sum_in_single(leaf: Tensor, name: str, sums: dict[str, Tensor]) -> None:
    """Sum a half precision gradient over tiles in single precision: in bfloat16 the sum itself loses per cents."""

    def add(tensor: Tensor) -> None:
        assert tensor.grad is not None
        if name in sums:
            sums[name] += tensor.grad
        else:
            sums[name] = tensor.grad.to(torch.float32)
        tensor.grad = None

    leaf.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
