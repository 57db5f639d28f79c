"""Random tensors that depend on nothing but a seed, the node and the place in the whole value.

The same element gets the same draw for any tiling, under recompute and on any number of workers. Random operators that
are not here (or in `dropout`) run whole, from a seed of their own (`seeded`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import pi
from typing import Any

import torch
from torch import Tensor

from ..region import Box
from .base import Call, Op, Place, Reads, Sample, Seed, pointwise, whole
from .registry import op


@op(
    "rand", "rand_like", "randn", "randn_like", "bernoulli", "uniform", "normal_functional", "exponential", "randint",
    "randint_like",
)  # fmt: skip
class Draw(Op):
    """`uniform`, `normal_functional` and `exponential` are what `uniform_` and the like give as new tensors: of their
    input only the shape counts."""

    random = True
    anywhere = True
    native = False

    def reads(self, call: Call) -> Reads:
        like = not re.fullmatch("rand|randn|randint", call.node.op)
        return tuple(pointwise(t.shape, call.out.shape) if like else whole(t.shape) for t in call.inputs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        device = place.device or next((t.device for t in tiles), torch.device("cpu"))
        dtype = getattr(torch, call.out.dtype)
        first = uniform(place.seed, place.out, device)
        match call.node.op:
            case "bernoulli":
                return (first < self._chance(call, tiles)).to(dtype)
            case "uniform":
                low, high = call.attr("from", 0.0), call.attr("to", 1.0)
                return (low + (high - low) * first).to(dtype)
            case "exponential":  # 1 - u is never zero
                return (-(1 - first).log() / call.attr("lambd", 1.0)).to(dtype)
            case "randint" | "randint_like":
                low, high = call.attr("low", 0), call.attr("high")
                return (low + (first * (high - low)).floor()).to(dtype)
            case "randn" | "randn_like" | "normal_functional":
                # Box and Muller: two uniform numbers make a normal one
                second = uniform(place.seed + 1, place.out, device)
                normal = (1 - first).log().mul(-2).sqrt() * (2 * pi * second).cos()
                return (call.attr("mean", 0.0) + call.attr("std", 1.0) * normal).to(dtype)
        return first.to(dtype)

    @staticmethod
    def _chance(call: Call, tiles: Sequence[Tensor]) -> Any:
        """A number, or one for every element: the last tensor (`x.bernoulli_(p)` reads `x` as well)."""
        if call.attr("p") is not None:
            return call.attr("p")
        return 0.5 if call.node.target.endswith(".p") else tiles[-1]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # times zero: what is drawn differs from plain PyTorch's
        yield Sample(lambda x: x + 0 * torch.rand_like(x) + 0 * torch.randn_like(x), ((1, 2, 5, 6),))
        yield Sample(lambda x: x + 0 * torch.bernoulli(x.sigmoid()) + 0 * torch.rand(5, 6), ((1, 2, 5, 6),))
        yield Sample(lambda x: x + 0 * torch.randn(2, 1, 1), ((1, 2, 5, 6),))
        yield Sample(lambda x: x + 0 * x.new_empty((1, 2, 1, 1)).bernoulli_(0.9).div_(0.9), ((1, 2, 5, 6),))
        yield Sample(lambda x: x + 0 * torch.empty_like(x).uniform_(-1, 2).exponential_().normal_(), ((1, 2, 5, 6),))
        yield Sample(lambda x: x + 0 * torch.randint(0, 3, (5, 6)) * torch.randint_like(x, 4), ((1, 2, 5, 6),))


def uniform(seed: Seed, box: Box, device: torch.device) -> Tensor:
    """Numbers in [0, 1), one per element of `box`, by hashing coordinates. A seed that is a tensor is read by kernels
    alone, so that others may follow in a recorded step."""
    start = seed if isinstance(seed, Tensor) else torch.full((), _wrap(seed), dtype=torch.int64, device=device)
    state = start.view((1,) * len(box))
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
