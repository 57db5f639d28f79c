"""Convolutions of the tail whose channels ranks share (`bounds.placement`, rule P6).

Forward each rank makes some channels, and all gather them. Backward each makes the gradient of its rows of the weights,
of which it tells the others, and its share of the image's gradient, which are added up. So what a step does with large
weights is divided, though every rank has whole maps. What lies between such layers every rank computes, forward and
back: gradients of weights there are the first rank's all the same, which tells them (rule D4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.conv import CONV, Conv, Options, conv_backward
from ..ops.frame import framed
from ..region import Box
from .buckets import Arrivals

if TYPE_CHECKING:
    from .executor import Executor
    from .rank_pass import RankPass


@dataclass(frozen=True)
class SharedConv:
    """`at`: which of `count` ranks this is. `of_x`, `of_weight`: is a gradient wanted? All ranks say the same, although
    autograd, on ranks to which weights between such layers give no gradient, may want less."""

    call: Call
    op: Conv
    axes: frozenset[str]
    at: int
    count: int
    of_x: bool
    of_weight: bool

    @cached_property
    def weight(self) -> str:
        return self.call.node.reads[self.call.index["weight"]]

    @cached_property
    def size(self) -> int:
        """Channels that are made."""
        return self.call.inputs[self.call.index["weight"]].shape[0]

    @cached_property
    def most(self) -> int:
        """Channels of a rank; the last ranks may have fewer, or none."""
        return -(-self.size // self.count)

    @cached_property
    def mine(self) -> slice:
        return slice(min(self.size, self.at * self.most), min(self.size, (self.at + 1) * self.most))

    @cached_property
    def how(self) -> tuple[list[int], Options]:
        out = Box.full(self.call.out.shape)
        return self.op.options(self.call, Place(out, tuple(self.op.needs(self.call, out) or ())))

    def run(self, run: RankPass, tensors: list[Tensor]) -> tuple[Tensor]:
        x, weight = tensors[:2]
        bias = tensors[self.call.index["bias"]] if "bias" in self.call.index else None
        anchor = run.arrivals.anchor if self.of_x or self.of_weight else None
        batch = x if x.dim() > self.op.spatial + 1 else x[None]
        found: Tensor = _ByChannels.apply(anchor, batch, weight, bias, self, run.arrivals)  # type: ignore[no-untyped-call]
        return (found if batch is x else found[0],)

    def channels(self, arrivals: Arrivals, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """All of them."""
        frame, options = self.how
        spatial = self.call.out.shape[-self.op.spatial :]
        part = x.new_empty((len(x), self.most, *spatial))
        mine = self.mine.stop - self.mine.start
        if mine:
            some = bias[self.mine] if bias is not None else None
            made = CONV[self.op.spatial - 1](framed(x, frame), weight[self.mine], some, *options)
            part = made if mine == self.most else torch.cat([made, part[:, mine:]], 1)
        rows = arrivals.peers.gather(f"the channels of {self.call.node.describe()}", part, self.axes)
        return rows.movedim(0, 1).reshape(len(x), -1, *spatial)[:, : self.size]

    def back_to_x(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """This rank's share."""
        frame, options = self.how
        if self.mine.start == self.mine.stop:
            return torch.zeros_like(x)
        needs = (True, False, False)
        found, _, _ = conv_backward(grad[:, self.mine], x, weight[self.mine], None, frame, options, needs)
        assert found is not None
        return found.contiguous()

    def tell_rows(self, arrivals: Arrivals, grad: Tensor, x: Tensor, weight: Tensor) -> None:
        """Of the weights' gradient, and that others tell theirs."""
        frame, options = self.how
        size, peers = self.count * self.most * weight[0].numel(), arrivals.peers
        room = peers.room(size, weight.dtype, self.axes)
        flat = torch.empty(size, dtype=weight.dtype, device=weight.device) if room is None else room
        if self.mine.start < self.mine.stop:
            needs = (False, True, False)
            _, rows, _ = conv_backward(grad[:, self.mine], x, weight[self.mine], None, frame, options, needs)
            assert rows is not None
            flat.view(-1, *weight.shape[1:])[self.mine].copy_(rows)
        arrivals.found[self.weight] = flat[: weight.numel()].view(weight.shape)
        arrivals.pending.append(peers.spread(f"the gradient of '{self.weight}'", flat, self.axes))


class _ByChannels(Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shared: SharedConv,
        arrivals: Arrivals,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.known = shared, arrivals
        return shared.channels(arrivals, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (shared, arrivals) = ctx.saved_tensors, ctx.known
        pending, of_x = None, None
        if shared.of_x:
            of_x = shared.back_to_x(grad, x, weight)
            what = f"the gradient of what {shared.call.node.describe()} reads"
            pending = arrivals.peers.sum(what, of_x, shared.axes)
        if shared.of_weight:
            shared.tell_rows(arrivals, grad, x, weight)
        of_bias = grad.sum([0, *range(2, grad.dim())]) if ctx.needs_input_grad[3] else None
        if pending is not None:
            pending.wait()
        return None, of_x, None, of_bias, None, None


def shared_convs(executor: Executor, needs: frozenset[str]) -> dict[str, SharedConv]:
    """By node."""
    seat, found = executor.schedule.seat, dict[str, SharedConv]()
    if seat is None:
        return found
    for name in seat.shared:
        call, op = executor.calls[name], executor.ops[name]
        assert isinstance(op, Conv)
        x, weight = call.node.reads[:2]
        found[name] = SharedConv(call, op, seat.axes, *seat.place, x in needs, weight in needs)
    return found
