"""What a pass does with other ranks: halos exchanged, parts of reductions combined, gradients added up.

Rule D1  A value that is cut has one owner for every element. Forward, halos come from their owners before they are
         read; backward, gradients of halos go to their owners, which add them: one message to each peer.
Rule D2  What is not cut is the same on all ranks, and every rank computes it. Its gradient is a *share*: the sum over
         ranks is the gradient. The gradient of an output that all ranks have counts on the first of them alone.
Rule D3  A fold's parts are combined over ranks in their order, so all ranks have the same result to the last bit. Its
         gradient is added up over the same ranks.
Rule D4  Gradients of parameters are added up over all ranks (those of parameters that are cut over the ranks that share
         a box), begun while backward goes on.
Rule D5  All ranks make the same calls in the same order, whether their boxes are empty or not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..ops import Place
from ..region import Box
from ..schedule import Exchange, Finish, Strip, Sum
from .field import Field
from .saved import fills

if TYPE_CHECKING:
    from .walk import Pass


class Pending(Protocol):
    """A sum on its way."""

    @property
    def wait(self) -> Callable[[], None]: ...


class Peers(Protocol):
    """The other ranks. Calls are made by all of them, in the same order."""

    def exchange(
        self, what: str, sends: Mapping[int, Sequence[Tensor]], receives: Mapping[int, int]
    ) -> Mapping[int, Tensor]:
        """Send tensors to ranks, and receive so many bytes from ranks."""

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> list[Tensor]:
        """The tensors of all ranks that differ along `axes`, in order; all have the same shape."""

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Any:
        """Begin to add up a tensor over the ranks that differ along `axes`, in place."""


class Ranks:
    def __init__(self, owner: Pass, peers: Peers):
        self._owner, self.peers = weakref.ref(owner), peers
        self.pending: list[Any] = []

    @property
    def owner(self) -> Pass:
        found = self._owner()
        assert found is not None
        return found

    def step(self, step: Exchange | Sum) -> None:
        if isinstance(step, Sum):
            self._sum(step)
        elif step.gradient:
            self._return(step)
        else:
            self._fetch(step)

    def wait(self) -> None:
        for pending in self.pending:
            pending.wait()
        self.pending = []

    # -- halos ---------------------------------------------------------------------------------------------------------

    def _fetch(self, step: Exchange) -> None:
        """Receive halos, into the margins of their values."""
        run = self.owner
        for value in step.values:
            if value in run.tensors and run.executor.region[value] != run.extent(value):
                run.values[value] = field = run._field(value)  # the caller's tensor has no margins
                own = run.tensors[value].detach().to(run.device)
                if own.numel():
                    field.write(run.extent(value), own)
        got = self._swap("halos", step, lambda strip: run.read(strip.value, strip.box))
        for strip, tensor in got:
            run.write(strip.value, strip.box, tensor)

    def _return(self, step: Exchange) -> None:
        """Give the gradients of halos to their owners, and add what others give."""
        run = self.owner
        values = tuple(value for value in step.values if value in run.reached)
        gives = tuple(strip for strip in step.gives if strip.value in values)
        takes = tuple(strip for strip in step.takes if strip.value in values)
        got = self._swap("gradients of halos", Exchange(values, gives, takes, True), self._gradient_or_zero)
        for strip, tensor in got:
            run.add_gradient(strip.value, strip.box, tensor)

    def _gradient_or_zero(self, strip: Strip) -> Tensor:
        found = self.owner.gradient(strip.value, strip.box)
        return found if found is not None else self._zeros(strip.value, strip.box)

    def _zeros(self, name: str, box: Box) -> Tensor:
        return torch.zeros(box.shape, dtype=self._dtype(name), device=self.owner.device)

    def _dtype(self, name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.owner.graph.type(name).dtype)
        return found

    def _swap(self, what: str, step: Exchange, read: Callable[[Strip], Tensor]) -> list[tuple[Strip, Tensor]]:
        """Rule D1: one message to each peer."""
        sends: dict[int, list[Tensor]] = {}
        comes: dict[int, list[Strip]] = {}
        for strip in step.gives:
            sends.setdefault(strip.rank, []).append(read(strip).to(self._dtype(strip.value)))
        for strip in step.takes:
            comes.setdefault(strip.rank, []).append(strip)
        sizes = {rank: sum(s.box.volume * self._dtype(s.value).itemsize for s in each) for rank, each in comes.items()}
        found = self.peers.exchange(f"{what} of {', '.join(step.values)}", sends, sizes)
        got = []
        for rank, each in comes.items():
            tensors = unpack(found[rank], [(s.box.shape, self._dtype(s.value)) for s in each])
            got += list(zip(each, tensors, strict=True))
        return got

    # -- parts and sums ------------------------------------------------------------------------------------------------

    def combine(self, step: Finish) -> None:
        """Rule D3."""
        run, fold = self.owner, self.owner.graph.node[step.node]
        call, op = run.executor.calls[step.node], run.executor.reduction(step.node)
        there = [at for at, box in enumerate(step.parts) if not box.empty]
        mine = run.totals.pop(step.node, None)
        if not there:
            return
        like = mine if mine is not None else self._part_like(step, step.parts[there[0]])
        parts = self.peers.gather(f"the parts of {fold.describe()}", pack(like), step.axes)
        shapes = [(tuple(t.shape), t.dtype) for t in like]
        total: tuple[Tensor, ...] | None = None
        for at in there:
            part = tuple(unpack(parts[at], shapes))
            total = part if total is None else op.combine(call, total, part)
        assert total is not None
        run.totals[step.node] = total

    def _part_like(self, step: Finish, box: Box) -> tuple[Tensor, ...]:
        """Zeros in the shape of another rank's part: what a rank without a part puts in."""
        run, fold = self.owner, self.owner.graph.node[step.node]
        call, op = run.executor.calls[step.node], run.executor.reduction(step.node)
        tile = torch.empty(box.shape, dtype=self._dtype(fold.inputs[0].value), device="meta")
        sizes = zip(fold.reads[1:], op.beside(call, box), strict=True)
        others = [torch.empty(b.shape, dtype=self._dtype(name), device="meta") for name, b in sizes]
        part = op.partial(call, tile, Place(run.extent(fold.outputs[0]), (box,)), *others)
        return tuple(torch.zeros(t.shape, dtype=t.dtype, device=run.device) for t in part)

    def _sum(self, step: Sum) -> None:
        """Rules D3 and D4."""
        run, name = self.owner, step.value
        if name not in run.reached:
            return
        extent = run.extent(name)
        own = self._gradient_or_zero(Strip(name, extent, 0))
        alone = name in run.leaves and own.numel() and own.is_contiguous() and fills(own)
        own = own if alone else own.clone()  # it is added to in place
        run.grads[name] = Field(extent, "device")
        run.grads[name].write(extent, own)
        maker = run.graph.producer.get(name)
        what = maker.describe() if maker is not None else f"'{name}'"
        pending = self.peers.sum(f"the gradient of {what}", own, step.axes)
        if step.later:
            self.pending.append(pending)
        else:
            pending.wait()


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors, one after another."""
    parts = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    return torch.cat(parts) if len(parts) != 1 else parts[0].clone()


def unpack(payload: Tensor, shapes: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Tensor]:
    """The tensors of these shapes that a payload holds."""
    found, at = [], 0
    for shape, dtype in shapes:
        size = dtype.itemsize
        for n in shape:
            size *= n
        piece = payload[at : at + size]
        at += size
        if piece.storage_offset() * piece.element_size() % dtype.itemsize:
            piece = piece.clone()  # a view must begin where its type may
        found.append(piece.view(dtype).reshape(tuple(shape)))
    return found
