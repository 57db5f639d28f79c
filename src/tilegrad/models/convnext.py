"""ConvNeXt-T: Liu, Mao, Wu, Feichtenhofer, Darrell & Xie 2022, "A ConvNet for the 2020s", section 2.

Stochastic depth grows linearly with the depth of a block; it is off unless asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilegrad.models.layers import DropPath, scaled

# (channels, blocks) of each stage.
_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
_EPS = 1e-6
_LAYER_SCALE = 1e-6
_EXPANSION = 4


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [n, c, h, w], one pixel at a time."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, then an inverted bottleneck of linear layers on channels-last, layer scale, residual whose branch
    is dropped at the rate `drop_path`."""

    def __init__(self, channels: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=_EPS)
        self.expand = nn.Linear(channels, _EXPANSION * channels)
        self.gelu = nn.GELU()
        self.reduce = nn.Linear(_EXPANSION * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), _LAYER_SCALE))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.depthwise(x).permute(0, 2, 3, 1)
        pixels = self.reduce(self.gelu(self.expand(self.norm(pixels))))
        return x + self.drop_path((self.scale * pixels).permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    """Patchify stem, four stages with downsampling between them, average pool, norm, linear."""

    def __init__(self, features: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.norm = nn.LayerNorm(channels, eps=_EPS)
        self.classifier = nn.Linear(channels, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.features(x)
        logits: Tensor = self.classifier(self.norm(maps.mean((2, 3))))
        return logits


def _initialise(net: nn.Module) -> None:
    """Truncated normal of deviation 0.02 and zero biases, as the authors' own implementation has it."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def convnext_tiny(
    classes: int = 1000, width: float = 1.0, in_channels: int = 3, drop_path_rate: float = 0.0
) -> ConvNeXt:
    """ConvNeXt-T; inputs of at least 32x32.

    drop_path_rate: stochastic depth of the last block, falling linearly to none in the first. The paper trains with 0.1
    (table 5); the default is 0, as plain and tiled steps draw different masks, and our figures were measured without.
    """
    layers: list[nn.Module] = []
    channels = in_channels
    last = sum(blocks for _, blocks in _STAGES) - 1
    rates = (drop_path_rate * block / last for block in range(last + 1))
    for stage, (full, blocks) in enumerate(_STAGES):
        outputs = scaled(full, width)
        if stage == 0:
            layers += [nn.Conv2d(channels, outputs, 4, 4), ChannelNorm(outputs, eps=_EPS)]
        else:
            layers += [ChannelNorm(channels, eps=_EPS), nn.Conv2d(channels, outputs, 2, 2)]
        layers += [ConvNeXtBlock(outputs, next(rates)) for _ in range(blocks)]
        channels = outputs
    return ConvNeXt(nn.Sequential(*layers), channels, classes)
