"""The one walk over a schedule's steps.

A `Pass` is one forward pass and its backward pass: the values and halos it holds, the records of islands, the gradients
it gathers. Dropping it frees them.

Rule E1  An island that runs again behind `Turn` writes only what is not there any more; folds and halos it made before.
Rule E2  It is not run where no gradient of what it makes has come: what it adds would not be zero, but nothing.
Rule E3  A gradient is complete when the `Backward` of every island that reads the value has run, and goes after the
         last `Backward` of an island that made it.
Rule E4  An output knows its pass, so a pass must not know the output: it looks at the same memory by another tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InternalError
from ..images import ImageSource
from ..ir import Graph
from ..ops import Place
from ..ops.base import Seed
from ..ops.channels import LOW
from ..region import Box
from ..schedule import Backward, Exchange, Finish, Free, Island, Move, Run, Storage, Sum
from .ahead import Ahead, elsewhere
from .around import around
from .buffers import Buffers
from .early import take_early
from .executor import Executor
from .field import Field
from .messages import Peers
from .moves import Mover
from .ranks import Ranks
from .record import Record
from .saved import memory_of
from .shelf import Shelf
from .sums import Sums
from .unchanged import version_of, was_changed

Sink = Callable[[Box, Tensor], None]


class Pass:
    """One forward pass and, where gradients are wanted, its backward pass."""

    def __init__(
        self,
        executor: Executor,
        tensors: Mapping[str, Any],  # images may lie elsewhere
        device: torch.device,
        *,
        seed: Seed = 0,
        peers: Peers | None = None,
        sinks: Mapping[str, Sink] | None = None,
    ):
        self.executor, self.tensors, self.device, self.seed = executor, tensors, device, seed
        self.sinks: Mapping[str, Sink] = sinks or {}  # outputs that are written elsewhere, box by box
        self.graph: Graph = executor.graph
        trains = executor.schedule.trains
        self.needs = executor.needs(frozenset(name for name, t in tensors.items() if trains and t.requires_grad))
        self.output_names = tuple(name for name in self.graph.outputs if name not in self.sinks)
        self.values: dict[str, Field] = {}
        self.grads: dict[str, Field] = {}
        self.leaves: dict[str, Tensor] = {}  # outside values that are read whole, as autograd knows them
        self.early = take_early(executor, tensors, self.needs, device)  # memory that gradients have already
        self.sums = Sums(self.early)  # of their gradients, where made in another precision
        self.totals: dict[str, tuple[Tensor, ...]] = {}  # of folds
        self.known: dict[str, Any] = {}  # what tiles of a node have in common
        self.records: dict[str, Record] = {}
        self.halos = Shelf(executor.schedule.storage)
        self.halo_grads = Shelf(executor.schedule.storage)
        self.held_outputs: dict[str, Tensor] = {}
        self.buffers = Buffers(tensors, executor.written)
        self.ranks = Ranks(self, peers) if peers is not None else None
        self.moves = Mover(device)
        away = {} if peers is not None else elsewhere(tensors, device)
        self.ahead = Ahead(device, away, executor.loads(frozenset(away))) if away else None
        self.away: set[str] = set()
        self.together: dict[str, tuple[str, ...]] = {}  # gradients that went away in one piece
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.halo_bytes = 0
        self.versions: dict[str, int] = {}
        self.reached: frozenset[str] = frozenset()
        self.again = self.spent = False

    # -- the two halves ------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        """The graph's outputs, and the buffers to replace."""
        turn = self.executor.schedule.turn
        with around(self.device):
            for at in range(turn):
                self._step(at)
        self.halo_bytes = self.halos.bytes
        outputs = [self._outside(name) for name in self.output_names]
        self._note_held(outputs)
        updates = self.buffers.updates(self.graph, self._outside)
        self._hand_over()
        self.buffers.keep_before({old for old, _ in updates} & self.executor.read_again)
        self.watch()
        return outputs, updates

    def watch(self) -> None:
        """From now on nobody may write to what backward reads."""
        self.versions = {name: version_of(t) for name, t in self._watched().items()}

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Gradients of the outside values, given those of the outputs."""
        self.spent = self.again = True
        given = frozenset(n for n, grad in zip(self.graph.outputs, grads, strict=True) if grad is not None)
        self.reached = self.executor.reached(given) & self.needs
        mute = self.executor.schedule.seat.mute if self.executor.schedule.seat is not None else ()
        for name, grad in zip(self.graph.outputs, grads, strict=True):
            if grad is not None and name in self.needs:
                grad = torch.zeros_like(grad) if name in mute else grad
                self.add_gradient(name, self.extent(name), grad, shared=True)
        try:
            self._check_unchanged()
            with around(self.device):
                for at in range(self.executor.schedule.turn + 1, len(self.executor.schedule.steps)):
                    self._step(at)
        finally:
            for record in self.records.values():  # of a step that was interrupted, or whose gradient nobody wanted
                record.close()
            self.records.clear()
        return self._outside_gradients()

    def _outside_gradients(self) -> dict[str, Tensor]:
        if self.ranks is not None:
            self.ranks.wait()
        # Compiled functions give zeros where nothing has come.
        wanted = self.needs if self.executor.compile is None else self.reached
        every = ((name, self.gradient(name, None)) for name in wanted & self.tensors.keys())
        found = {name: grad for name, grad in every if grad is not None}
        return found | {n: torch.zeros_like(self.tensors[n]) for n in self.reached & self.tensors.keys() - found.keys()}

    def _hand_over(self) -> None:
        """Rule E4."""
        for name in {*self.graph.outputs, *(new for _, new in self.graph.updates)} & self.values.keys():
            if name in self.executor.read_again:
                self.values[name].part()
            else:
                del self.values[name]

    def _watched(self) -> dict[str, Tensor]:
        """What backward reads again and others may write to: inputs, parameters, and outputs that we go on reading."""
        mine = ((name, t) for name, t in self.tensors.items() if name not in self.buffers.replaced)
        found = {name: t for name, t in mine if isinstance(t, Tensor)}
        again = self.executor.read_again & self.values.keys()
        return found | {name: self._outside(name) for name in self.graph.outputs if name in again} | self.held_outputs

    def _note_held(self, outputs: Sequence[Tensor]) -> None:
        """Outputs that records hold: backward needs them as they are."""
        for name, tensor in zip(self.output_names, outputs, strict=True):
            memory = memory_of(tensor)
            if name not in self.tensors and any(record.holds(memory) for record in self.records.values()):
                self.held_outputs[name] = tensor.detach()

    def _check_unchanged(self) -> None:
        for name, tensor in self._watched().items():
            if version_of(tensor) != self.versions[name]:
                raise was_changed(f"'{name}'")

    def _outside(self, name: str) -> Tensor:
        if name in self.buffers.remembered:
            return self.buffers.remembered[name]
        if name in self.tensors:
            return self.tensors[name].to(self.device)
        return self.read(name, self.extent(name)).detach()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, at: int) -> None:
        match self.executor.schedule.steps[at]:
            case Run(island=name, keep=keep):
                self._run(at, self.executor.schedule.islands[name], keep)
            case Backward(island=name):
                record = self.records.pop(name, None)
                if record is not None:
                    self.moves.wait(record.island.saved)
                    self._backward(record)
                for made in self.executor.ends.get(at, ()):
                    self.grads.pop(made, None)
            case Finish() as step:
                self._finish(step)
            case Exchange() | Sum() as step:
                assert self.ranks is not None
                self.ranks.step(step)
            case Free(value=value):
                self._free(value)
            case Move(value=value, store=store):
                self._move(value, store)

    def _backward(self, record: Record) -> None:
        try:
            record.backward()
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise was_changed("an output, or what it was made from,") from error
        self.sums.settle()

    def _run(self, at: int, island: Island, keep: bool) -> None:
        if self.again and self.executor.schedule.is_for_backward(at) and not self._asked(island):
            return  # rule E2
        writes = self.executor.schedule.written[at]
        record = Record(self, island, graded=keep, last=self.executor.last_run[island.name] == at, writes=writes)
        try:
            record.run()
        except BaseException:
            record.close()
            raise
        if keep:
            self.records[island.name] = record

    def _finish(self, step: Finish) -> None:
        fold = self.graph.node[step.node]
        call, op = self.executor.calls[fold.name], self.executor.reduction(fold.name)
        if step.parts and self.ranks is not None:
            self.ranks.combine(step)
        source, out = fold.inputs[0].value, fold.outputs[0]
        if fold.name not in self.totals:  # nothing to fold: an empty batch
            box = self.extent(source)
            place = Place(self.extent(out), (box,))
            self.totals[fold.name] = op.partial(call, self.empty(source, box.shape), place)
        self.write(out, self.extent(out), op.finish(call, self.totals[fold.name]))

    def _free(self, value: str) -> None:
        self.moves.wait(value)
        if (record := self._record(value)) is not None:
            if value in self.away:
                record.let_go()
            else:
                self.records.pop(record.island.name).close()
            return
        for name in self.executor.members.get(value, ()):
            self.values.pop(name, None)
        for name in self.together.get(value, ()):
            self.grads.pop(name.removesuffix(".grad"), None)

    def _record(self, value: str) -> Record | None:
        """`<island>.saved`: what an island's record keeps."""
        name, dot, end = value.rpartition(".")
        return self.records.get(name) if dot and end == "saved" and value not in self.graph.value else None

    def _move(self, value: str, store: str) -> None:
        if store != Storage.DEVICE:
            parts = self._parts(value)
            self.moves.offload(value, parts)
            self.away.add(value)
            if value not in self.graph.value and self._record(value) is None:
                self.together[value] = tuple(parts)
            return
        self.away.discard(value)
        self.together.pop(value, None)
        found = self.moves.fetch(value)
        if (record := self._record(value)) is not None:
            record.take_back(found)
            return
        for name, tensor in found.items():
            fields = self.grads if name.endswith(".grad") and name not in self.graph.value else self.values
            name = name.removesuffix(".grad") if fields is self.grads else name
            fields[name] = self._field(name)
            fields[name].write(self.extent(name), tensor)

    def _parts(self, value: str) -> dict[str, Tensor]:
        """The tensors in a value's memory. What autograd saved of an island may be several, in several memories."""
        if (record := self._record(value)) is not None:
            return record.own()
        if value not in self.graph.value and value.endswith(".grad"):
            return self._gradients_beside(value.removesuffix(".grad"))
        names = [name for name in self.executor.members[value] if name in self.values]
        return {name: self.values[name].read(self.extent(name)) for name in names}

    def _gradients_beside(self, name: str) -> dict[str, Tensor]:
        """The gradients in the memory of one."""
        grad = self.gradient(name, None)
        if grad is None:
            return {}
        grads = {f"{other}.grad": found for other in self.grads if (found := self.gradient(other, None)) is not None}
        return {other: found for other, found in grads.items() if memory_of(found) == memory_of(grad)}

    # -- what records ask for ------------------------------------------------------------------------------------------

    def extent(self, name: str) -> Box:
        """The part of a value that this pass answers for: all of it, but for ranks."""
        return self.executor.owned[name]

    def read(self, name: str, box: Box) -> Tensor:
        if name in self.values:
            self.moves.wait(name)
            return self.values[name].read(box)
        if name in self.tensors:
            tensor = self.buffers.before.get(name, self.tensors[name])
            here = self.extent(name)
            if self.ahead is not None and name in self.ahead.sources and box != here:
                return self.ahead.read(name, box)
            if isinstance(tensor, ImageSource):  # read whole: then it stays
                self.write(name, here, tensor.to(self.device))
                return self.values[name].read(here)
            found = tensor if box is here or box == here else tensor[box.within(here).slices]
            return found.detach().to(self.device, non_blocking=True)
        if box.empty:
            return self.empty(name, box.shape)  # nobody ever made a part of it
        node = self.graph.producer.get(name)
        if node is None or self.graph.value[name].alias is None:
            raise InternalError(f"'{name}' is read and not there", where=node.describe() if node else name)
        inputs = [self.read(n, self.executor.full[n]) for n in node.reads]  # a view of what was made again or fetched
        op, call = self.executor.ops[node.name], self.executor.calls[node.name]
        self.write(name, self.extent(name), op.run_whole(call, inputs, self.seed_of(node.name), self.device))
        return self.values[name].read(box)

    def write(self, name: str, box: Box, tile: Tensor) -> None:
        if name in self.sinks:
            self.sinks[name](box, tile)
            return
        if name not in self.values:
            self.values[name] = self._field(name)
        self.values[name].write(box, tile)

    def _field(self, name: str) -> Field:
        return Field(self.executor.region[name], self._storage(name))

    def _storage(self, name: str) -> str:
        """Values between phases and their gradients wait where halos do; what is small or the caller's stays."""
        between = name not in self.tensors and name not in self.graph.outputs and len(self.graph.shape(name)) > 2
        return self.executor.schedule.storage if between else Storage.DEVICE

    def empty(self, name: str, shape: Sequence[int]) -> Tensor:
        dtype = getattr(torch, self.graph.type(name).dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def leaf(self, name: str) -> Tensor:
        """An outside value that is read whole, as autograd's leaf: all islands add to its gradient."""
        if name not in self.leaves:
            self.leaves[name] = leaf = self.read(name, self.executor.full[name]).detach().requires_grad_()
            if leaf.dtype in LOW and self.executor.is_summed(name):
                self.sums.gather(leaf, name)
        return self.leaves[name]

    def fold(self, node: str, part: tuple[Tensor, ...]) -> None:
        have = self.totals.get(node)
        combine = self.executor.reduction(node).combine
        self.totals[node] = part if have is None else combine(self.executor.calls[node], have, part)

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _asked(self, island: Island) -> bool:
        """Has a gradient come of anything that an island made, or gave away?"""
        left = self.halo_grads.items
        given = ((join.value, island.name, halo.peer) in left for join in island.joins for halo in join.gives)
        return any(name in self.grads for name in self.executor.made_by(island)) or any(given)

    def _settle(self, name: str) -> None:
        """What has come to a leaf so far goes to where the value's gradient is gathered."""
        found = self.sums.take(name)
        leaf = self.leaves.get(name)
        if leaf is not None and found is None:
            found, leaf.grad = leaf.grad, None
        if found is not None:
            self.add_gradient(name, self.extent(name), found)

    def gradient(self, name: str, box: Box | None) -> Tensor | None:
        self._settle(name)
        if name not in self.grads:
            return None
        self.moves.wait(f"{name}.grad")
        return self.grads[name].read(self.extent(name) if box is None else box)

    def add_gradient(self, name: str, box: Box, grad: Tensor, *, shared: bool = False) -> None:
        """Add to the gradient of a value. `shared`: somebody else reads the same memory."""
        if name not in self.grads:
            self.grads[name] = self._field(name)
        if name in self.tensors:
            grad = grad.to(self.tensors[name].device)
        elif grad.dtype in LOW and self.executor.is_summed(name):
            grad, shared = grad.float(), False  # as `Sums`
        self.grads[name].add(box, grad, shared=shared)

    def seed_of(self, node: str) -> Seed:
        return seed_of(self.seed, node)


def seed_of(seed: Seed, node: str) -> Seed:
    """A random operator's own seed."""
    return seed ^ zlib.crc32(node.encode()) << 20
