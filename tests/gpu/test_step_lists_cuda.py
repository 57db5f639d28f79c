"""Plans of whole nodes on a CUDA device: the same gradients, inside the budget, copies beside computing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.models import resnet18, unet, vgg16
from tilegrad.sim.peak import PeakBytes

pytestmark = pytest.mark.gpu

MAKERS = {
    "vgg16": lambda: vgg16(width=0.5, head="pool"),
    "resnet18": lambda: resnet18(width=0.5),
    "unet": lambda: unet(width=0.5, depth=3),
}


@pytest.mark.parametrize("planner", ["recompute", "offload", "segments"])
@pytest.mark.parametrize("name", MAKERS)
def test_same_gradients_inside_the_budget(name: str, planner: str) -> None:
    torch.manual_seed(0)
    plain = MAKERS[name]().cuda().double().train()
    x = torch.randn(2, 1 if name == "unet" else 3, 256, 256, device="cuda", dtype=torch.float64)
    net = copy.deepcopy(plain)
    out = plain(x)
    seed = torch.randn_like(out)
    out.backward(seed)
    whole = tilegrad.tile(net, mode="none").plan_for(x).schedule.predicted["total_bytes"]
    budget = int((0.85 if name == "resnet18" else 0.75) * whole)
    tiled = tilegrad.tile(net, budget=budget, planner=planner)
    plan = tiled.plan_for(x)
    assert plan.schedule.mode == planner, str(plan)
    given = _bytes(x, seed, *net.parameters(), *net.buffers())
    with PeakBytes("cuda") as peak:
        tiled(x).backward(seed)
    for (key, p), (_, q) in zip(plain.named_parameters(), net.named_parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-9, atol=1e-9 * float(p.grad.abs().max()), msg=key)
    for (key, p), (_, q) in zip(plain.named_buffers(), net.named_buffers(), strict=True):
        torch.testing.assert_close(q, p, msg=key)
    assert peak.bytes + given <= 1.05 * budget, (peak.bytes + given, budget, plan.schedule.predicted)


def test_copies_keep_up_over_many_steps() -> None:
    """Memory that is given back while a copy is under way would show as wrong gradients sooner or later."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(12))).cuda()
    net = copy.deepcopy(plain)
    x = torch.randn(4, 8, 512, 512, device="cuda")
    whole = tilegrad.tile(net, mode="none").plan_for(x).schedule.predicted["total_bytes"]
    tiled = tilegrad.tile(net, budget=int(0.5 * whole), planner="offload")
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        plain(x).square().mean().backward()
        wanted = [p.grad.clone() for p in plain.parameters() if p.grad is not None]
        for _ in range(10):
            net.zero_grad(set_to_none=True)
            tiled(x).square().mean().backward()
            for p, grad in zip(net.parameters(), wanted, strict=True):
                assert p.grad is not None
                torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-4 * float(grad.abs().max()))


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
