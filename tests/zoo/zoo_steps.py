"""Steps of networks from elsewhere: without their drop rates equal to plain's, with them repeatable."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.sim.peak import PeakBytes
from tilegrad.testing import StepResult, assert_same, run_step

TOLERANCE = 1e-9  # of the largest entry: float64, some hundred roundings deep


def without_drops(net: nn.Module) -> nn.Module:
    """`net` itself, all of its drop rates 0: plain and tiles draw from different streams."""
    for module in net.modules():
        kind = type(module).__name__.lower()
        for name, value in list(vars(module).items()):
            rate = "drop" in name or (name == "p" and ("drop" in kind or "depth" in kind))
            if rate and isinstance(value, float):
                setattr(module, name, 0.0)
    return net


def without_checkpoints(net: nn.Module) -> nn.Module:
    """A copy that runs nothing again. `torch.utils.checkpoint` does so in the backward pass, and running statistics in
    it move twice in plain PyTorch; tiles move them once."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if hasattr(module, "memory_efficient"):
            module.memory_efficient = False
    return net


def awake(net: nn.Module) -> nn.Module:
    """`net` itself, with numbers in the parameters that start as zeros, behind which gradients would be zeros too."""
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, 0, 0.1)
    return net


def picture(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def plain_step(net: nn.Module, x: Tensor) -> StepResult:
    """Plain's step, after a look at whether comparing with it says anything."""
    step = run_step(without_checkpoints(net), [x])
    graded = [g for g in step.gradients.values() if g is not None]
    assert all(g.isfinite().all() for g in graded)
    assert step.gradients["gradient of input 0"] is not None
    assert sum(bool(g.any()) for g in graded) > 0.8 * len(graded)
    return step


def assert_plains(net: nn.Module, x: Tensor, wanted: StepResult, tolerance: float = TOLERANCE, **options: Any) -> None:
    found = run_step(tilegrad.tile(copy.deepcopy(net), **options), [x])
    assert_same(found, wanted, exact=False, tolerance=tolerance, note=f"tiled with {options}")


def plain_bytes(net: nn.Module, x: Tensor) -> int:
    """The peak of a plain step as a budget counts it: with parameters, buffers and the input."""
    net = copy.deepcopy(net)
    there = sum(t.numel() * t.element_size() for t in (x, *net.parameters(), *net.buffers()))
    with PeakBytes() as peak:
        run_step(net, [x])
    return peak.bytes + there


class Seeded:
    """Tiled steps with the drop rates that the network has, all from the same state."""

    def __init__(self, net: nn.Module, x: Tensor, **options: Any):
        self.x, self.tiled = x, tilegrad.tile(copy.deepcopy(net), **options)
        self.state = copy.deepcopy(self.tiled.state_dict())

    def __call__(self, seed: int) -> StepResult:
        self.tiled.load_state_dict(self.state)
        self.tiled.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        step = run_step(self.tiled, [self.x])
        for name, tensor in (step.outputs | step.gradients).items():
            assert tensor is None or tensor.isfinite().all(), name
            assert tensor is None or math.prod(tensor.shape) > 0, name
        return step
