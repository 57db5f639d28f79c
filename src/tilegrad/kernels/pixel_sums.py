"""Numbers that all pixels share, one for each channel: a linear map's bias, a layer's scale. Their gradients are sums
over all pixels, which on a GPU torch makes in one step that leaves most of it without work; here in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.conv import pixel_sums
from .base import Kernel, first_result

HALF = frozenset({"bfloat16", "float16"})  # of single precision torch's own is as fast


class BiasedLinear(Kernel):
    chain = (frozenset({"linear"}),)
    devices = frozenset({"cuda"})
    dtypes = HALF

    def accepts(self, calls: Sequence[Call]) -> bool:
        return len(calls[0].inputs) == 3 and len(calls[0].out.shape) > 2

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        x, weight, bias = tiles[0]
        if not x.is_cuda or not x.dtype == weight.dtype == bias.dtype:
            return first_result(calls[0], tiles[0], place, x.device)
        found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found


class ScaledChannels(Kernel):
    chain = (frozenset({"mul"}),)
    devices = frozenset({"cuda"})
    dtypes = HALF

    def accepts(self, calls: Sequence[Call]) -> bool:
        shapes = [t.shape for t in calls[0].inputs]
        return len(shapes) == 2 and sorted(map(len, shapes))[0] == 1 and sorted(map(len, shapes))[1] > 2

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        scale, x = sorted(tiles[0], key=lambda t: t.dim())
        if not x.is_cuda or x.dtype != scale.dtype or scale.shape[0] != x.shape[-1]:
            return first_result(calls[0], tiles[0], place, x.device)
        found: Tensor = _Scaled.apply(x, scale)  # type: ignore[no-untyped-call]
        return found


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            grad @ weight if of_x else None,
            grad.flatten(0, -2).t() @ x.flatten(0, -2) if of_weight else None,
            pixel_sums(grad) if of_bias else None,
        )


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        of_x, of_scale = ctx.needs_input_grad
        return grad * scale if of_x else None, pixel_sums(grad * x) if of_scale else None
