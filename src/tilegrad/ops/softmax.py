"""Operators along one dimension that keep its length: softmax, cumulative sums, normalisations over channels."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F

from .base import Call, Op, Reads, Sample, along, whole
from .registry import op


@op("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "glu", "softmin", "channel_shuffle")
class AlongOne(Op):
    flops_each = 5.0

    def reads(self, call: Call) -> Reads | None:
        dim = 1 if call.node.op == "channel_shuffle" else call.attr("dim", -1)
        return (along(call, [dim]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.softmax(1), ((1, 3, 5, 6),))
        yield Sample(lambda x: x.log_softmax(1), ((1, 3, 5, 6),))
        yield Sample(lambda x: x.cumsum(1), ((1, 3, 5, 6),))
        yield Sample(lambda x: F.glu(x, 1), ((1, 4, 5, 6),))
        yield Sample(lambda x: F.channel_shuffle(x, 2) * 2, ((1, 4, 5, 6),))
        yield Sample(lambda x: x.softmax(-1), ((1, 3, 5, 6),), "over an image axis: whole")


@op("layer_norm", "rms_norm")
class LayerNorm(Op):
    """Normalises the last dimensions, which are read whole."""

    flops_each = 8.0
    reach = 0.12  # of some hundred channels at once

    def reads(self, call: Call) -> Reads:
        over = range(-len(call.attr("normalized_shape")), 0)
        return (along(call, list(over)), *(whole(t.shape) for t in call.inputs[1:]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(
            lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (3,), w, b).permute(0, 3, 1, 2),
            ((1, 3, 5, 6), (3,), (3,)),
        )
        yield Sample(lambda x: F.layer_norm(x, (3, 5, 6)), ((2, 3, 5, 6),), "over the image")
