"""Plans of whole nodes: in half precision what is predicted is what is held; a draw is in the way of no gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import convnext_tiny, resnet18, vgg16
from tilegrad.testing import PeakBytes


def held(run: nn.Module, x: Tensor) -> int:
    """Bytes of a step, the model and the image included."""
    with PeakBytes() as peak:
        run(x).float().mean().backward()
    run.zero_grad(set_to_none=True)
    return peak.bytes + sum(t.nbytes for t in (*run.parameters(), *run.buffers(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("planner", ["recompute", "segments"])
def test_bytes_are_as_predicted(dtype: torch.dtype, planner: str) -> None:
    torch.manual_seed(0)
    net, x = vgg16(width=0.125, head="pool").to(dtype), torch.randn(1, 3, 192, 192).to(dtype)
    held(net, x)  # libraries are loaded
    tiled = tilegrad.tile(net, budget=int(0.8 * held(net, x)), planner=planner)
    measured = held(tiled, x)
    assert tiled.plan.schedule.predicted["total_bytes"] == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("learns", [True, False], ids=["numbers learn", "numbers are given"])
def test_frozen_norms_of_whole_nodes(learns: bool) -> None:
    """One pass of ours: no further from double precision than plain is."""
    torch.manual_seed(0)
    exact = resnet18(width=0.25).double().eval()
    for module in exact.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            module.requires_grad_(learns)
    x = torch.randn(1, 3, 224, 224)
    found = {"exact": gradients(exact, x.double())}
    plain = copy.deepcopy(exact).bfloat16()
    found["plain"] = gradients(copy.deepcopy(plain), x.bfloat16())
    tiled = tilegrad.tile(plain, budget=int(0.85 * held(plain, x.bfloat16())), planner="recompute")
    found["tiled"] = gradients(tiled, x.bfloat16())
    assert tiled.plan.schedule.mode == "recompute" and found["tiled"].keys() == found["exact"].keys()
    far = {way: sum(_away(found[way][name], right) for name, right in found["exact"].items()) for way in found}
    assert 0 < far["tiled"] <= 1.05 * far["plain"]


def gradients(run: nn.Module, x: Tensor) -> dict[str, Tensor]:
    run(x).double().square().mean().backward()
    return {n.removeprefix("module."): p.grad.double() for n, p in run.named_parameters() if p.grad is not None}


def _away(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def test_segments_with_stochastic_depth() -> None:
    torch.manual_seed(0)
    net, x = convnext_tiny(width=0.125, drop_path_rate=0.1), torch.randn(1, 3, 128, 128)
    tiled = tilegrad.tile(net, budget=int(0.8 * held(net, x)), planner="segments")
    tiled(x).sum().backward()
    assert tiled.plan.schedule.mode == "segments"
    assert all(p.grad is not None for p in net.parameters())
