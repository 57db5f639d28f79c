"""Random operators: draws belong to places, not to tiles."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import CaptureError


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y * torch.rand_like(y) + torch.randn_like(y) * torch.bernoulli(torch.full_like(y, 0.25))


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
def test_the_same_seed_gives_the_same_draws_for_any_tiling(mode: str) -> None:
    net = Noisy().double()
    x = torch.randn(2, 1, 23, 17, dtype=torch.float64)
    results = []
    for size in (5, 40):
        torch.manual_seed(3)
        net.zero_grad()
        out = tilegrad.tile(net, tile=size, mode=mode)(x)
        out.sum().backward()
        results.append((out.detach(), net.conv.weight.grad.clone()))
    assert torch.allclose(results[0][0], results[1][0], rtol=0, atol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-10)


def test_draws_have_the_right_statistics() -> None:
    class Draws(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kept = torch.bernoulli(torch.full_like(x, 0.25))
            return torch.stack([torch.rand_like(x), torch.randn_like(x), kept]) + 0 * nn.functional.relu(x)

    with torch.no_grad():
        uniform, normal, kept = tilegrad.tile(Draws(), tile=64)(torch.zeros(1, 4, 256, 256))
    assert uniform.mean() == pytest.approx(0.5, abs=0.005) and uniform.min() >= 0 and uniform.max() < 1
    assert normal.mean() == pytest.approx(0, abs=0.01) and normal.std() == pytest.approx(1, abs=0.01)
    assert kept.mean() == pytest.approx(0.25, abs=0.005)


def test_other_random_operators_are_refused() -> None:
    class Shuffled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.max_pool2d(x, 2) + torch.normal(torch.zeros(4, 4), 1.0)

    with pytest.raises(CaptureError, match="draws random numbers that tiles cannot repeat"):
        tilegrad.tile(Shuffled(), tile=4)(torch.zeros(1, 1, 8, 8))


def test_a_plan_is_plain_data_too() -> None:
    plan = tilegrad.tile(Noisy(), tile=8).plan_for((1, 1, 32, 32))
    found = json.loads(json.dumps(plan.to_json()))
    assert found["mode"] == "stream" and found["phases"][0]["grid"] == [4, 4]
    assert found["predicted"]["total_bytes"] > 0
