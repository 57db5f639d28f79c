"""A convolution with its bias and its rectifier in one kernel of cuDNN: one pass over what it makes, instead of three.

In half precision the bias is added before anything is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.conv import Conv, Options, conv_backward
from ..ops.frame import framed
from .base import Kernel, first_result, op_of, whole_place
from .in_place_activation import rectify_

MOST = 2**31  # elements: from here on it takes a kernel a hundred times as slow, where torch's own has a way around


class CudnnConvolution(Kernel):
    chain = (frozenset({"conv2d", "conv3d"}), frozenset({"relu"}))
    devices = frozenset({"cuda"})
    dtypes = frozenset({"bfloat16", "float16"})  # of single precision it takes other kernels than torch does

    def accepts(self, calls: Sequence[Call]) -> bool:
        return len(calls[0].out.shape) == len(calls[0].inputs[1].shape)  # a batch

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        x, weight, *bias = tiles[0]
        made = calls[0].out.size if place is None else place.out.volume
        able = x.is_cuda and torch.backends.cudnn.enabled and 0 < x.numel() < MOST and made < MOST
        if not able:
            return rectify_(calls[1], first_result(calls[0], tiles[0], place, x.device))
        op = op_of(calls[0])
        assert isinstance(op, Conv)
        how = op.options(calls[0], place or whole_place(calls[0], x.device))
        made = RectifiedConv.apply(x, weight, bias[0] if bias else None, *how)  # type: ignore[no-untyped-call]
        found: Tensor = Rectified.apply(made)  # type: ignore[no-untyped-call]
        return found


class RectifiedConv(Function):
    """As `TileConv`, but what it makes is rectified already."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, frame: Sequence[int], options: Options
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        ctx.frame, ctx.options = frame, options
        found: Tensor = torch.cudnn_convolution_relu(framed(x, frame), weight, bias, *options)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return *conv_backward(grad, x, weight, ctx.bias, ctx.frame, ctx.options, ctx.needs_input_grad[:3]), None, None


class Rectified(Function):
    """The rectifier of what is rectified already: there is nothing to make, and its gradient is told from the result.
    Apart from the convolution, so that autograd can let go of the gradient that came before the convolution's own are
    made: together they would be one tensor more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, x, 0.0)
