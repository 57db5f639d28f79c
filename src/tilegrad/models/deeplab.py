"""A network after DeepLab-v3: Chen, Papandreou, Schroff & Adam 2017, "Rethinking Atrous Convolution for
Semantic Image Segmentation", section 3.3.

Ours differs from the paper's in three ways: the backbone is an 18-layer residual network with dilated last
stages (the paper's is ResNet-101), there is no multi-grid, and the image-level branch has a bias in place of
batch norm, which has no statistics to take from one pooled pixel at batch 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.models.layers import conv_norm, scaled
from tilegrad.models.resnet import BasicBlock, initialise, stem

OutputStride = Literal[8, 16]

_STAGE_CHANNELS = (64, 128, 256, 512)
_BLOCKS_PER_STAGE = 2
_ASPP_CHANNELS = 256
# (stride, dilation) of each stage: past the wanted resolution, strides turn into dilations.
_STAGE_STEPS: dict[int, tuple[tuple[int, int], ...]] = {
    8: ((1, 1), (2, 1), (1, 2), (1, 4)),
    16: ((1, 1), (2, 1), (2, 1), (1, 2)),
}


def _conv(inputs: int, outputs: int, dilation: int | None = None) -> nn.Sequential:
    """1x1, or 3x3 with the given dilation; batch norm; ReLU."""
    return nn.Sequential(*conv_norm(inputs, outputs, 3 if dilation else 1, dilation=dilation or 1), nn.ReLU())


def _backbone(in_channels: int, width: float, output_stride: int) -> nn.Sequential:
    channels = scaled(_STAGE_CHANNELS[0], width)
    layers: list[nn.Module] = [stem(in_channels, channels)]
    for full, (first_stride, dilation) in zip(_STAGE_CHANNELS, _STAGE_STEPS[output_stride], strict=True):
        outputs = scaled(full, width)
        for index in range(_BLOCKS_PER_STAGE):
            layers.append(BasicBlock(channels, outputs, first_stride if index == 0 else 1, dilation))
            channels = outputs
    return nn.Sequential(*layers)


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: 1x1, dilated 3x3s and the image mean, concatenated and projected."""

    def __init__(self, inputs: int, outputs: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.pyramid = nn.ModuleList(_conv(inputs, outputs, dilation) for dilation in (None, *dilations))
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inputs, outputs, 1), nn.ReLU())
        self.project = _conv((len(dilations) + 2) * outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        branches = [branch(x) for branch in self.pyramid]
        mean = F.interpolate(self.image(x), size=x.shape[2:], mode="bilinear", align_corners=False)
        out: Tensor = self.project(torch.cat([*branches, mean], dim=1))
        return out


class DeepLab(nn.Module):
    """Dilated backbone, ASPP, 1x1 classifier, bilinear upsampling to the input's size."""

    def __init__(self, backbone: nn.Module, aspp: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.aspp = aspp
        self.classifier = classifier
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.aspp(self.backbone(x)))
        return F.interpolate(logits, size=x.shape[2:], mode="bilinear", align_corners=False)


def deeplab(
    classes: int = 21,
    width: float = 1.0,
    in_channels: int = 3,
    output_stride: OutputStride = 16,
    dilations: Sequence[int] = (6, 12, 18),
) -> DeepLab:
    """DeepLab-v3-like network, logits [n, classes, h, w] at the input's size.

    The paper doubles the pyramid's dilations (12, 24, 36) at output stride 8. Training at batch 1 needs
    more than `output_stride` pixels a side.
    """
    if output_stride not in _STAGE_STEPS:
        raise ValueError(f"output_stride must be 8 or 16, got {output_stride}")
    pyramid = scaled(_ASPP_CHANNELS, width)
    return DeepLab(
        _backbone(in_channels, width, output_stride),
        ASPP(scaled(_STAGE_CHANNELS[-1], width), pyramid, dilations),
        nn.Conv2d(pyramid, classes, 1),
    )
