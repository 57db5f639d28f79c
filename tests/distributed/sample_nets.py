"""Small networks that ask something of a mesh, by name: each is a function that gives a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tasks import Case
from torch import Tensor, nn

from drawn_layers import Applied
from tilegrad.models import SegmentationLoss, resnet18, unet
from tilegrad.testing import integer_module, integer_tensor

Make = Callable[[], Case]
EXACT: dict[str, Make] = {}  # integer-valued: every number is equal
WINDOWS: dict[str, Make] = {}  # and of one kind of layer each
CLOSE: dict[str, Make] = {}  # with divisions: equal but for rounding


def conv(a: int, b: int, k: int = 3, s: int = 1, p: int = 1, d: int = 1) -> nn.Conv2d:
    return nn.Conv2d(a, b, k, s, p, d)


def exact(net: nn.Module, *shape: int, seed: int = 1, **how: Any) -> Case:
    return Case(integer_module(net, -1, 1), (integer_tensor(shape, -2, 2, seed),), **how)


def close(net: nn.Module, *inputs: Tensor | tuple[int, ...], **how: Any) -> Case:
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.4)
    given = (torch.randn(x) if isinstance(x, tuple) else x for x in inputs)
    return Case(net.double(), tuple(x.double() if x.is_floating_point() else x for x in given), **how)


class Joined(nn.Module):
    """Two images, one half the size of the other; gives back two."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = conv(2, 3), conv(1, 3)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        wide = F.interpolate(self.right(b), scale_factor=2)
        both = self.left(a) + wide[:, :, : a.shape[2], : a.shape[3]]
        return {"both": both, "pooled": F.max_pool2d(both, 3, 2, 1)}


class Unused(nn.Module):
    """Gives back an input as it came, a constant, and something that needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = conv(2, 2), conv(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.layer(x)
        return x, made, made.detach() * 2


class Shared(nn.Module):
    """One layer used three times, and its weight once more by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = conv(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.layer(self.layer(x)).relu())
        return x * self.layer.weight.sum()


class Positions(nn.Module):
    """A parameter for every pixel, read through a window too."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.map, self.layer = nn.Parameter(torch.zeros(1, 2, *size)), conv(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.map) + F.max_pool2d(self.map, 3, 1, 1)


class Idle(Positions):
    """And a layer whose result is not used: it gets no gradient, not even zeros."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__(size)
        self.idle = conv(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        return super().forward(x)


class Weighted(nn.Module):
    """A loss inside the model, with a mask beside the image, and a metric that is a plain number."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        made = self.net(x)
        return F.binary_cross_entropy_with_logits(made, mask), (made > 0).double().mean()


def _windows() -> None:
    for size in (16, 17, 18):
        WINDOWS[f"k3 s2 p1 on {size}"] = lambda size=size: exact(
            nn.Sequential(conv(2, 3, s=2), conv(3, 2)), 2, 2, size, size
        )
    for name, made in {
        "k3 s3": lambda: conv(2, 2, s=3, p=0),
        "k3 s3 p1": lambda: conv(2, 2, s=3),
        "k2 s4": lambda: conv(2, 2, 2, 4, 0),  # windows with gaps between them
        "dilation 2": lambda: conv(2, 2, d=2, p=2),
        "k4": lambda: conv(2, 2, 4, 1, 1),
        "k5 p0": lambda: conv(2, 2, 5, 1, 0),
        "transposed k3 s2 p1": lambda: nn.ConvTranspose2d(2, 2, 3, 2, 1),
        "transposed, output padding": lambda: nn.ConvTranspose2d(2, 2, 3, 2, 1, output_padding=1),
        "transposed k2 s3": lambda: nn.ConvTranspose2d(2, 2, 2, 3),  # rows that read nothing
        "max pool 2": lambda: nn.MaxPool2d(2),
        "max pool 3 s2 p1": lambda: nn.MaxPool2d(3, 2, 1),
        "max pool, ceil": lambda: nn.MaxPool2d(2, 3, ceil_mode=True),
        "average pool, with padding": lambda: nn.AvgPool2d(2, 2, 1, count_include_pad=True),
        "average pool, without padding": lambda: nn.AvgPool2d(2, 2, 1, count_include_pad=False),
        "nearest": lambda: nn.Upsample(scale_factor=2, mode="nearest"),
        "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        "reflect": lambda: nn.ReflectionPad2d(2),
        "cumsum, which needs all of the image": lambda: Applied(torch.cumsum, {"dim": 2}),
        "shuffle": lambda: nn.Sequential(conv(2, 8), nn.PixelShuffle(2)),
    }.items():
        WINDOWS[name] = lambda made=made: exact(nn.Sequential(conv(2, 2), made(), conv(2, 2)), 2, 2, 17, 15)


def _stacks() -> None:
    EXACT["conv stack"] = lambda: exact(
        nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 3), nn.ReLU(), conv(3, 2)), 2, 2, 12, 12
    )
    EXACT["conv stack, odd"] = lambda: exact(nn.Sequential(conv(2, 4), nn.ReLU(), conv(4, 2)), 3, 2, 13, 11)
    EXACT["halo wider than a shard"] = lambda: exact(nn.Sequential(*(conv(1, 1) for _ in range(7))), 2, 1, 6, 5)
    EXACT["maps smaller than the mesh"] = lambda: exact(
        nn.Sequential(conv(1, 2, s=2), conv(2, 2, s=2), conv(2, 2, s=2), nn.Upsample(scale_factor=4), conv(2, 1)),
        2,
        1,
        9,
        9,
    )
    EXACT["one pixel"] = lambda: exact(nn.Sequential(conv(1, 2, s=4), nn.MaxPool2d(3, 3, 1), conv(2, 2)), 2, 1, 7, 6)
    EXACT["unet"] = lambda: exact(unet(width=1 / 32, depth=2, in_channels=2), 2, 2, 17, 14)
    EXACT["flatten and linear"] = lambda: exact(
        nn.Sequential(conv(2, 3, s=2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 7 * 6, 4)), 4, 2, 13, 12
    )
    EXACT["global max pool"] = lambda: exact(
        nn.Sequential(conv(2, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(3, 4)), 4, 2, 11, 10
    )
    EXACT["sum"] = lambda: exact(nn.Sequential(conv(2, 3), Applied(torch.sum)), 2, 2, 11, 10)
    EXACT["several inputs and outputs"] = lambda: Case(
        integer_module(Joined(), -1, 1), (integer_tensor((2, 2, 12, 16)), integer_tensor((2, 1, 6, 8)))
    )
    EXACT["outputs without gradient"] = lambda: exact(Unused(), 2, 2, 9, 8)
    EXACT["shared weights"] = lambda: exact(Shared(), 2, 2, 9, 8)
    EXACT["an idle layer beside a parameter for every pixel"] = lambda: exact(Idle((9, 8)), 2, 2, 9, 8)
    EXACT["a parameter for every pixel"] = lambda: exact(Positions((9, 8)), 2, 2, 9, 8)


def _norms() -> None:
    for name, made in {
        "batch norm": lambda: nn.BatchNorm2d(4),
        "group norm": lambda: nn.GroupNorm(2, 4),
        "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
        "average pool 3": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        "bilinear, corners": lambda: nn.Upsample((23, 9), mode="bilinear", align_corners=True),
        "bicubic": lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"),
        "adaptive": lambda: nn.AdaptiveAvgPool2d((5, 3)),
    }.items():
        CLOSE[name] = lambda made=made: close(nn.Sequential(conv(2, 4), made(), nn.GELU(), conv(4, 2)), (4, 2, 13, 12))
    CLOSE["batch norm twice"] = lambda: close(
        nn.Sequential(
            conv(2, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4, s=2), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)
        ),
        (4, 2, 17, 18),
    )
    CLOSE["global average"] = lambda: close(
        nn.Sequential(conv(2, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)),
        (4, 2, 11, 10),
    )
    CLOSE["resnet18"] = lambda: close(resnet18(3, width=1 / 16), (4, 3, 33, 32))
    CLOSE["unet with batch norm"] = lambda: close(
        unet(width=1 / 16, depth=3, norm="batch", up="bilinear"), (2, 1, 21, 20)
    )
    CLOSE["unet with its loss"] = lambda: close(
        SegmentationLoss(unet("valid", width=1 / 16, depth=1)), (2, 1, 24, 26), integer_tensor((2, 24, 26), 0, 1).long()
    )
    CLOSE["loss and metric"] = lambda: close(
        Weighted(nn.Sequential(conv(2, 3), nn.BatchNorm2d(3), conv(3, 1))),
        (2, 2, 10, 9),
        integer_tensor((2, 1, 10, 9), 0, 1),
    )


_windows()
_stacks()
_norms()
