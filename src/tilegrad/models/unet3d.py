"""3D U-Net: Çiçek, Abdulkadir, Lienkamp, Brox & Ronneberger 2016, "3D U-Net: Learning Dense Volumetric
Segmentation from Sparse Annotation", section 2 and figure 2.

The paper counts 19,069,955 parameters. That is exactly W + S + 3: the weights W, a shift for each of the
S = 2,336 outputs of the 3x3x3 convolutions and for the 3 classes, none for the up-convolutions; the scales
of the batch norm that section 2 also describes are not in it. So `norm=None` has the paper's count, and
`norm="batch"` (the default: the shift moves from the convolution into the norm) has S more, 19,072,291.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.models.layers import scaled
from tilegrad.models.unet import Expansion, Padding, down_and_up

Norm = Literal["batch"] | None

_BASE = 32
_LEVELS = 4  # resolutions: three poolings


def _conv(inputs: int, outputs: int, padding: Padding, norm: Norm) -> list[nn.Module]:
    border = 1 if padding == "same" else 0
    layers: list[nn.Module] = [nn.Conv3d(inputs, outputs, 3, padding=border, bias=norm is None)]
    if norm is not None:
        layers.append(nn.BatchNorm3d(outputs))
    return [*layers, nn.ReLU()]


def _double_conv(inputs: int, middle: int, outputs: int, padding: Padding, norm: Norm) -> nn.Sequential:
    return nn.Sequential(*_conv(inputs, middle, padding, norm), *_conv(middle, outputs, padding, norm))


def _synthesis(channels: int, padding: Padding, norm: Norm) -> Expansion:
    """Its up-convolution keeps the channels."""
    half = channels // 2  # channels of the skip
    up = nn.ConvTranspose3d(channels, channels, 2, 2, bias=False)
    return Expansion(up, _double_conv(half + channels, half, half, padding, norm), padding)


class UNet3d(nn.Module):
    """Analysis path that doubles its channels before each pool, synthesis path, 1x1x1 classifier."""

    def __init__(self, in_channels: int, base: int, classes: int, padding: Padding, norm: Norm) -> None:
        super().__init__()
        analysis: list[nn.Module] = []
        source = in_channels
        for level in range(_LEVELS):
            middle = base * 2**level
            # Doubling before the pool, not after it, avoids the bottleneck that section 2 warns of.
            analysis.append(_double_conv(source, middle, 2 * middle, padding, norm))
            source = 2 * middle
        self.analysis = nn.ModuleList(analysis)
        self.synthesis = nn.ModuleList(_synthesis(base * 2**level, padding, norm) for level in range(_LEVELS, 1, -1))
        self.classifier = nn.Conv3d(2 * base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(down_and_up(x, self.analysis, self.synthesis, F.max_pool3d))
        return logits


def unet3d(
    classes: int = 3,
    in_channels: int = 3,
    padding: Padding = "valid",
    norm: Norm = "batch",
    width: float = 1.0,
) -> UNet3d:
    """3D U-Net; padding "valid" is the paper's (132x132x116 -> 44x44x28 voxels, at least 92 a side).

    "same" keeps the size of any input of at least 8 voxels a side (16 to train batch norm at batch 1).
    """
    if padding not in get_args(Padding):
        raise ValueError(f"padding must be 'same' or 'valid', got {padding!r}")
    if norm not in (None, "batch"):
        raise ValueError(f"norm must be None or 'batch', got {norm!r}")
    return UNet3d(in_channels, scaled(_BASE, width), classes, padding, norm)
