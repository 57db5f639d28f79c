"""Losses. Unreduced they are local; reduced over the image they become a loss map and sums over it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..ir import Build, TensorType
from ..region import POINT
from .base import Call, Op, Place, Read, Reads, Sample, Weighted, along, pointwise, whole
from .registry import op

NONE, MEAN = 0, 1  # ATen's reduction codes; 2 is the sum


class _Loss(Op):
    flops_each = 8.0

    def unreduced(self, call: Call, build: Build, shape: Sequence[int]) -> str:
        attrs = {**call.node.attrs, "reduction": NONE}
        slots = [(i.arg, i.value) for i in call.node.inputs]
        return build.emit(call.node.op, slots, TensorType(tuple(shape), call.out.dtype), attrs, call.node.target)


@op(
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "kl_div",
    "binary_cross_entropy_with_logits", "soft_margin_loss",
)  # fmt: skip
class ElementwiseLoss(_Loss):
    def reads(self, call: Call) -> Reads | None:
        if call.attr("reduction", MEAN) != NONE:
            return None
        return tuple(pointwise(t.shape, call.out.shape) for t in call.inputs)

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        reduction = call.attr("reduction", MEAN)
        if reduction == NONE:
            return None
        each = self.unreduced(call, build, np.broadcast_shapes(*(t.shape for t in call.inputs[:2])))
        name = "mean" if reduction == MEAN else "sum"
        return build.emit(name, [("self", each)], call.out, {}, f"aten.{name}.default")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        image = (2, 3, 5, 6)
        for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
            yield Sample(lambda x, y, f=f: f(x, y), (image, image), f.__name__)
            yield Sample(lambda x, y, f=f: f(x, y, reduction="none"), (image, image), f"{f.__name__} map")
        yield Sample(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (image, image), "bce")
        yield Sample(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="sum"), (image, image))
        yield Sample(
            lambda x, y: 1 - 2 * (x.sigmoid() * y).sum() / (x.sigmoid().sum() + y.abs().sum() + 1),
            (image, image),
            "dice",
        )


@op("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd")
class ClassLoss(_Loss):
    """Classes along dimension 1; targets are class indices, or probabilities shaped like the input."""

    def _dense_target(self, call: Call) -> bool:
        return call.inputs[1].shape == call.inputs[0].shape

    def reads(self, call: Call) -> Reads | None:
        rank = len(call.inputs[0].shape)
        if call.attr("reduction", MEAN) != NONE or rank < 2:
            return None
        scores = along(call, [1], keep=False)
        target = scores if self._dense_target(call) else tuple(Read(d, POINT) for d in range(rank - 1))
        return (scores, target, *(whole(t.shape) for t in call.inputs[2:]))

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        reduction, shape = call.attr("reduction", MEAN), call.inputs[0].shape
        if reduction == NONE or len(shape) < 2:
            return None
        each = self.unreduced(call, build, (shape[0], *shape[2:]))
        total = build.emit("sum", [("self", each)], call.out, {}, "aten.sum.default")
        if reduction != MEAN:
            return total
        if self._dense_target(call):
            attrs = {"other": float(prod(shape) // shape[1])}
            return build.emit("div", [("self", total)], call.out, attrs, "aten.div.Scalar")
        weight = call.arg("weight")
        slots = [("target", call.node.inputs[1].value)] + ([("weight", weight)] if weight else [])
        attrs = {"ignore_index": call.attr("ignore_index", -100)}
        shares = build.emit("class_weight", slots, build.type(each), attrs)
        share = build.emit("sum", [("self", shares)], call.out, {}, "aten.sum.default")
        return build.emit("div", [("self", total), ("other", share)], call.out, {}, "aten.div.Tensor")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes = ((2, 4, 5, 6), (2, 5, 6))
        yield Sample(lambda x, y: F.cross_entropy(x, y), shapes, "dense", (1,), 4)
        yield Sample(lambda x, y: F.cross_entropy(x, y, ignore_index=1), shapes, "ignore", (1,), 4)
        yield Sample(
            lambda x, y: F.cross_entropy(x, y, label_smoothing=0.25, reduction="sum"), shapes, "smooth", (1,), 4
        )
        yield Sample(lambda x, y, w: F.cross_entropy(x, y, w.abs() + 1), (*shapes, (4,)), "weights", (1,), 4)
        yield Sample(lambda x, y: F.cross_entropy(x, y, reduction="none"), shapes, "map", (1,), 4)
        yield Sample(lambda x, y: F.nll_loss(x.log_softmax(1), y), shapes, "nll", (1,), 4)
        yield Sample(lambda x, y: F.cross_entropy(x, y.softmax(1)), ((2, 4, 5, 6), (2, 4, 5, 6)), "probabilities")
        yield Sample(lambda x, y: F.cross_entropy(x.mean((2, 3)), y), ((2, 4, 5, 6), (2,)), "not dense", (1,), 4)


@op("class_weight")
class ClassWeight(Weighted):
    """How much each target counts in a mean: its class's weight, nothing where it is ignored."""

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        target = tiles[0]
        counts = target != call.attr("ignore_index")
        if len(tiles) == 1:
            return counts.to(getattr(torch, call.out.dtype))
        weight = tiles[1]
        return torch.where(counts, weight[torch.where(counts, target, 0)], 0)
