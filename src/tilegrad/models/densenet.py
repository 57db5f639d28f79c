"""DenseNet-121: Huang, Liu, van der Maaten & Weinberger 2017, "Densely Connected Convolutional Networks", table 1.

The paper's DenseNet-BC: bottlenecks of four times the growth rate, and transitions that halve the channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilegrad.models.layers import PooledClassifier, scaled
from tilegrad.models.resnet import stem

_LAYERS = (6, 12, 24, 16)  # of each dense block
_GROWTH = 32
_BOTTLENECK = 4
_COMPRESSION = 2


def _conv(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    """Pre-activation: norm and rectifier come before the convolution."""
    return [
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
    ]


class DenseBlock(nn.Module):
    """Layers of 1x1 and 3x3 that each read all maps before them; returns all maps, the block's input first."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        hidden = _BOTTLENECK * growth
        self.layers = nn.ModuleList(
            nn.Sequential(*_conv(inputs + growth * index, hidden, 1), *_conv(hidden, growth, 3))
            for index in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, dim=1)))
        return torch.cat(maps, dim=1)


class DenseNet(PooledClassifier):
    """Stem and dense blocks with transitions between them, a last norm, global average pool, linear classifier."""


def _initialise(net: nn.Module) -> None:
    """He initialisation, as the paper says (section 4.2), and zero biases."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def densenet121(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> DenseNet:
    """DenseNet-121; inputs of at least 29x29 (61x61 to train at batch 1). `width` scales the growth rate."""
    growth = scaled(_GROWTH, width)
    channels = 2 * growth
    layers: list[nn.Module] = [*stem(in_channels, channels)]
    for index, depth in enumerate(_LAYERS):
        if index > 0:
            layers += [*_conv(channels, channels // _COMPRESSION, 1), nn.AvgPool2d(2)]
            channels //= _COMPRESSION
        layers.append(DenseBlock(channels, growth, depth))
        channels += growth * depth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    net = DenseNet(nn.Sequential(*layers), nn.Linear(channels, classes))
    _initialise(net)
    return net
