"""Reference convolutional networks, written from their papers, that torch.export can capture.

`NETWORKS` maps a name to a factory; every factory takes `width` (multiplies channel counts), `classes` and
`in_channels`. `example_shape` gives the input shape that a factory's defaults expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from torch import nn

from tilegrad.models.convnext import convnext_tiny
from tilegrad.models.darknet import darknet19
from tilegrad.models.deeplab import deeplab
from tilegrad.models.densenet import densenet121
from tilegrad.models.efficientnet import efficientnet_b0
from tilegrad.models.mobilenet import mobilenet_v2
from tilegrad.models.resnet import resnet18, resnet34, resnet50
from tilegrad.models.unet import SegmentationLoss, unet
from tilegrad.models.unet3d import unet3d
from tilegrad.models.vgg import vgg16, vgg16_bn
from tilegrad.models.wavenet1d import wavenet1d

__all__ = [
    "NETWORKS",
    "SegmentationLoss",
    "convnext_tiny",
    "darknet19",
    "deeplab",
    "densenet121",
    "efficientnet_b0",
    "example_shape",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "unet",
    "unet3d",
    "vgg16",
    "vgg16_bn",
    "wavenet1d",
]

NETWORKS: Final[Mapping[str, Callable[..., nn.Module]]] = MappingProxyType(
    {
        "vgg16": vgg16,
        "vgg16_bn": vgg16_bn,
        "darknet19": darknet19,
        "resnet18": resnet18,
        "resnet34": resnet34,
        "resnet50": resnet50,
        "unet": partial(unet, padding="same"),
        "unet_valid": partial(unet, padding="valid"),
        "densenet121": densenet121,
        "convnext_tiny": convnext_tiny,
        "mobilenet_v2": mobilenet_v2,
        "efficientnet_b0": efficientnet_b0,
        "deeplab": deeplab,
        "unet3d": unet3d,
        "wavenet1d": wavenet1d,
    }
)

# (channels, spatial dimensions) of the inputs that are not RGB images.
_OTHER_INPUTS: Final = {"unet": (1, 2), "unet_valid": (1, 2), "unet3d": (3, 3), "wavenet1d": (1, 1)}


def example_shape(name: str, size: int) -> tuple[int, ...]:
    """The shape of one input, `size` along every spatial dimension, for `NETWORKS[name]()`."""
    if name not in NETWORKS:
        raise KeyError(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    if size < 1:
        raise ValueError(f"size must be positive, got {size}")
    channels, rank = _OTHER_INPUTS.get(name, (3, 2))
    return (1, channels, *[size] * rank)
