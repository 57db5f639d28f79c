"""What modules remember from call to call: written once, as plain torch does, and read in backward as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.testing import assert_same_step, integer_module, integer_tensor

every_mode = pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])


class Remembers(nn.Module):
    """Two convolutions, a buffer for every channel and one for the number of calls."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3)
        self.register_buffer("memory", torch.ones(3, 1, 1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.function = function
        integer_module(self)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def average(m: Remembers, x: Tensor) -> Tensor:
    y = m.a(x)
    m.memory.mul_(0.5).add_(y.detach().sum((0, 2, 3)).view(3, 1, 1))
    m.calls += 1
    return m.b(y * 2)


def read_then_replace(m: Remembers, x: Tensor) -> Tensor:
    y = m.b(m.a(x) * m.memory)
    m.memory = m.memory * 2 + 1
    return y


def write_then_read(m: Remembers, x: Tensor) -> Tensor:
    y = m.a(x)
    m.memory.copy_(y.detach().amax((0, 2, 3)).view(3, 1, 1))
    return m.b(y * m.memory)


def give_back(m: Remembers, x: Tensor) -> Any:
    return m.b(m.a(x)), m.memory, m.calls


@every_mode
@pytest.mark.parametrize("function", [average, read_then_replace, write_then_read, give_back])
def test_buffers_of_ones_own(function: Callable[..., Any], mode: str) -> None:
    assert_same_step(Remembers(function), integer_tensor((2, 2, 13, 11)), tile=4, mode=mode)


class Norms(nn.Module):
    def __init__(self, norm: nn.Module, calls: int):
        super().__init__()
        self.conv, self.norm, self.calls = nn.Conv2d(2, 4, 3), norm, calls

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        for _ in range(self.calls):
            x = self.norm(x).relu()
        return x


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch, slow": lambda: nn.BatchNorm2d(4, momentum=0.01, eps=1e-3),
    "batch, not affine": lambda: nn.BatchNorm2d(4, affine=False),
    "batch, not tracking": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "instance, not tracking": lambda: nn.InstanceNorm2d(4),
    "group": lambda: nn.GroupNorm(2, 4),
    "group of all": lambda: nn.GroupNorm(1, 4, affine=False),
    "local response": lambda: nn.LocalResponseNorm(3),
}


@every_mode
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, calls: int, mode: str) -> None:
    torch.manual_seed(0)
    net = Norms(NORMS[name](), calls).double()
    for train in (True, False):
        assert_same_step(net.train(train), integer_tensor((2, 2, 13, 11)), exact=False, tile=4, mode=mode)


@every_mode
def test_norms_with_the_batch_cut(mode: str) -> None:
    torch.manual_seed(0)
    for name in ("batch", "instance", "group"):
        net = Norms(NORMS[name](), 1).double()
        assert_same_step(net, integer_tensor((3, 2, 9, 8)), exact=False, tile={"n": 1, "h": 4}, mode=mode)


@every_mode
def test_two_calls_before_backward(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3)).double()
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=4, mode=mode)
    for run in (plain, tiled):
        (run(integer_tensor((2, 2, 9, 8))).sum() + run(integer_tensor((2, 2, 9, 8), seed=1)).square().sum()).backward()
    for a, b in zip(plain.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-10, atol=1e-10)
    for a, b in zip(plain.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


@every_mode
def test_frozen_statistics_while_training(mode: str) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3)).double().train()
    net[1].eval()
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    step = assert_same_step(net, integer_tensor((2, 2, 9, 8)), exact=False, tile=4, mode=mode)
    assert all(torch.equal(step.buffers[f"buffer {name}"], buffer) for name, buffer in before.items())


def test_numbers_of_a_frozen_norm_are_those_of_the_step() -> None:
    """They are worked out once for all tiles of a step, and anew for the next one."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3).double().eval().requires_grad_(False)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1).double(), norm, nn.ReLU())
    tiled, x = tilegrad.tile(net, tile=8), torch.randn(1, 2, 24, 20, dtype=torch.float64)
    for step in range(3):
        norm.running_var.fill_(step + 1.0)
        norm.running_mean.fill_(0.1 * step)
        norm.weight.fill_(1.0 + step)
        found = torch.autograd.grad(tiled(x).square().sum(), net[0].weight)
        torch.testing.assert_close(found, torch.autograd.grad(net(x).square().sum(), net[0].weight))
