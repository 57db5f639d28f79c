"""MobileNetV2: Sandler, Howard, Zhu, Zhmoginov & Chen 2018, "MobileNetV2: Inverted Residuals and Linear
Bottlenecks", table 2."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from tilegrad.models.layers import PooledClassifier, conv_norm, scaled

# Expansion, channels, repeats, stride of the first: the t, c, n, s of table 2.
_BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_FIRST, _LAST = 32, 1280
_MULTIPLE = 8


def conv_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, kernel, stride, groups=groups), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise, linear projection 1x1; a residual where the shape is kept."""

    conv: ClassVar = staticmethod(conv_relu6)  # with its norm and activation

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int = 3) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [self.conv(inputs, hidden, 1)]
        layers += [self.conv(hidden, hidden, kernel, stride, groups=hidden), *self.gate(inputs, hidden)]
        self.branch = nn.Sequential(*layers, *conv_norm(hidden, outputs, 1))  # no rectifier: the bottleneck is linear
        self.residual = stride == 1 and inputs == outputs

    def gate(self, inputs: int, hidden: int) -> list[nn.Module]:
        """What stands before the projection."""
        return []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        return x + out if self.residual else out


class MobileNetV2(PooledClassifier):
    """Features, global average pool, dropout, linear classifier."""


def mobilenet_v2(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> MobileNetV2:
    """MobileNetV2; more than 32 pixels a side to train at batch 1.

    As the paper says (section 4), a width below one does not narrow the last convolution.
    """
    channels = scaled(_FIRST, width, _MULTIPLE)
    last = scaled(_LAST, max(1.0, width), _MULTIPLE)
    layers: list[nn.Module] = [conv_relu6(in_channels, channels, 3, 2)]
    for expansion, full, repeats, first_stride in _BOTTLENECKS:
        outputs = scaled(full, width, _MULTIPLE)
        for index in range(repeats):
            layers.append(InvertedResidual(channels, outputs, first_stride if index == 0 else 1, expansion))
            channels = outputs
    layers.append(conv_relu6(channels, last, 1))
    return MobileNetV2(nn.Sequential(*layers), nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes)))
