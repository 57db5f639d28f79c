"""The networks of the benches, on the device and in the precision that they are trained in there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tilegrad import models


def frozen(net: nn.Module) -> nn.Module:
    """Normalisation by running statistics."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return net


@dataclass(frozen=True)
class Net:
    """How a network is made, and the side of its image on a GPU and on a CPU."""

    make: Callable[..., nn.Module]  # takes `width`
    large: int = 4096
    small: int = 512
    channels: int = 3
    rank: int = 2


NETS = {
    "vgg16": Net(partial(models.vgg16, head="pool")),
    "unet": Net(partial(models.unet, padding="same"), channels=1),
    "resnet50_frozen": Net(lambda width: frozen(models.resnet50(width=width))),
    "resnet50_train": Net(models.resnet50),
    "convnext": Net(models.convnext_tiny),
    "convnext_depth": Net(partial(models.convnext_tiny, drop_path_rate=0.1)),
    "resnet18_train": Net(models.resnet18, small=1024),
    "mobilenet_frozen": Net(lambda width: frozen(models.mobilenet_v2(width=width)), small=1024),
    "wavenet": Net(models.wavenet1d, 262144, 16384, 1, 1),
}
FIVE = "vgg16,unet,resnet50_frozen,resnet50_train,convnext"


def side(name: str, device: str, size: int | None = None) -> int:
    """Of the image: what was asked for, or what suits the device."""
    return size or (NETS[name].large if torch.device(device).type == "cuda" else NETS[name].small)


def prepared(name: str, size: int, device: str, width: float = 1.0) -> tuple[nn.Module, Tensor]:
    """A network to train and an image: bfloat16 and channels_last, on a CPU float32 as torch has it."""
    torch.manual_seed(0)
    with torch.device(device):
        net = NETS[name].make(width=width)
        shape = 1, NETS[name].channels, *[size] * NETS[name].rank
        if torch.device(device).type == "cpu":
            return net, torch.randn(shape)
        if len(shape) != 4:
            return net.bfloat16(), torch.randn(shape, dtype=torch.bfloat16)
        image = torch.empty(shape, dtype=torch.bfloat16, memory_format=torch.channels_last)
        return channels_last(net.bfloat16()), image.normal_()


def channels_last(net: nn.Module) -> nn.Module:
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def checkpointed(net: nn.Module) -> nn.Module:
    """A copy whose blocks are run again in backward by `torch.utils.checkpoint`, as people do it by hand."""
    net = copy.deepcopy(net)
    for block in blocks(net):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return net


def blocks(net: nn.Module) -> list[nn.Module]:
    """Residual blocks, levels of a U-Net, and layers up to a pool where there are none of these."""
    if isinstance(net, models.vgg.VGG):
        net.features = nn.Sequential(*_up_to_pools(net.features.children()))
        return list(net.features)
    parts = [getattr(net, name) for name in ("contracting", "expanding", "blocks", "features") if hasattr(net, name)]
    return [block for part in parts for block in part if any(block.children())]


def _up_to_pools(layers: Iterable[nn.Module]) -> list[nn.Sequential]:
    groups = [nn.Sequential()]
    for layer in layers:
        groups[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            groups.append(nn.Sequential())
    return [group for group in groups if len(group)]
