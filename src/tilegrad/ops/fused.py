"""Pairs of operators that other frameworks run as one kernel, without a tensor in between: an addition and what
follows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Call, Op, Place, Reads
from .base import pointwise as broadcast
from .registry import op

_AFTER = {"add_relu": torch.relu, "add_sigmoid": torch.sigmoid, "add_tanh": torch.tanh}


@op(*_AFTER)
class AddThen(Op):
    def reads(self, call: Call) -> Reads:
        return tuple(broadcast(t.shape, call.out.shape) for t in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return _AFTER[call.node.op](tiles[0] + tiles[1])
