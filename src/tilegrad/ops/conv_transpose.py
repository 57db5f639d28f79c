"""Transposed convolution. A box of the output reads the inputs whose stamps touch it; the rest is cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..region import Spread
from .base import Call, Op, Place, Reads, Sample, imagelike, whole
from .conv import gradients
from .frame import framed, unframed
from .registry import op

CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
TransposeOptions = tuple[list[int], list[int], int]  # stride, dilation, groups


def windows(call: Call) -> tuple[Spread, ...]:
    kernel = call.inputs[call.index["weight"]].shape[2:]
    axes = len(kernel)
    stride, padding = call.tuple("stride", axes, 1), call.tuple("padding", axes, 0)
    extra, dilation = call.tuple("output_padding", axes, 0), call.tuple("dilation", axes, 1)
    return tuple(map(Spread, kernel, stride, padding, extra, dilation))


@op("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
class ConvTranspose(Op):
    dense = True
    fresh_gradient = True

    def reads(self, call: Call) -> Reads:
        rest = (whole(t.shape) for t in call.inputs[1:])
        return (imagelike(call, windows(call)), *rest)

    def flops(self, call: Call) -> float:
        weight = call.inputs[call.index["weight"]].shape
        return 2.0 * weight[0] * prod(weight[2:]) / prod(w.stride for w in windows(call))

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        x, weight = tiles[0], tiles[1]
        bias = tiles[call.index["bias"]] if "bias" in call.index else None
        axes, spreads = self.spatial, windows(call)
        front, tail, grow = [], [], []
        for a, spread in enumerate(spreads):
            size, out = x.shape[a - axes], place.out[a - axes]
            # The stamps of these inputs cover outputs from `first`; cut before and after, or add zeros.
            first = place.origin(call, 0, a - axes) * spread.stride - spread.before
            covered = max(0, (size - 1) * spread.stride + spread.reach) if size else 0
            front.append(out.lo - first)
            tail.append(first + covered - out.hi)
            grow.append(size)
        stride, dilation = [s.stride for s in spreads], [s.dilation for s in spreads]
        groups = call.attr("groups", 1)
        plain = all(grow) and all(f == t >= 0 for f, t in zip(front, tail, strict=True))
        if plain:
            return CONV_TRANSPOSE[axes - 1](x, weight, bias, stride, front, 0, groups, dilation)
        if all(grow) and min(*front, *tail) >= 0:
            cut = [p for pair in zip(reversed(front), reversed(tail), strict=True) for p in pair]
            return TileConvTranspose.apply(x, weight, bias, cut, (stride, dilation, groups))  # type: ignore[no-untyped-call]
        if all(grow):
            y = CONV_TRANSPOSE[axes - 1](x, weight, None, stride, 0, 0, groups, dilation)
        else:  # outputs that no input reaches: zeros, and the bias
            y = x.new_zeros((*x.shape[: -axes - 1], weight.shape[1] * groups, *(0 for _ in range(axes))))
            front, tail = [0] * axes, [-place.out[a - axes].size for a in range(axes)]
        y = F.pad(y, [-p for pair in zip(reversed(front), reversed(tail), strict=True) for p in pair])
        return y if bias is None else y + bias.view(-1, *(1 for _ in range(axes)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        conv = F.conv_transpose2d
        yield Sample(lambda x, w, b: conv(x, w, b, stride=2), ((2, 3, 5, 4), (3, 2, 2, 2), (2,)))
        yield Sample(lambda x, w: conv(x, w, stride=2, padding=1), ((1, 2, 5, 6), (2, 3, 3, 3)))
        yield Sample(lambda x, w: conv(x, w, stride=2, padding=1, output_padding=1), ((1, 2, 5, 6), (2, 3, 3, 3)))
        yield Sample(lambda x, w: conv(x, w, padding=1, dilation=2), ((1, 2, 6, 7), (2, 2, 3, 3)), "dilation")
        yield Sample(lambda x, w, b: conv(x, w, b, stride=4), ((1, 2, 4, 3), (2, 2, 2, 2), (2,)), "gaps")
        yield Sample(lambda x, w: conv(x, w, stride=2, groups=2), ((1, 4, 4, 3), (4, 1, 3, 3)), "groups")
        yield Sample(lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=2), ((1, 2, 6), (2, 2, 5)))
        yield Sample(lambda x, w: F.conv_transpose3d(x, w, stride=2), ((1, 2, 3, 3, 4), (2, 1, 2, 2, 2)))


class TileConvTranspose(Function):
    """A transposed convolution of which a tile wants the inner part: the rest is no part of the gradient either."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, cut: Sequence[int], options: TransposeOptions
    ) -> Tensor:
        stride, dilation, groups = options
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.cut, ctx.options = None if bias is None else list(bias.shape), cut, options
        y = CONV_TRANSPOSE[len(stride) - 1](x, weight, bias, stride, 0, 0, groups, dilation)
        return unframed(y, cut)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        stride, dilation, groups = ctx.options
        zeros, needs = [0] * len(stride), ctx.needs_input_grad[:3]
        options = (stride, zeros, dilation, True, zeros, groups)
        batch = grad.dim() - len(stride) > 1
        wide, tile = framed(grad, ctx.cut), x
        found = gradients(
            wide if batch else wide[None], tile if batch else tile[None], weight, ctx.bias, options, needs
        )
        of_x = found[0] if batch or found[0] is None else found[0][0]
        return of_x, *found[1:], None, None
