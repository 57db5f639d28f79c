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

from .convnext import convnext_tiny as convnext_tiny
from .darknet import darknet19 as darknet19
from .deeplab import deeplab as deeplab
from .densenet import densenet121 as densenet121
from .efficientnet import efficientnet_b0 as efficientnet_b0
from .mobilenet import mobilenet_v2 as mobilenet_v2
from .resnet import resnet18 as resnet18
from .resnet import resnet34 as resnet34
from .resnet import resnet50 as resnet50
from .unet import SegmentationLoss as SegmentationLoss
from .unet import unet as unet
from .unet3d import unet3d as unet3d
from .vgg import vgg16 as vgg16
from .vgg import vgg16_bn as vgg16_bn
from .wavenet1d import wavenet1d as wavenet1d

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
