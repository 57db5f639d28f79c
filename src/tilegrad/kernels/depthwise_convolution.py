"""A convolution that has a kernel for each channel, on a GPU, by a kernel of ours: it waits for memory alone, and needs
no zeros around a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.channels import layout_of
from ..ops.conv import channel_sums, windows
from .base import Kernel, first_result, whole_place
from .triton import MOST_ROWS, usable

MOST_TAPS = 128  # of a kernel, whose lines are unrolled


class DepthwiseConvolution(Kernel):
    chain = (frozenset({"conv2d"}),)
    devices = frozenset({"cuda"})
    dtypes = frozenset({"bfloat16", "float16"})  # of single precision torch's own is as fast

    def accepts(self, calls: Sequence[Call]) -> bool:
        call = calls[0]
        weight = call.inputs[1].shape
        batch, channels = len(call.out.shape) == len(weight), call.inputs[0].shape[-3]
        one_each = weight[0] == channels == call.attr("groups", 1) > 1
        return batch and one_each and all(w.stride == 1 for w in windows(call)) and prod(weight[2:]) <= MOST_TAPS

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        call, (x, weight, *bias) = calls[0], tiles[0]
        if not usable(x) or layout_of(x) == torch.contiguous_format or (place is not None and place.unread):
            return first_result(call, tiles[0], place, x.device)
        here = place or whole_place(call, x.device)
        if x.shape[0] * max(x.shape[-2], here.out.shape[-2]) > MOST_ROWS:
            return first_result(call, tiles[0], place, x.device)
        before = tuple(pad for pad, _ in here.pad(call)[-2:])
        rest = tuple(here.out.shape[-2:]), before, tuple(w.dilation for w in windows(call))
        found: Tensor = _Depthwise.apply(x, weight, bias[0] if bias else None, *rest)  # type: ignore[no-untyped-call]
        return found


class _Depthwise(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        size: tuple[int, int],
        before: tuple[int, int],
        dilation: tuple[int, int],
    ) -> Tensor:
        from .triton.depthwise import convolve

        ctx.save_for_backward(x, weight)
        ctx.how = before, dilation
        return convolve(x, weight, bias, size, before, dilation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from .triton.depthwise import of_image, of_weight

        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        of_bias = channel_sums(grad) if ctx.needs_input_grad[2] else None
        by_weight = of_weight(grad, x, weight.shape[2:], *ctx.how) if ctx.needs_input_grad[1] else None
        of_x = of_image(grad, weight, x.shape[2:], *ctx.how) if ctx.needs_input_grad[0] else None
        return of_x, None if by_weight is None else by_weight.to(weight.dtype), of_bias, None, None, None
