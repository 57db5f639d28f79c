"""U-Net: Ronneberger, Fischer & Brox 2015, "U-Net: Convolutional Networks for Biomedical Image
Segmentation", section 2 and figure 1; He initialisation as section 3 says.

Left out: the drop-out at the end of the contracting path, whose rate the paper does not give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.models.layers import scaled

Padding = Literal["same", "valid"]
Upsampling = Literal["transpose", "bilinear"]
NormKind = Literal["batch", "group"]
Norm = NormKind | None


def center_crop(x: Tensor, size: Sequence[int]) -> Tensor:
    """The central part of `x` whose trailing dimensions are `size`; `x` itself where they already are."""
    for dim, length in enumerate(size, start=x.dim() - len(size)):
        if x.shape[dim] != length:
            x = x.narrow(dim, (x.shape[dim] - length) // 2, length)
    return x


def pad_end(x: Tensor, size: Sequence[int]) -> Tensor:
    """`x` with zeros after its trailing dimensions (bottom and right) up to `size`."""
    missing = [length - have for length, have in zip(size, x.shape[-len(size) :], strict=True)]
    if not any(missing):
        return x
    # F.pad wants (before, after) pairs from the last dimension to the first.
    return F.pad(x, [amount for short in reversed(missing) for amount in (0, short)])


def _norm(kind: Norm, channels: int) -> list[nn.Module]:
    if kind is None:
        return []
    if kind == "batch":
        return [nn.BatchNorm2d(channels)]
    # 32 groups (Wu & He 2018), fewer for narrow layers so that a group has two channels where it can.
    return [nn.GroupNorm(math.gcd(channels, min(32, max(1, channels // 2))), channels)]


def _double_conv(inputs: int, outputs: int, padding: Padding, norm: Norm) -> nn.Sequential:
    layers: list[nn.Module] = []
    for source in (inputs, outputs):
        border = 1 if padding == "same" else 0
        # A normalisation brings its own shift, so the bias would be redundant.
        layers.append(nn.Conv2d(source, outputs, 3, padding=border, bias=norm is None))
        layers += [*_norm(norm, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _upsample(channels: int, up: Upsampling) -> nn.Module:
    """Doubles the resolution and halves the channels."""
    if up == "transpose":
        return nn.ConvTranspose2d(channels, channels // 2, 2, 2)
    # 1x1 instead of the paper's 2x2 convolution: an even kernel would shift the map or shrink it.
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Conv2d(channels, channels // 2, 1),
    )


class Expansion(nn.Module):
    """One step of the expanding path: upsample, join with the skip, two convolutions."""

    def __init__(self, up: nn.Module, convs: nn.Module, padding: Padding) -> None:
        super().__init__()
        self.padding, self.up, self.convs = padding, up, convs

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        raised: Tensor = self.up(x)
        if self.padding == "same":
            # The pool dropped the last row or column of an odd map.
            raised = pad_end(raised, skip.shape[2:])
        else:
            skip = center_crop(skip, raised.shape[2:])
        out: Tensor = self.convs(torch.cat((skip, raised), dim=1))
        return out


def down_and_up(x: Tensor, contracting: nn.ModuleList, expanding: nn.ModuleList, pool: Callable[..., Tensor]) -> Tensor:
    """Along both paths: every step of the second is handed what the first had at its resolution."""
    skips: list[Tensor] = []
    for level, convs in enumerate(contracting):
        if level > 0:
            x = pool(x, 2)
        x = convs(x)
        skips.append(x)
    for expansion, skip in zip(expanding, reversed(skips[:-1]), strict=True):
        x = expansion(x, skip)
    return x


class UNet(nn.Module):
    """Contracting path with skips, expanding path, 1x1 classifier per pixel."""

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        classes: int,
        padding: Padding,
        up: Upsampling,
        norm: Norm,
    ) -> None:
        super().__init__()
        sources = (in_channels, *channels[:-1])
        self.contracting = nn.ModuleList(
            _double_conv(source, outputs, padding, norm) for source, outputs in zip(sources, channels, strict=True)
        )
        self.expanding = nn.ModuleList(
            Expansion(_upsample(c, up), _double_conv(c, c // 2, padding, norm), padding) for c in reversed(channels[1:])
        )
        self.classifier = nn.Conv2d(channels[0], classes, 1)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(down_and_up(x, self.contracting, self.expanding, F.max_pool2d))
        return logits


def _initialise(net: nn.Module) -> None:
    # The up-convolutions keep torch's default: no rectifier follows them, so sqrt(2/N) is not for them.
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")


def unet(
    padding: Padding = "same",
    classes: int = 2,
    in_channels: int = 1,
    base: int = 64,
    depth: int = 4,
    up: Upsampling = "transpose",
    norm: Norm = None,
    width: float = 1.0,
) -> UNet:
    """U-Net with `depth` poolings and `base * width` channels at full resolution.

    padding "valid" is the paper's (572 -> 388 pixels a side); "same" keeps the size of any input of at
    least 2**depth pixels a side, odd or even.
    """
    if padding not in get_args(Padding) or up not in get_args(Upsampling):
        raise ValueError(f"unknown padding {padding!r} or upsampling {up!r}")
    if norm is not None and norm not in get_args(NormKind):
        raise ValueError(f"norm must be None, 'batch' or 'group', got {norm!r}")
    channels = [scaled(base, width) * 2**level for level in range(depth + 1)]
    return UNet(in_channels, channels, classes, padding, up, norm)


class SegmentationLoss(nn.Module):
    """A network together with its loss: `forward(image, mask)` is the mean cross entropy.

    `mask` holds class indices [n, ...]; one of the image's size is cropped to the centre that a "valid"
    network predicts. Pixels labelled `ignore_index` do not count; if all are, the mean is nan.
    """

    def __init__(self, net: nn.Module, ignore_index: int = -100) -> None:
        super().__init__()
        self.net = net
        self.ignore_index = ignore_index

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.net(image)
        target = center_crop(mask, logits.shape[2:])
        return F.cross_entropy(logits, target, ignore_index=self.ignore_index)
