"""A convolution or a norm, and its activation: which is made where the other's result lies.

What these make is not needed for their backward, and a rectifier's backward needs its own result only. So there is one
tensor instead of two, and one pass over memory less.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from ..ops import Call, Place
from .base import Kernel, first_result


class ConvActivation(Kernel):
    chain = (
        frozenset({"conv1d", "conv2d", "conv3d", "convolution", "normalize", "batch_norm"}),
        frozenset({"relu", "leaky_relu"}),
    )

    def accepts(self, calls: Sequence[Call]) -> bool:
        if calls[0].attr("training", False):  # of batch norm, which then also writes to its buffers
            return False
        return calls[1].node.op == "relu" or float(calls[1].attr("negative_slope", 0.01)) > 0

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        found = first_result(calls[0], tiles[0], place, tiles[0][0].device)
        if calls[1].node.op == "relu":
            return functional.relu_(found)
        return functional.leaky_relu_(found, float(calls[1].attr("negative_slope", 0.01)))
