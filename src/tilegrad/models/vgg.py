"""VGG-16: Simonyan & Zisserman 2015, "Very Deep Convolutional Networks", table 1, configuration D.

`vgg16_bn` has a batch norm after every convolution, which the paper (of before batch norm) has not. Its convolutions
keep their biases, as in all public versions of it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from tilegrad.models.layers import scaled

Head = Literal["fc", "pool"] | None

# (channels, convolutions) of each stage; a 2x2 max pool ends every stage.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_HIDDEN = 4096
_POOLED = 7  # side of the map that the fully connected head reads


class VGG(nn.Module):
    """Convolutional features followed by a head; the identity head returns the last feature map."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def _features(in_channels: int, width: float, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, convolutions in _STAGES:
        outputs = scaled(channels, width)
        for _ in range(convolutions):
            layers.append(nn.Conv2d(in_channels, outputs, 3, padding=1))
            if norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU(inplace=True))
            in_channels = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _head(kind: Head, channels: int, classes: int, width: float) -> nn.Module:
    if kind is None:
        return nn.Identity()
    if kind == "pool":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    if kind != "fc":
        raise ValueError(f"head must be 'fc', 'pool' or None, got {kind!r}")
    hidden = scaled(_HIDDEN, width)
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(_POOLED),
        nn.Flatten(),
        nn.Linear(channels * _POOLED * _POOLED, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(hidden, classes),
    )


def vgg16(classes: int = 1000, width: float = 1.0, head: Head = "fc", in_channels: int = 3) -> VGG:
    """VGG-16; inputs of at least 32x32.

    head "fc": 7x7 average pool and the paper's three fully connected layers (the hidden ones scale with
    `width` too); "pool": global average pool and one linear layer; None: the map after the fifth pool.
    """
    channels = scaled(_STAGES[-1][0], width)
    return VGG(_features(in_channels, width), _head(head, channels, classes, width))


def vgg16_bn(classes: int = 1000, width: float = 1.0, head: Head = "fc", in_channels: int = 3) -> VGG:
    """`vgg16` with a batch norm after every convolution."""
    channels = scaled(_STAGES[-1][0], width)
    return VGG(_features(in_channels, width, norm=True), _head(head, channels, classes, width))
