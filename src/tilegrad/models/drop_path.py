"""Stochastic depth: Huang, Sun, Liu, Sedra & Weinberger 2016, "Deep Networks with Stochastic Depth", section 3."""

from __future__ import annotations

from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd


class DropPath(_DropoutNd):
    """In training, drops the branch of a residual for whole samples: each with probability `p`, the others grow by
    1 / (1 - p). A kind of dropout, so that whoever switches those off (`tilegrad.verify`) finds it too."""

    def __init__(self, p: float) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"drop_path_rate must be at least 0 and below 1, got {p}")
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0], *[1] * (x.dim() - 1))).bernoulli_(keep)
        return x * mask / keep
