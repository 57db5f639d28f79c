"""A classifier over a whole image: one weight for every class, channel and place."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.locally_connected import spatial_linear
from .by_place import DrawnByPlace


class SpatialLinear(DrawnByPlace):
    """`y[n, k] = sum over c, i, j of weight[k, c, i, j] * x[n, c, i, j]`: a linear layer on the flattened image, whose
    weights keep their place. On a mesh each rank owns those of its box, and ranks add up their parts of `y`."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        seed: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.seed, self.fan = seed, prod(shape)
        self.weight = nn.Parameter(torch.empty((classes, *shape), device=device, dtype=dtype))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return spatial_linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape[1:])}, classes={self.weight.shape[0]}"
