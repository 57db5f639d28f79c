"""A convolution and a batch norm that goes by what it remembers: one convolution, with other numbers.

`(conv(x) - mean) * scale + shift` is a convolution with weights `weight * scale`: what is normalised elsewhere is not
even made. The gradients of the norm's own numbers are sums over those of the weights instead of the image. In half
precision, where gradients of weights are rounded, they would lose by that: there norms stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.conv import CONV, Conv, Options, conv_backward
from ..ops.frame import framed
from ..ops.pointwise import RECTIFIERS
from .base import CONVOLUTIONS, Kernel, first_result, op_of, whole_place
from .in_place_activation import is_by_result, rectify_

FROZEN = frozenset({"batch_norm"})


class FoldedNorm(Kernel):
    chain = (CONVOLUTIONS, FROZEN)
    dtypes = frozenset({"float32", "float64"})

    def accepts(self, calls: Sequence[Call]) -> bool:
        conv, norm = calls[:2]
        known = all(norm.arg(name) is not None for name in ("running_mean", "running_var"))
        batch = len(conv.out.shape) == len(conv.inputs[1].shape)
        return known and batch and not norm.attr("training", False)

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        (conv, norm), (x, weight, *bias) = calls[:2], tiles[0]
        place = place or whole_place(conv, x.device)
        if not is_worth_it(place.out.volume, weight.numel()):
            return op_of(norm).run(norm, [first_result(conv, tiles[0], place, x.device), *tiles[1]], place)
        op = op_of(conv)
        assert isinstance(op, Conv)
        names = ("weight", "bias", "running_mean", "running_var")
        numbers = [tiles[1][norm.index[name] - 1] if name in norm.index else None for name in names]
        rest = (bias[0] if bias else None, *numbers, norm.attr("eps", 1e-5), *op.options(conv, place))
        found: Tensor = _FoldedConv.apply(x, weight, *rest)  # type: ignore[no-untyped-call]
        return found


class FoldedNormActivation(Kernel):
    """The same, and a rectifier."""

    chain = (CONVOLUTIONS, FROZEN, RECTIFIERS)
    dtypes = FoldedNorm.dtypes

    def accepts(self, calls: Sequence[Call]) -> bool:
        return FoldedNorm().accepts(calls) and is_by_result(calls[2])

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        return rectify_(calls[2], FoldedNorm().run(calls, tiles, place))


def is_worth_it(made: int, weights: int) -> bool:
    """To change the weights costs passes over them and a dozen small calls; to normalise, passes over what is made."""
    return made >= 2 * weights + 2**14


class _FoldedConv(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gamma: Tensor | None,
        beta: Tensor | None,
        mean: Tensor,
        var: Tensor,
        eps: float,
        frame: Sequence[int],
        options: Options,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, gamma, mean, var)
        ctx.eps, ctx.frame, ctx.options = eps, frame, options
        _, scale = _scales(gamma, var, eps)
        shift = (-mean if bias is None else bias - mean) * scale
        shift = shift if beta is None else shift.add_(beta)
        return CONV[x.dim() - 3](framed(x, frame), weight * _on_outputs(scale, weight), shift, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, gamma, mean, var = ctx.saved_tensors
        root, scale = _scales(gamma, var, ctx.eps)
        needs, each = ctx.needs_input_grad, _on_outputs(scale, weight)
        mask = [needs[0], needs[1] or needs[3], any(needs[2:5])]
        rest = (list(mean.shape), ctx.frame, ctx.options, mask)
        of_x, by_weight, total = conv_backward(grad, x, weight * each, *rest)
        of_gamma = of_weight = of_bias = None
        if by_weight is not None and total is not None and needs[3]:
            along = torch.linalg.vecdot(by_weight.flatten(1), weight.flatten(1))
            of_gamma = along.addcmul_(total, -mean if bias is None else bias - mean).mul_(root)
        if by_weight is not None and needs[1]:
            of_weight = by_weight.mul_(each)
        if total is not None and needs[2]:
            of_bias = total * scale
        return of_x, of_weight, of_bias, of_gamma, total if needs[4] else None, *(None for _ in range(5))


def _scales(gamma: Tensor | None, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """One over the deviation, and what each channel is multiplied with."""
    root = torch.rsqrt(var + eps)
    return root, root if gamma is None else root * gamma


def _on_outputs(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *(1 for _ in weight.shape[1:]))
