"""A convolution or a norm, and its activation: which is made where the other's result lies.

What these make is not needed for their backward, and a rectifier's backward needs its own result only. So there is one
tensor instead of two, and one pass over memory less.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from ..ops import Call, Place
from ..ops.pointwise import RECTIFIERS
from .base import CONVOLUTIONS, Kernel, first_result


class InPlaceActivation(Kernel):
    chain = (CONVOLUTIONS | {"normalize", "batch_norm"}, RECTIFIERS)

    def accepts(self, calls: Sequence[Call]) -> bool:
        # Batch norm in training also writes to its buffers.
        return not calls[0].attr("training", False) and is_by_result(calls[1])

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        return rectify_(calls[1], first_result(calls[0], tiles[0], place, tiles[0][0].device))


def is_by_result(call: Call) -> bool:
    """Can the gradient be told from what is made? Of a leaky rectifier with a negative slope it cannot."""
    return call.node.op != "leaky_relu" or float(call.attr("negative_slope", 0.01)) > 0


def rectify_(call: Call, x: Tensor) -> Tensor:
    match call.node.op:
        case "relu":
            return functional.relu_(x)
        case "leaky_relu":
            return functional.leaky_relu_(x, float(call.attr("negative_slope", 0.01)))
        case "relu6":
            return functional.hardtanh_(x, 0.0, 6.0)
    return functional.hardtanh_(x, float(call.attr("min_val", -1)), float(call.attr("max_val", 1)))
