"""The autograd functions of tiled execution: seams between tiles, and shares of a gradient.

Rule R1  A seam joins what a tile made with the halos it received. In backward it first adds the gradients that later
         tiles left for the halos it gave, then leaves the gradients of the halos it received for earlier tiles. Every
         gradient is thus complete when it is used.
Rule R2  Halos are constants to autograd: their gradients travel through the session's shelf, tile by tile.
Rule R3  In gather mode tiles overlap: along an axis that an input has not (a weight has none) a tile answers for its
         share of the output only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops.channels import layout_of
from ..region import Box
from ..schedule import Halo
from .prepared import TileJoin


@dataclass
class Seam:
    """One value of one tile: its join, the halos it received, and where gradients of halos are left."""

    join: TileJoin
    received: list[Tensor]
    take: Callable[[Halo], Tensor | None]  # the gradient that the tile to which a halo was given left
    leave: Callable[[Halo, Tensor], None]  # leave a copy of a received halo's gradient for the tile before
    fresh: bool = False  # does the gradient arrive in memory that nobody else reads?

    def assemble(self, own: Tensor | None) -> Tensor:
        parts = own if own is not None and own.numel() else None
        for (halo, _), strip in zip(self.join.receives, self.received, strict=True):
            parts = strip if parts is None else torch.cat([strip, parts], halo.dim)
        assert parts is not None
        return parts


class JoinFunction(Function):
    """`own -> (held, token)`; the token makes backward run even if nothing in this tile reads the value."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, own: Tensor | None, seam: Seam) -> tuple[Tensor, Tensor]:
        ctx.seam = seam
        ctx.set_materialize_grads(False)
        ctx.has_own = own is not None
        held = seam.assemble(own)
        seam.received = []
        if held is own:
            held = held.view_as(held)
        return held, anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _token: Tensor | None) -> tuple[None, Tensor | None, None]:
        seam: Seam = ctx.seam
        join = seam.join
        given = [(at, left) for halo, at in join.gives if (left := seam.take(halo)) is not None]
        if given:
            grad = _writable(grad, seam, given[0][1])
            for at, left in given:
                grad[at] += left
        if grad is None:
            return None, None, None
        for halo, at in join.receives:
            seam.leave(halo, grad[at])
        return None, grad[join.own] if ctx.has_own else None, None


def _writable(grad: Tensor | None, seam: Seam, like: Tensor) -> Tensor:
    """A gradient of the held box that may be written to."""
    if grad is None:
        shape, room = seam.join.step.held.shape, {"dtype": like.dtype, "device": like.device}
        return torch.empty(shape, memory_format=layout_of(like), **room).zero_()  # type: ignore[call-overload]
    return grad if seam.fresh and grad._is_view() is False else grad.clone()


class OwnedFunction(Function):
    """Run a node so that each input's gradient comes from the part of the output that this tile answers for."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[Tensor]], Tensor], answers: Sequence[Box], *inputs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        needs = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(need) for t, need in zip(inputs, needs, strict=True)]
            result = run(leaves)
        ctx.inner, ctx.leaves, ctx.answers, ctx.needs = result, leaves, answers, needs
        return result.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        found: list[Tensor | None] = [None] * len(ctx.leaves)
        if grad is None or not ctx.inner.requires_grad:
            return (None, None, *found)
        for part in dict.fromkeys(ctx.answers):
            at = [i for i, need in enumerate(ctx.needs) if need and ctx.answers[i] == part]
            if at:
                leaves = [ctx.leaves[i] for i in at]
                grads = torch.autograd.grad(ctx.inner, leaves, _only(grad, part), retain_graph=True, allow_unused=True)
                for i, g in zip(at, grads, strict=True):
                    found[i] = g
        ctx.inner = None
        return (None, None, *found)


def _only(grad: Tensor, part: Box) -> Tensor:
    if part.shape == tuple(grad.shape):
        return grad
    masked = torch.zeros_like(grad)
    masked[part.slices] = grad[part.slices]
    return masked
