"""A gain for all and a bias for every place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..region import Box
from .by_place import DrawnByPlace

FORMS = ("a*(x+b)", "a*x+b")


class ScalarGain(DrawnByPlace):
    """`a * (x + b)` or `a * x + b`, with one number `a` (shape [1]) and `b` of shape [1, channels, height, width]. The
    bias lives on space; the gain is everybody's. At first `a` is 1 and `b` is 0."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        form: str = "a*(x+b)",
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if form not in FORMS:
            raise InputError(f"'{form}' is not a gain", hint=" or ".join(FORMS))
        self.form, self.seed = form, 0
        self.a = nn.Parameter(torch.ones(1, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.zeros((1, *shape), device=device, dtype=dtype))

    def draw_box(self, name: str, box: Box, device: torch.device) -> Tensor:
        parameter = getattr(self, name)
        return torch.full(box.shape, float(name == "a"), dtype=parameter.dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.a * (x + self.b) if self.form == "a*(x+b)" else self.a * x + self.b

    def extra_repr(self) -> str:
        return f"{tuple(self.b.shape[1:])}, {self.form}"
