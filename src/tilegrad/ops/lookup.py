"""Tables and order: one-hot codes, embeddings, sorting over channels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ..region import POINT
from .base import Call, Op, Read, Reads, Sample, along, whole
from .registry import op


@op("one_hot")
class OneHot(Op):
    def reads(self, call: Call) -> Reads:
        return (along(call, []),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: x * F.one_hot(y, 3).permute(0, 3, 1, 2), ((1, 3, 5, 6), (1, 5, 6)), "", (1,), 3)


@op("embedding")
class Embedding(Op):
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        at = call.index["indices"]
        return tuple(
            tuple(Read(k, POINT) for k in range(len(t.shape))) if i == at else whole(t.shape)
            for i, t in enumerate(call.inputs)
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(
            lambda x, y, w: x * F.embedding(y, w).permute(0, 3, 1, 2), ((1, 4, 5, 6), (1, 5, 6), (3, 4)), "", (1,), 3
        )


@op("sort", "topk", "argsort", "median", "kthvalue", "cummax", "cummin")
class Ordered(Op):
    """Along one dimension, which is read whole. Results with several parts are one node each."""

    def reads(self, call: Call) -> Reads | None:
        if len(call.out.shape) == 0 or (call.node.op == "median" and call.attr("dim") is None):
            return None
        dim = call.attr("dim", -1)
        same = len(call.out.shape) == len(call.inputs[0].shape)
        return (along(call, [dim], same),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.sort(1).values * 2, ((1, 3, 5, 6),))
        yield Sample(lambda x: x.topk(2, 1)[0] + x.argsort(1)[:, :2], ((1, 3, 5, 6),))
        yield Sample(lambda x: x.median(1).values + x.kthvalue(2, 1)[0], ((1, 3, 5, 6),))
        yield Sample(lambda x: x.cummax(1)[0] + x.cummin(1)[0], ((1, 3, 5, 6),))
        yield Sample(lambda x: torch.sort(x, -1)[0] * 2, ((1, 3, 5, 6),), "along the image: whole")
