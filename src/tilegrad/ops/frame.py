"""Zeros around a tile, and parts of a tile: each is what the other's gradient needs. Layouts survive both.

A `frame` says how much lies before and behind along each dimension, the last one first, as `F.pad` takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .channels import layout_of

FEW = 2**16  # elements


def framed(x: Tensor, frame: Sequence[int]) -> Tensor:
    """`F.pad`; but that first fills all of it, which is worth some calls to avoid where there is much to fill."""
    if not any(frame):
        return x
    if x.numel() < FEW:
        return F.pad(x, frame)
    sides = [(-1 - at // 2, frame[at], frame[at + 1]) for at in range(0, len(frame), 2)]
    shape = list(x.shape)
    for dim, before, after in sides:
        shape[dim] += before + after
    found = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout_of(x))
    inner = found
    for dim, before, after in sides:
        size = inner.shape[dim]
        if before:
            inner.narrow(dim, 0, before).zero_()
        if after:
            inner.narrow(dim, size - after, after).zero_()
        inner = inner.narrow(dim, before, size - before - after)
    inner.copy_(x)
    return found


def unframed(x: Tensor, frame: Sequence[int]) -> Tensor:
    """A view of what lies within the frame."""
    for at in range(0, len(frame), 2):
        if frame[at] or frame[at + 1]:
            dim = -1 - at // 2
            x = x.narrow(dim, frame[at], x.shape[dim] - frame[at] - frame[at + 1])
    return x


def cropped(x: Tensor, frame: Sequence[int]) -> Tensor:
    """The same to autograd, which by itself would make a gradient that lies as torch's default has it: channels first.
    From there on all that meets others would be copied."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return unframed(x, frame)
    found: Tensor = _Cropped.apply(x, tuple(frame))  # type: ignore[no-untyped-call]
    return found


class _Cropped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frame: Sequence[int]) -> Tensor:
        ctx.frame = frame
        return unframed(x, frame).detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return framed(grad, ctx.frame), None
