"""Darknet-19: Redmon & Farhadi 2016, "YOLO9000: Better, Faster, Stronger", section 3 and table 6."""

from __future__ import annotations

from torch import Tensor, nn

from tilegrad.models.layers import conv_norm, scaled

# (channels, kernel) of the convolutions of each stage; a 2x2 max pool stands between two stages.
_STAGES = (
    ((32, 3),),
    ((64, 3),),
    ((128, 3), (64, 1), (128, 3)),
    ((256, 3), (128, 1), (256, 3)),
    ((512, 3), (256, 1), (512, 3), (256, 1), (512, 3)),
    ((1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3)),
)


class Darknet(nn.Module):
    """Fully convolutional classifier: the class maps are averaged over space."""

    def __init__(self, features: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Conv2d(channels, classes, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.pool(self.classifier(self.features(x)))
        return maps.flatten(1)


def darknet19(classes: int = 1000, width: float = 1.0, in_channels: int = 3) -> Darknet:
    """Darknet-19, returning logits [n, classes]; inputs of at least 32x32 (64x64 to train at batch 1)."""
    layers: list[nn.Module] = []
    channels = in_channels
    for index, stage in enumerate(_STAGES):
        if index > 0:
            layers.append(nn.MaxPool2d(2))
        for full, kernel in stage:
            outputs = scaled(full, width)
            layers += [*conv_norm(channels, outputs, kernel), nn.LeakyReLU(0.1, inplace=True)]
            channels = outputs
    return Darknet(nn.Sequential(*layers), channels, classes)
