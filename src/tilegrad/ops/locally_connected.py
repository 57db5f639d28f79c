"""Local connection without shared weights, and the product with weights that cover the image. The weights live on
space, so a box of the output needs only its own box of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..region import POINT, Box, Slide, Whole
from .base import Call, Place, Read, Reads, Reduction, Sample, imagelike, whole
from .base import Op as _Op
from .registry import op


@torch.library.custom_op("tilegrad::locally_connected2d", mutates_args=())
def locally_connected2d(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Every output place with its own kernel: see `tilegrad.nn.LocallyConnected2d`."""
    patches, kernels = _patches(x, weight, stride), _kernels(weight)
    oh, ow = weight.shape[-2:]
    return (patches @ kernels).view(oh, ow, x.shape[0], weight.shape[0]).permute(2, 3, 0, 1).contiguous()


def _patches(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """For each place of the output the samples' windows: [places, n, c * kh * kw]."""
    kh, kw, oh, ow = weight.shape[-4:]
    windows = x.unfold(2, kh, stride).unfold(3, kw, stride)[:, :, :oh, :ow]  # n c oh ow kh kw
    return windows.permute(2, 3, 0, 1, 4, 5).reshape(oh * ow, x.shape[0], -1)


def _kernels(weight: Tensor) -> Tensor:
    """For each place its kernels: [places, c * kh * kw, out]."""
    out, _, _, c, kh, kw, oh, ow = weight.shape
    return weight.permute(6, 7, 3, 4, 5, 0, 1, 2).reshape(oh * ow, c * kh * kw, out)


@locally_connected2d.register_fake
def _(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0], *weight.shape[-2:]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    out, _, _, c, kh, kw, oh, ow = weight.shape
    of_places = grad.permute(2, 3, 0, 1).reshape(oh * ow, x.shape[0], out)
    of_x = of_weight = None
    if ctx.needs_input_grad[1]:
        found = _patches(x, weight, ctx.stride).transpose(1, 2) @ of_places  # places, c kh kw, out
        of_weight = found.view(oh, ow, c, kh, kw, out).permute(5, 2, 3, 4, 0, 1).reshape(weight.shape)
    if ctx.needs_input_grad[0]:
        windows = (of_places @ _kernels(weight).transpose(1, 2)).view(oh, ow, x.shape[0], c, kh, kw)
        windows = windows.permute(2, 3, 4, 5, 0, 1)  # n c kh kw oh ow
        of_x, s = torch.zeros_like(x), ctx.stride
        for u in range(kh):
            for v in range(kw):
                of_x[:, :, u : u + s * oh : s, v : v + s * ow : s][:, :, :oh, :ow] += windows[:, :, u, v]
    return of_x, of_weight, None


locally_connected2d.register_autograd(_differentiate, setup_context=_save)


@op("locally_connected2d")
class LocallyConnected(_Op):
    dense = True
    fresh_gradient = True

    def reads(self, call: Call) -> Reads:
        kh, kw = call.inputs[1].shape[4:6]
        stride = int(call.attr("stride", 1))
        image = imagelike(call, [Slide(k, stride, 0, 0, 1) for k in (kh, kw)])
        return image, (*whole(call.inputs[1].shape[:6]), Read(2, POINT), Read(3, POINT))

    def flops(self, call: Call) -> float:
        c, kh, kw = call.inputs[1].shape[3:6]
        return 2.0 * c * kh * kw

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w: locally_connected2d(x, w), ((2, 3, 7, 8), (4, 1, 1, 3, 3, 2, 5, 7)))
        yield Sample(lambda x, w: locally_connected2d(x, w, 2), ((1, 2, 9, 8), (3, 1, 1, 2, 3, 2, 4, 4)), "stride")


@torch.library.custom_op("tilegrad::spatial_linear", mutates_args=())
def spatial_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`y[n, k] = sum over c, i, j of weight[k, c, i, j] * x[n, c, i, j]`."""
    return x.flatten(1) @ weight.flatten(1).T


@spatial_linear.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_x = (grad @ weight.flatten(1)).view(x.shape) if ctx.needs_input_grad[0] else None
    of_weight = (grad.T @ x.flatten(1)).view(weight.shape) if ctx.needs_input_grad[1] else None
    return of_x, of_weight


spatial_linear.register_autograd(_differentiate_product, setup_context=_save_product)


@op("spatial_linear")
class SpatialLinearOp(Reduction):
    """The product of an image with weights that cover it: boxes give parts of the sum, each with its own weights."""

    dense = True

    def reads(self, call: Call) -> Reads:
        image = (Read(0, POINT), *(Read(None, Whole(n, 1)) for n in call.inputs[0].shape[1:]))
        return image, (Read(1, POINT), *(Read(None, Whole(n, 1)) for n in call.inputs[1].shape[1:]))

    def flops(self, call: Call) -> float:
        _, c, h, w = call.inputs[1].shape
        return 2.0 * c * h * w

    def tied(self, call: Call) -> tuple[tuple[int, int, int], ...]:
        return (1, 2, 2), (1, 3, 3)

    def beside(self, call: Call, box: Box) -> tuple[Box, ...]:
        return (Box((*Box.full(call.inputs[1].shape)[:2], *box[2:])),)

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        return (spatial_linear(tile, others[0]),)

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        return spatial_linear(tile, others[0])

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return spatial_linear(*tiles)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w: spatial_linear(x, w), ((2, 3, 5, 6), (4, 3, 5, 6)))
        yield Sample(lambda x, w: spatial_linear(x.relu(), w).relu(), ((1, 2, 7, 3), (5, 2, 7, 3)), "inside")
