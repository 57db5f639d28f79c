"""A convolution whose result is stored is not run again for its backward, and gives plain's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tilegrad
from tilegrad.testing import PeakBytes, assert_same_step, integer_module, integer_tensor


class Twice(nn.Module):
    """Between two convolutions something that needs all of the image."""

    def __init__(self, dims: int, groups: int = 1, stride: int = 1, dilation: int = 1, bias: bool = True):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first = conv(2, 4, 3, stride, dilation, dilation, groups, bias)
        self.second = conv(4, 2, 3, padding=1, bias=bias)
        self.over = tuple(range(2, 2 + dims))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        found: Tensor = self.second(x - x.sum(self.over, keepdim=True))
        return found


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.forward, self.backward = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.forward += func is torch.ops.aten.convolution.default
        self.backward += func is torch.ops.aten.convolution_backward.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [{"dims": 1}, {"dims": 2}, {"dims": 3}, {"dims": 2, "groups": 2}, {"dims": 2, "stride": 2},
     {"dims": 2, "dilation": 2}, {"dims": 2, "bias": False}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("mode", ["auto", "stream", "scatter", "gather"])
def test_gradients_are_plains(options: dict[str, Any], mode: str) -> None:
    image = integer_tensor((2, 2, *(13, 11, 9)[: options["dims"]])).requires_grad_()
    assert_same_step(integer_module(Twice(**options)), [image], tile=5, mode=mode)


def test_what_is_stored_is_not_made_again() -> None:
    net, image = integer_module(Twice(2)), integer_tensor((1, 2, 12, 12))
    tiled = tilegrad.tile(net, tile={"h": 4}, mode="scatter")
    tiled.plan_for(image)
    with Count() as counted:
        out = tiled(image)
        forward = counted.forward
        out.sum().backward()
    assert forward == 6 == counted.backward and counted.forward == 6


def test_a_weight_that_is_frozen() -> None:
    net = integer_module(Twice(2))
    net.first.weight.requires_grad_(False)
    assert_same_step(net, [integer_tensor((1, 2, 12, 12)).requires_grad_()], tile=5)


def test_normalisation_in_training() -> None:
    """Statistics need all of a convolution's result: phase after phase, and none is run again."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, stride=2)]
    net = nn.Sequential(*layers, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).double()
    image = torch.randn(2, 3, 33, 30, dtype=torch.float64)
    assert_same_step(net, [image], exact=False, tile=8)
    tiled = tilegrad.tile(net, tile={"h": 8})
    predicted = tiled.plan_for(image).schedule.predicted["peak_bytes"]
    with PeakBytes() as peak, Count() as counted:
        tiled(image).sum().backward()
    assert counted.forward == counted.backward > 2
    grads = sum(p.numel() * 8 for p in net.parameters())
    assert peak.bytes <= 1.02 * (predicted + grads)
