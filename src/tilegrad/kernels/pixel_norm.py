"""Layer norm over the channels of each pixel, on a GPU, by a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from .base import Kernel, first_result
from .triton import usable

LONGEST = 4096  # channels: a pixel is held in registers


class PixelNorm(Kernel):
    chain = (frozenset({"layer_norm"}),)
    devices = frozenset({"cuda"})
    dtypes = frozenset({"bfloat16", "float16"})

    def accepts(self, calls: Sequence[Call]) -> bool:
        length = calls[0].attr("normalized_shape")
        return len(length) == 1 and length[0] <= LONGEST

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        call, x = calls[0], tiles[0][0]
        if not usable(x) or not x.is_contiguous():
            return first_result(call, tiles[0], place, x.device)
        numbers = (tiles[0][call.index[name]] if name in call.index else None for name in ("weight", "bias"))
        found: Tensor = _PixelNorm.apply(x, *numbers, float(call.attr("eps", 1e-5)))  # type: ignore[no-untyped-call]
        return found


class _PixelNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        from .triton.pixel_norm import normalise

        found, mean, root = normalise(x.view(-1, x.shape[-1]), weight, bias, eps)
        ctx.save_for_backward(x, weight, mean, root)
        return found.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from .triton.pixel_norm import gradients

        x, weight, mean, root = ctx.saved_tensors
        rows = (-1, x.shape[-1])
        of_x, by_weight, by_bias = gradients(grad.contiguous().view(rows), x.view(rows), weight, mean, root)
        needs = ctx.needs_input_grad
        return (
            of_x.view(x.shape) if needs[0] else None,
            by_weight.to(weight.dtype) if needs[1] else None,
            by_bias.to(grad.dtype) if needs[2] else None,
            None,
        )
