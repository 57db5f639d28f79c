"""Everything that works element by element, with broadcasting: arithmetic, activations, comparisons, `where`.

Operators that torch tags as pointwise arrive here by themselves; the names below are the untagged ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Call, Op, Place, Reads, Sample, Weighted
from .base import pointwise as broadcast
from .registry import op

RECTIFIERS = frozenset({"relu", "leaky_relu", "relu6", "hardtanh"})  # their gradient is told from what they make


@op(
    "pointwise", "relu6", "selu", "mish", "softplus", "softsign", "logsigmoid", "log_sigmoid", "hardshrink",
    "softshrink", "tanhshrink", "rrelu_with_noise", "silu", "gelu", "hardswish", "hardtanh", "hardsigmoid", "celu",
    "elu", "leaky_relu", "relu", "sigmoid", "tanh", "threshold", "prelu_kernel", "_prelu_kernel", "where", "clamp",
    "clip", "square", "masked_fill", "lerp", "rsub", "true_divide", "divide", "multiply", "subtract", "float_power",
    "nan_to_num", "rsqrt", "isnan", "isfinite", "isinf", "negative", "absolute", "greater", "less", "logical_and",
    "logical_or", "logical_not", "logical_xor", "eq", "ne", "lt", "gt", "le", "ge", "__and__", "__or__",
)  # fmt: skip
class Pointwise(Op):
    elementwise = True

    def reads(self, call: Call) -> Reads:
        return tuple(broadcast(t.shape, call.out.shape) for t in call.inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        image = (1, 2, 5, 6)
        for f in (torch.relu, torch.sigmoid, torch.tanh, F.silu, F.gelu, F.leaky_relu, F.elu, F.softplus, F.relu6):
            yield Sample(lambda x, f=f: f(x), (image,), f.__name__)
        for f in (F.mish, F.selu, F.celu, F.hardswish, F.hardtanh, F.hardsigmoid, F.softsign, F.logsigmoid):
            yield Sample(lambda x, f=f: f(x), (image,), f.__name__)
        yield Sample(lambda x, y: x * y + x / (y.abs() + 1) - 3, (image, (2, 1, 1)), "broadcast")
        yield Sample(lambda x, y: torch.where(x > y, x, 2 * y), (image, image), "where")
        yield Sample(lambda x: x.clone().relu_().add_(1).clamp(0, 2), (image,), "in place")
        yield Sample(lambda x: torch.maximum(x, x.square()) ** 2, (image,))
        yield Sample(lambda x, y: x + y, (image, (5, 6)), "a parameter that lives on space")


_AFTER = {"add_relu": torch.relu, "add_sigmoid": torch.sigmoid, "add_tanh": torch.tanh}


@op(*_AFTER)
class AddThen(Op):
    """An addition and what follows it, which other frameworks run as one kernel, without a tensor in between."""

    def reads(self, call: Call) -> Reads:
        return tuple(broadcast(t.shape, call.out.shape) for t in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return _AFTER[call.node.op](tiles[0] + tiles[1])


@op("prelu")
class Prelu(Weighted):
    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, w: F.prelu(x, w), ((1, 3, 5, 6), (3,)))
        yield Sample(lambda x, w: F.prelu(x, w), ((1, 3, 5, 6), (1,)))
