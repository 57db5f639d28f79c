"""Random masks that depend on nothing but a seed, the node and the place in the whole value.

The same element gets the same draw for any tiling, under recompute and on any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..region import Box
from .base import Call, Op, Place, Reads, Sample, pointwise
from .registry import op


@op("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
class Dropout(Op):
    saves = ("indices",)
    random = True

    def reads(self, call: Call) -> Reads:
        return (pointwise(call.inputs[0].shape, call.out.shape),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        p = float(call.attr("p", 0.5))
        if not call.attr("train", True) or p == 0:
            return x
        box = place.out
        if "feature" in call.node.op:  # one draw per sample and channel
            box = Box((*box[:2], *((0, 1) for _ in box[2:])))
        keep = uniform(place.seed, box, call.out.shape, x.device) >= p
        if "alpha" not in call.node.op:
            return x * (keep.to(x.dtype) / (1 - p if p < 1 else 1))
        # Keeps mean and variance of a self-normalising network (Klambauer et al., 2017).
        alpha = -1.7580993408473766
        a = ((1 - p) * (1 + p * alpha**2)) ** -0.5 if p < 1 else 0.0
        return torch.where(keep, x, alpha) * a - a * p * alpha

    def flops(self, call: Call) -> float:
        return 10.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.dropout(x, 0.5, training=False) * 2, ((1, 2, 5, 6),), "off")


def uniform(seed: int, box: Box, shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers in [0, 1), one per element of `box` of a value of `shape`, by hashing coordinates."""
    state = torch.full((1,) * len(box), _wrap(seed), dtype=torch.int64, device=device)
    for dim, side in enumerate(box):
        at = torch.arange(side.lo, side.hi, dtype=torch.int64, device=device)
        at = at.view([-1 if d == dim else 1 for d in range(len(box))])
        state = _mix(state + (at + 1) * _wrap(0x9E3779B97F4A7C15 + 2 * dim))
    return (state >> 11 & (1 << 53) - 1).to(torch.float64).mul_(2.0**-53)


def _wrap(number: int) -> int:
    """The same 64 bits as a signed integer."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _mix(z: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014); shifts are made logical by masking."""
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * _wrap(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * _wrap(0x94D049BB133111EB)
    return z ^ (z >> 31 & (1 << 33) - 1)
