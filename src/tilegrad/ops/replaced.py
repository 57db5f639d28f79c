"""A value whose content was written over where gradients are not recorded: `with torch.no_grad(): w.clamp_(0, 1)`.

The content is the new one; the gradient goes where the old value's would have gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .base import Call, Op, Place, Reads, Sample, pointwise
from .registry import op


class _Replace(Function):
    @staticmethod
    def forward(ctx: Any, old: Tensor, new: Tensor) -> Tensor:
        return new.view_as(new)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@op("replaced")
class Replaced(Op):
    elementwise = True
    native = False
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        return tuple(pointwise(t.shape, call.out.shape) for t in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        found: Tensor = _Replace.apply(*tiles)  # type: ignore[no-untyped-call]
        return found

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def clamp(x: Tensor) -> Tensor:
            y = x * 2
            with torch.no_grad():
                y.clamp_(-1, 1)
            return y * 3

        yield Sample(clamp, ((1, 2, 5, 6),))
