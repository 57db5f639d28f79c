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
from .channels import layout_of
from .frame import framed, unframed
from .registry import op

CONV = (F.conv1d, F.conv2d, F.conv3d)
FEW = 8  # channels: as many are a product of matrices
NARROW = 16  # channels: fewer are read element by element
HALF_RATE = 32  # channels at which a convolution reaches half of what it can
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
    by_channels = True
    fresh_gradient = True
    gradient_alone = True
    pads = True

    def reads(self, call: Call) -> Reads:
        rest = (whole(t.shape) for t in call.inputs[1:])
        return (imagelike(call, windows(call)), *rest)

    def flops(self, call: Call) -> float:
        weight = call.inputs[call.index["weight"]].shape
        return 2.0 * prod(weight[1:])

    def rate(self, call: Call) -> float:
        """The fewer channels of a group are read or made, the less of a product of matrices it is (measured on an H200
        in half precision: 3 channels 0.02 to 0.03, 64 0.5, 128 0.63, 256 and more 0.7)."""
        weight = call.inputs[call.index["weight"]].shape
        channels = min(weight[1], weight[0] // call.attr("groups", 1))
        return 0.78 * channels / (channels + HALF_RATE) if channels >= NARROW else 0.01 * channels

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        x, weight = tiles[0], tiles[1]
        bias = tiles[call.index["bias"]] if "bias" in call.index else None
        frame, options = self.options(call, place)
        apart = bool(frame) or (x.is_cuda and (bias is not None or has_few(weight)))
        if not place.unread and not (apart and torch.is_grad_enabled()):
            return CONV[self.spatial - 1](framed(x, frame), weight, bias, *options)
        batch = x if x.dim() > self.spatial + 1 else x[None]
        shape = (*batch.shape[:1], *place.out.shape[-self.spatial - 1 :]) if place.unread else None
        found: Tensor = TileConv.apply(batch, weight, bias, shape, frame, options)  # type: ignore[no-untyped-call]
        return found if batch is x else found[0]

    def options(self, call: Call, place: Place) -> tuple[list[int], Options]:
        """What must be padded beforehand, as `F.pad` takes it, and what to call the convolution with."""
        key = place.out, place.reads[0]
        if key not in call.memo:
            slides, axes, padding, frame = windows(call), self.spatial, [], list[int]()
            for a, slide in enumerate(slides):
                before, after = place.pad(call)[a - axes]
                size = place.reads[0][a - axes].clip(call.inputs[0].shape[a - axes]).size
                alike = size and slide.symmetric_is(before, size, place.out[a - axes].size)
                padding.append(before if alike else 0)
                frame = [0, 0, *frame] if alike else [before, after, *frame]
            stride, dilation = [s.stride for s in slides], [s.dilation for s in slides]
            call.memo[key] = frame if any(frame) else [], (stride, padding, dilation, call.attr("groups", 1))
        found: tuple[list[int], Options] = call.memo[key]
        return found

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


class TileConv(Function):
    """A convolution of which autograd keeps the tile, not a copy with zeros around it. Where only a gradient is wanted
    it has a `shape` and is not run: the result is one element, repeated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: Sequence[int] | None,
        frame: Sequence[int],
        options: Options,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else list(bias.shape)
        ctx.frame, ctx.options = frame, options
        if shape is not None:
            return x.new_empty(()).expand(shape)
        return CONV[len(options[0]) - 1](framed(x, frame), weight, bias, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        return (
            *conv_backward(grad, x, weight, ctx.bias, ctx.frame, ctx.options, ctx.needs_input_grad[:3]),
            *[None] * 3,
        )


def conv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Sequence[int] | None,
    frame: Sequence[int],
    options: Options,
    needs: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the tile, the weights and the bias, which has this shape."""
    stride, padding, dilation, groups = options
    how = (stride, padding, dilation, False, [0] * len(stride), groups)
    of_x, of_weight, of_bias = gradients(grad, framed(x, frame), weight, bias, how, needs)
    return None if of_x is None else unframed(of_x, frame), of_weight, of_bias


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, how: Sequence[Any], needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """As torch has them, but for a bias, and for few channels, on a GPU. `how`: what torch calls stride, padding and so
    on, transposed too."""
    apart = needs[2] and grad.is_cuda and layout_of(grad) != torch.contiguous_format
    mask = [*needs[:2], needs[2] and not apart]
    sums = channel_sums(grad) if apart else None  # first: its kernel works in a quarter of the gradient's memory
    few = mask[0] and grad.is_cuda and has_few(weight) and not how[3] and how[5] == 1
    few = few and layout_of(x) != torch.contiguous_format  # whatever a loss made of its gradient
    filled = _of_few(grad, x, weight, how) if few else None
    mask[0] = mask[0] and not few
    found = torch.ops.aten.convolution_backward(grad, x, weight, bias, *how, mask) if any(mask) else (None,) * 3
    of_x, of_weight, of_bias = found
    return filled if few else of_x, of_weight, sums if apart else of_bias


def has_few(weight: Tensor) -> bool:
    """Does a convolution, in half precision, make so few channels of a pixel (scores of classes) that cuDNN's kernel
    for the image's gradient is forty times as slow as others?"""
    return 1 < weight.shape[0] < FEW and weight.element_size() == 2 and weight[0, 0].numel() == 1


def _of_few(grad: Tensor, x: Tensor, weight: Tensor, how: Sequence[Any]) -> Tensor:
    """The image's gradient, as if there were more channels, which are zero."""
    more = FEW - weight.shape[0]
    grad, weight = (F.pad(t.movedim(at, -1), (0, more)).movedim(-1, at) for t, at in ((grad, 1), (weight, 0)))
    found: Tensor = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, False, False])[0]
    return found


def channel_sums(grad: Tensor) -> Tensor:
    """Over all but the channels."""
    return pixel_sums(grad.movedim(1, -1))


def pixel_sums(grad: Tensor) -> Tensor:
    """Over all but the last axis, whose numbers lie together: rows are added first, since a sum over the whole image at
    once leaves most of a GPU without work."""
    wide = torch.float32 if grad.element_size() < 4 else grad.dtype
    return grad.contiguous().flatten(0, -3).sum(0, dtype=wide).sum(0).to(grad.dtype)
