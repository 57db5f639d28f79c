"""Convolution in one, two and three dimensions. Channels are not split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..region import Slide
from .base import Call, Op, Place, Reads, Sample, imagelike, whole
from .registry import op

CONV = (F.conv1d, F.conv2d, F.conv3d)
Options = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


def windows(call: Call) -> tuple[Slide, ...]:
    kernel = call.inputs[call.index["weight"]].shape[2:]
    axes = len(kernel)
    stride, dilation = call.tuple("stride", axes, 1), call.tuple("dilation", axes, 1)
    if isinstance(call.attr("padding"), str):
        # "same" pads the total of dilation*(k-1), the odd one after; "valid" nothing.
        totals = [d * (k - 1) if call.attr("padding") == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        pads = [(t // 2, t - t // 2) for t in totals]
    else:
        pads = [(p, p) for p in call.tuple("padding", axes, 0)]
    return tuple(Slide(k, s, b, a, d) for k, s, (b, a), d in zip(kernel, stride, pads, dilation, strict=True))


@op("conv1d", "conv2d", "conv3d")
class Conv(Op):
    dense = True
    fresh_gradient = True
    gradient_alone = True
    pads = True

    def reads(self, call: Call) -> Reads:
        rest = (whole(t.shape) for t in call.inputs[1:])
        return (imagelike(call, windows(call)), *rest)

    def flops(self, call: Call) -> float:
        weight = call.inputs[call.index["weight"]].shape
        return 2.0 * prod(weight[1:])

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        x, weight = tiles[0], tiles[1]
        bias = tiles[call.index["bias"]] if "bias" in call.index else None
        x, options = self.framed(call, x, place)
        if place.unread:
            batch = x if x.dim() > self.spatial + 1 else x[None]
            shape = (*batch.shape[:1], *place.out.shape[-self.spatial - 1 :])
            found: Tensor = UnreadConv.apply(batch, weight, bias, shape, *options)  # type: ignore[no-untyped-call]
            return found if batch is x else found[0]
        return CONV[self.spatial - 1](x, weight, bias, *options)

    def framed(self, call: Call, x: Tensor, place: Place) -> tuple[Tensor, Options]:
        """The tile with zeros around it that the convolution does not pad itself, and what to call it with."""
        key = place.out, place.reads[0]
        if key not in call.memo:
            slides, axes, padding, explicit = windows(call), self.spatial, [], []
            for a, slide in enumerate(slides):
                before, after = place.pad(call)[a - axes]
                size = place.reads[0][a - axes].clip(call.inputs[0].shape[a - axes]).size
                alike = size and slide.symmetric_is(before, size, place.out[a - axes].size)
                padding.append(before if alike else 0)
                explicit.append((0, 0) if alike else (before, after))
            frame = [p for pair in reversed(explicit) for p in pair] if any(map(any, explicit)) else []
            stride, dilation = [s.stride for s in slides], [s.dilation for s in slides]
            call.memo[key] = frame, (stride, padding, dilation, call.attr("groups", 1))
        frame, options = call.memo[key]
        return F.pad(x, frame) if frame else x, options

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w, b: F.conv2d(x, w, b, padding=1), ((2, 3, 9, 7), (4, 3, 3, 3), (4,)))
        yield Sample(lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0)), ((1, 2, 10, 11), (4, 2, 3, 2)), "stride")
        yield Sample(lambda x, w: F.conv2d(x, w, padding=2, dilation=2), ((1, 2, 11, 8), (2, 2, 3, 3)), "dilation")
        yield Sample(lambda x, w: F.conv2d(x, w, stride=3), ((1, 2, 10, 12), (2, 2, 2, 2)), "stride over kernel")
        yield Sample(lambda x, w: F.conv2d(x, w, padding="same", groups=2), ((1, 4, 8, 9), (4, 2, 4, 3)), "same")
        yield Sample(lambda x, w: F.conv2d(x, w, padding=3), ((1, 1, 5, 6), (1, 1, 2, 2)), "padding over kernel")
        yield Sample(lambda x, w: F.conv1d(x, w, padding=1, stride=2), ((2, 2, 13), (3, 2, 3)))
        yield Sample(lambda x, w: F.conv3d(x, w, padding=1), ((1, 2, 5, 6, 7), (2, 2, 3, 3, 3)))


class UnreadConv(Function):
    """A convolution that is differentiated without being run: its result is one element, repeated."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Sequence[int], *options: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        ctx.options = options
        return x.new_empty(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.options
        rest = (stride, padding, dilation, False, [0] * len(stride), groups, ctx.needs_input_grad[:3])
        return (*torch.ops.aten.convolution_backward(grad, x, weight, ctx.bias, *rest), *(None for _ in range(5)))
