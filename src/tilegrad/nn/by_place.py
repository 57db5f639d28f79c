"""Weights drawn by place: any box of them is the same, whoever draws it and however the rest is cut."""

from __future__ import annotations

import zlib
from math import sqrt

import torch
from torch import Tensor, nn

from ..ops.random import uniform
from ..region import Box


class DrawnByPlace(nn.Module):
    """Base of layers whose parameters may be made without data (on the meta device) and drawn box by box."""

    seed: int
    fan: int = 0  # inputs that each output reads

    def bound(self, name: str) -> float:
        """How large the entries of a parameter may be at first; 0 for none."""
        return 1 / sqrt(self.fan) if self.fan else 0.0

    def draw_box(self, name: str, box: Box, device: torch.device) -> Tensor:
        """A box of a parameter as it is at first: even between the bounds."""
        bound = self.bound(name)
        numbers = uniform(self.seed ^ zlib.crc32(name.encode()) << 20, box, device)
        return numbers.mul_(2 * bound).sub_(bound).to(getattr(self, name).dtype)

    def reset_parameters(self) -> None:
        """Draw everything anew."""
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if not parameter.is_meta:
                    parameter.copy_(self.draw_box(name, Box.full(parameter.shape), parameter.device))
