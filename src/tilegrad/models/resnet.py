"""Residual networks: He, Zhang, Ren & Sun 2016, "Deep Residual Learning", table 1.

Shortcuts are the paper's option B: identity where the shape is kept, a 1x1 projection where it changes.
ResNet-50 strides in the 3x3 convolution of its bottleneck ("v1.5", Goyal et al. 2017, section 5.1), not in
the first 1x1 one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from tilegrad.models.layers import conv_norm, scaled

_STAGE_CHANNELS = (64, 128, 256, 512)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*conv_norm(inputs, outputs, 1, stride))


class Residual(nn.Module):
    """A branch and its shortcut, added and rectified."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        out += self.shortcut(x)
        return self.relu(out)


class BasicBlock(Residual):
    """Two 3x3 convolutions; `dilation` serves backbones that keep their resolution (deeplab)."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, channels: int, stride: int = 1, dilation: int = 1) -> None:
        branch = nn.Sequential(
            *conv_norm(inputs, channels, 3, stride, dilation=dilation),
            nn.ReLU(inplace=True),
            *conv_norm(channels, channels, 3, dilation=dilation),
        )
        super().__init__(branch, inputs, channels, stride)


class Bottleneck(Residual):
    """1x1 reduce, 3x3, 1x1 expand by four."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        outputs = channels * self.expansion
        branch = nn.Sequential(
            *conv_norm(inputs, channels, 1),
            nn.ReLU(inplace=True),
            *conv_norm(channels, channels, 3, stride),
            nn.ReLU(inplace=True),
            *conv_norm(channels, outputs, 1),
        )
        super().__init__(branch, inputs, outputs, stride)


def stem(in_channels: int, channels: int) -> nn.Sequential:
    """The 7x7 convolution and 3x3 max pool that bring the input to a quarter of its resolution."""
    return nn.Sequential(*conv_norm(in_channels, channels, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))


def initialise(net: nn.Module) -> None:
    """He initialisation (He et al. 2015), as section 3.4 of the paper says."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, global average pool, linear classifier."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        classes: int,
        width: float,
        in_channels: int,
    ) -> None:
        super().__init__()
        channels = scaled(_STAGE_CHANNELS[0], width)
        self.stem = stem(in_channels, channels)
        blocks: list[nn.Module] = []
        for stage, (full, depth) in enumerate(zip(_STAGE_CHANNELS, depths, strict=True)):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, scaled(full, width), stride))
                channels = scaled(full, width) * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(self.blocks(self.stem(x)))
        logits: Tensor = self.classifier(pooled.flatten(1))
        return logits


def resnet18(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> ResNet:
    """ResNet-18: basic blocks 2-2-2-2; more than 32 pixels a side to train at batch 1."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, width, in_channels)


def resnet34(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> ResNet:
    """ResNet-34: basic blocks 3-4-6-3; more than 32 pixels a side to train at batch 1."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes, width, in_channels)


def resnet50(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> ResNet:
    """ResNet-50 v1.5: bottlenecks 3-4-6-3; more than 32 pixels a side to train at batch 1."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, width, in_channels)
