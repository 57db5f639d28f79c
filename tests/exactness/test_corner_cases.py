"""The smallest networks that once gave wrong numbers, kept so that they never do again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.testing import assert_same_step, integer_module, integer_tensor
from tilegrad.testing.op_suite import SampleFunction

every_mode = pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])


def plus_sum(x: Tensor) -> Tensor:
    return x + x.sum(tuple(range(2, x.dim())), keepdim=True)


def shared_statistic(x: Tensor) -> tuple[Tensor, Tensor]:
    y = plus_sum(x)
    return y.clamp(-3, 4), F.max_pool2d(y, 2, 1)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], dict[str, int]]] = {
    # Tiles of one element: gradients that autograd passes on as views of each other.
    "a sum of a sum": (lambda x: plus_sum(plus_sum(x)), (2, 1, 6), {"w": 1}),
    "two views of one gradient": (lambda x: plus_sum(x).view(-1) + plus_sum(x * 2).view(-1), (2, 1, 6), {"w": 1}),
    "one tile": (lambda x: plus_sum(x) + x, (2, 1, 6), {"w": 9}),
    # A statistic per sample lies on one cut axis, the batch, and not on the others.
    "a statistic per sample": (shared_statistic, (3, 2, 5, 5), {"n": 2, "w": 3}),
    "a statistic per row": (lambda x: x + x.sum(3, keepdim=True), (1, 2, 5, 6), {"h": 2, "w": 4}),
    # A statistic of what only a whole node makes.
    "largest after a barrier": (
        lambda x: (lambda y: y - F.adaptive_max_pool2d(y, 1))(F.pad(x, (2, 0, 1, 2), mode="circular")),
        (1, 2, 5, 7),
        {"w": 2},
    ),
    "bins of every sample": (
        lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), (2, 2)).flatten(1).cumsum(1),
        (3, 2, 8, 8),
        {"n": 1, "h": 4},
    ),
    # A window as wide as the image that does not see all of it.
    "a dilated window over all": (lambda x: F.max_pool2d(x, 2, 2, dilation=2, ceil_mode=True), (2, 3, 2, 2), {"n": 1}),
    "a global branch, twice": (lambda x: F.avg_pool2d(x, 4) + F.max_pool2d(x, 4), (2, 2, 4, 4), {"h": 1}),
    "no deviation": (lambda x: x * (x * 0 + 1).std((2, 3), keepdim=True), (2, 2, 5, 6), {"h": 2}),
    # One pixel left on the way, and more again behind it.
    "through one pixel": (lambda x: F.interpolate(x[:, :, 2:3], scale_factor=3) * 2, (1, 2, 5, 6), {"w": 2}),
    "bins of one pixel": (lambda x: F.adaptive_avg_pool2d(x[:, :, :1], (3, 4)), (1, 2, 5, 6), {"w": 2}),
    "one pixel for all": (lambda x: x * x[:, :, 1:2, 2:3], (2, 2, 5, 6), {"h": 2, "w": 2}),
}


@every_mode
@pytest.mark.parametrize("name", CASES)
def test_functions(name: str, mode: str) -> None:
    function, shape, tile = CASES[name]
    assert_same_step(SampleFunction(function), integer_tensor(shape), tile=tile, mode=mode)


class _Permuted(nn.Module):
    def __init__(self, between: nn.Module):
        super().__init__()
        self.a, self.b, self.between = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x).movedim(1, -1)).movedim(-1, 1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "windows wholly in the padding": (lambda: nn.Conv3d(2, 1, 1, 2, 1), (1, 2, 2, 2, 2), 1),
    "outputs that no input reaches": (lambda: nn.ConvTranspose2d(2, 1, 1, 3, 1, 2), (1, 2, 1, 2), 1),
    "gaps between stamps": (lambda: nn.ConvTranspose1d(2, 1, 1, 4, 2, 1), (2, 2, 3), 1),
    "more padding than image": (lambda: nn.Conv2d(2, 2, 2, 1, 5), (1, 2, 2, 3), 1),
    "a stride past the kernel": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1, 3), nn.MaxPool2d(1, 2)), (1, 2, 11, 9), 2),
    # Activations on permuted channels, in tiles of as many pixels as channels: two views of one shape.
    "rectified channels": (lambda: _Permuted(nn.ReLU()), (2, 2, 13, 11), 3),
    "dead ends": (lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.MaxPool2d(4)), (1, 2, 9, 9), 2),
}


@every_mode
@pytest.mark.parametrize("name", NETS)
def test_layers(name: str, mode: str) -> None:
    make, shape, tile = NETS[name]
    assert_same_step(integer_module(make()), integer_tensor(shape), tile=tile, mode=mode)


@every_mode
@pytest.mark.parametrize("tile", [1, 3, 100])
def test_the_gradient_that_is_given_is_not_written_to(tile: int, mode: str) -> None:
    for function in (plus_sum, shared_statistic, lambda x: (x + 0, x.view(x.shape)), lambda x: x.mT):
        x = integer_tensor((1, 2, 5, 5)).requires_grad_()
        found = tilegrad.tile(SampleFunction(function), tile=tile, mode=mode)(x)
        outputs = found if isinstance(found, tuple) else (found,)
        grads = [integer_tensor(out.shape, seed=at) for at, out in enumerate(outputs)]
        before = [grad.clone() for grad in grads]
        torch.autograd.backward(outputs, grads)
        assert all(torch.equal(a, b) for a, b in zip(before, grads, strict=True))
        x.grad += 1  # nor does it share memory with what autograd keeps
        assert all(torch.equal(a, b) for a, b in zip(before, grads, strict=True))


@every_mode
def test_one_gradient_for_two(mode: str) -> None:
    """What is added gets one gradient, in one memory: tiles that add to the one must not add to the other."""

    class OnSpace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.conv = nn.Parameter(torch.zeros(1, 2, 2, 2)), nn.Conv2d(2, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.interpolate(self.conv(x + self.map), scale_factor=2, mode="bilinear")

    assert_same_step(integer_module(OnSpace()), [integer_tensor((1, 2, 2, 2))], tile={"h": 1}, mode=mode)
