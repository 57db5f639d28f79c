"""WaveNet: van den Oord et al. 2016, "WaveNet: A Generative Model for Raw Audio", sections 2.1 to 2.4.

Unconditional; the input is any [n, in_channels, t] signal (raw samples or one-hot companded values).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.models.layers import scaled


class CausalConv1d(nn.Module):
    """A dilated convolution that sees the present and the past: all its padding is on the left."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.past = (kernel - 1) * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (self.past, 0)))
        return out


class GatedUnit(nn.Module):
    """tanh(filter) * sigmoid(gate) (equation 2), both from one dilated causal convolution."""

    def __init__(self, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = CausalConv1d(channels, 2 * channels, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        filtered, gate = self.conv(x).chunk(2, dim=1)
        return torch.tanh(filtered) * torch.sigmoid(gate)


class WaveNet(nn.Module):
    """Causal input convolution, residual gated layers, and a head on the sum of their skips (figure 4).

    There is one residual convolution less than layers: after the last layer nothing would read it.
    """

    def __init__(
        self, in_channels: int, residual: int, skip: int, classes: int, kernel: int, dilations: Sequence[int]
    ) -> None:
        super().__init__()
        self.first = CausalConv1d(in_channels, residual, kernel)
        self.gates = nn.ModuleList(GatedUnit(residual, kernel, dilation) for dilation in dilations)
        self.residuals = nn.ModuleList(nn.Conv1d(residual, residual, 1) for _ in dilations[1:])
        self.skips = nn.ModuleList(nn.Conv1d(residual, skip, 1) for _ in dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, classes, 1))
        # How many samples, the present one included, an output depends on.
        self.receptive_field = 1 + (kernel - 1) * (1 + sum(dilations))

    def forward(self, x: Tensor) -> Tensor:
        gates, skips = list(self.gates), list(self.skips)
        x = self.first(x)
        active = gates[0](x)
        total = skips[0](active)
        for residual, gate, skip in zip(self.residuals, gates[1:], skips[1:], strict=True):
            x = x + residual(active)
            active = gate(x)
            total = total + skip(active)
        logits: Tensor = self.head(total)
        return logits


def wavenet1d(
    classes: int = 256,
    in_channels: int = 1,
    residual: int = 64,
    skip: int = 256,
    layers: int = 10,
    stacks: int = 3,
    kernel: int = 2,
    width: float = 1.0,
) -> WaveNet:
    """WaveNet returning logits [n, classes, t] for [n, in_channels, t].

    `stacks` times `layers` dilations 1, 2, 4, ...; `width` scales `residual` and `skip`.
    """
    if layers < 1 or stacks < 1:
        raise ValueError(f"layers and stacks must be positive, got {layers} and {stacks}")
    dilations = [2**layer for layer in range(layers)] * stacks
    return WaveNet(in_channels, scaled(residual, width), scaled(skip, width), classes, kernel, dilations)
