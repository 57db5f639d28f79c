"""Dropout, spatial dropout and alpha dropout, with masks from `random.uniform`: the same for any tiling."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ir import Build
from ..region import Box
from .base import Call, Place, Sample, Weighted
from .random import uniform
from .registry import op


@op("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
class Dropout(Weighted):
    random = True
    flops_each = 10.0

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        p = float(call.attr("p", 0.5))
        if not call.attr("train", True) or p == 0:
            return x
        box = place.out
        if "feature" in call.node.op:  # one draw per sample and channel
            box = Box((*box[:2], *((0, 1) for _ in box[2:])))
        keep = uniform(place.seed, box, x.device) >= p
        if "alpha" not in call.node.op:
            return x * (keep.to(x.dtype) / (1 - p if p < 1 else 1))
        # Keeps mean and variance of a self-normalising network (Klambauer et al., 2017).
        alpha = -1.7580993408473766
        a = ((1 - p) * (1 + p * alpha**2)) ** -0.5 if p < 1 else 0.0
        return torch.where(keep, x, alpha) * a - a * p * alpha

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        """Where it drops nothing it is its input."""
        asleep = not call.attr("train", True) or float(call.attr("p", 0.5)) == 0
        return call.node.inputs[0].value if asleep and call.attr("output") is None else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.dropout(x, 0.5, training=False) * 2, ((1, 2, 5, 6),), "off")
