"""EfficientNet-B0: Tan & Le 2019, "EfficientNet: Rethinking Model Scaling", table 1.

Blocks are MobileNetV2's with squeeze-and-excitation (Hu, Shen & Sun 2018); activations are SiLU. Stochastic depth grows
linearly with the depth of a block up to the paper's 0.2 (section 5.2).
"""

from __future__ import annotations

from torch import Tensor, nn

from tilegrad.models.layers import DropPath, PooledClassifier, conv_norm, scaled
from tilegrad.models.mobilenet import InvertedResidual
from tilegrad.models.resnet import initialise

# Expansion, kernel, channels, repeats, stride of the first: stages 2 to 8 of table 1.
_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
_FIRST, _LAST = 32, 1280
_SQUEEZE = 4
_MULTIPLE = 8


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, kernel, stride, groups=groups), nn.SiLU(inplace=True))


class SqueezeExcite(nn.Module):
    """Scales every channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x)
        return gate * x


class MBConv(InvertedResidual):
    """Expand 1x1, depthwise, squeeze-excite, linear projection 1x1; where the shape is kept, a residual whose branch is
    dropped at the rate `drop_path`."""

    conv = staticmethod(_conv)

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, drop_path: float = 0.0
    ) -> None:
        super().__init__(inputs, outputs, stride, expansion, kernel)
        self.drop_path = DropPath(drop_path)

    def gate(self, inputs: int, hidden: int) -> list[nn.Module]:
        return [SqueezeExcite(hidden, inputs // _SQUEEZE)]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        return x + self.drop_path(out) if self.residual else out


class EfficientNet(PooledClassifier):
    """Features, global average pool, dropout, linear classifier."""


def efficientnet_b0(
    classes: int = 1000, width: float = 1.0, in_channels: int = 3, drop_path_rate: float = 0.2
) -> EfficientNet:
    """EfficientNet-B0; more than 32 pixels a side to train at batch 1.

    drop_path_rate: stochastic depth of the last block; that of the others is proportional to the blocks before them.
    """
    channels = scaled(_FIRST, width, _MULTIPLE)
    layers: list[nn.Module] = [_conv(in_channels, channels, 3, 2)]
    blocks = sum(repeats for *_, repeats, _ in _STAGES)
    for expansion, kernel, full, repeats, first_stride in _STAGES:
        outputs = scaled(full, width, _MULTIPLE)
        for index in range(repeats):
            rate = drop_path_rate * (len(layers) - 1) / blocks
            layers.append(MBConv(channels, outputs, kernel, first_stride if index == 0 else 1, expansion, rate))
            channels = outputs
    last = scaled(_LAST, width, _MULTIPLE)
    layers.append(_conv(channels, last, 1))
    net = EfficientNet(nn.Sequential(*layers), nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes)))
    initialise(net)
    return net
