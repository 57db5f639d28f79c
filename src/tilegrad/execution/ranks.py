"""What a pass does with other ranks: halos exchanged, parts of reductions combined, gradients added up.

Rule D1  A value that is cut has one owner for every element. Forward, halos come from their owners before they are
         read; backward, gradients of halos go to their owners, which add them: one message to each peer.
Rule D2  What is not cut is the same on all ranks, and every rank computes it. Its gradient is a *share*: the sum over
         ranks is the gradient. The gradient of an output that all ranks have counts on the first of them alone.
Rule D3  A fold's parts are combined over ranks in their order, so all ranks have the same result to the last bit. Its
         gradient is added up over the same ranks.
Rule D4  Gradients of parameters are added up over all ranks (those of parameters that are cut over the ranks that share
         a box), begun while backward goes on. Those of what only the tail reads (`bounds.placement`, rule P5) the first
         rank alone has, and all others get its bits.
Rule D5  All ranks make the same calls in the same order, whether their boxes are empty or not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ops import Place
from ..region import Box
from ..schedule import Exchange, Finish, Strip, Sum
from .field import Field
from .messages import Messages, Peers, Pending, Row, named_dtypes
from .saved import fills

if TYPE_CHECKING:
    from .walk import Pass


class Ranks:
    def __init__(self, owner: Pass, peers: Peers):
        self._owner, self.peers = weakref.ref(owner), peers
        self.pending: list[Pending] = []
        self.dtypes = named_dtypes(owner.graph.value)

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
            margins = run.executor.region[value] != run.extent(value)
            if value in run.tensors and value not in run.values and margins:
                run.values[value] = field = run._field(value)  # the caller's tensor has no margins
                own = run.tensors[value].detach().to(run.device)
                if own.numel():
                    field.write(run.extent(value), own)
        for strip, tensor in self._swap(step, lambda strip: run.read(strip.value, strip.box)):
            run.write(strip.value, strip.box, tensor)

    def _return(self, step: Exchange) -> None:
        """Give the gradients of halos to their owners, and add what others give."""
        run = self.owner
        values = tuple(value for value in step.values if value in run.reached)
        gives, takes = (tuple(s for s in strips if s.value in values) for strips in (step.gives, step.takes))
        for strip, tensor in self._swap(Exchange(values, gives, takes, True), self._gradient_or_zero):
            run.add_gradient(strip.value, strip.box, tensor)

    def _gradient_or_zero(self, strip: Strip) -> Tensor:
        found = self.owner.gradient(strip.value, strip.box)
        return found if found is not None else self._zeros(strip.value, strip.box)

    def _zeros(self, name: str, box: Box) -> Tensor:
        return torch.zeros(box.shape, dtype=self.dtypes[name], device=self.owner.device)

    def _swap(self, step: Exchange, read: Callable[[Strip], Tensor]) -> list[tuple[Strip, Tensor]]:
        """Rule D1: one message to each peer."""
        messages = Messages.of(step, self.dtypes, self.owner.device)
        for strip, place in messages.gives:
            place.copy_(read(strip))
        self.peers.post(messages).wait()
        return messages.takes

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
        row = Row(like)
        rows = self.peers.gather(f"the parts of {fold.describe()}", row.pack(like), step.axes)
        parts = row.unpack(rows if len(there) == len(rows) else rows[there])
        run.totals[step.node] = op.combine_all(call, tuple(parts))

    def _part_like(self, step: Finish, box: Box) -> tuple[Tensor, ...]:
        """Zeros in the shape of another rank's part: what a rank without a part puts in."""
        run, fold = self.owner, self.owner.graph.node[step.node]
        call, op = run.executor.calls[step.node], run.executor.reduction(step.node)
        tile = torch.empty(box.shape, dtype=self.dtypes[fold.inputs[0].value], device="meta")
        sizes = zip(fold.reads[1:], op.beside(call, box), strict=True)
        others = [torch.empty(b.shape, dtype=self.dtypes[name], device="meta") for name, b in sizes]
        part = op.partial(call, tile, Place(run.extent(fold.outputs[0]), (box,)), *others)
        return tuple(torch.zeros(t.shape, dtype=t.dtype, device=run.device) for t in part)

    def _sum(self, step: Sum) -> None:
        """Rules D3 and D4."""
        run, name = self.owner, step.value
        if name not in run.reached:
            return
        extent = run.extent(name)
        own = self._gradient_or_zero(Strip(name, extent, 0))
        room = self.peers.room(own.numel(), own.dtype, step.axes)
        alone = name in run.leaves and own.numel() and own.is_contiguous() and fills(own)
        if room is not None:
            own = room.view(own.shape).copy_(own)
        elif not alone:
            own = own.clone()  # it is added to in place
        run.grads[name] = Field(extent, "device")
        run.grads[name].write(extent, own)
        maker = run.graph.producer.get(name)
        what = maker.describe() if maker is not None else f"'{name}'"
        tell = self.peers.broadcast if step.first else self.peers.sum
        pending = tell(f"the gradient of {what}", own, step.axes)
        if step.later:
            self.pending.append(pending)
        else:
            pending.wait()
