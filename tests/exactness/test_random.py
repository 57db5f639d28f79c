"""Random operators: draws belong to places, not to tiles."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tilegrad


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


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: torch.normal(torch.zeros(4, 4), 1.0),
    "multinomial": lambda x: torch.multinomial(torch.ones(4, 4), 4).float(),
    "randperm": lambda x: torch.randperm(4).float(),
    "rrelu": lambda x: torch.nn.functional.rrelu(x[..., :4, :4] - 2, training=True),
    "geometric": lambda x: torch.zeros(4, 4).geometric_(0.3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_random_operators_run_whole_from_a_seed(name: str) -> None:
    class Draws(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.max_pool2d(x, 2) * OTHERS[name](x)

    tiled, x = tilegrad.tile(Draws(), tile=4), torch.ones(1, 1, 8, 8, requires_grad=True)
    first, second = (tiled(x) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    again = tiled(x)
    torch.manual_seed(7)
    assert torch.equal(tiled(x), again)
    again.sum().backward()  # drawn again, and the same
    pooled = torch.nn.functional.max_pool2d(torch.ones(1, 1, 8, 8), 2)
    if name != "rrelu":
        assert x.grad is not None and torch.allclose(x.grad.sum(), (again / pooled).sum())


def test_a_plan_is_plain_data_too() -> None:
    plan = tilegrad.tile(Noisy(), tile=8).plan_for((1, 1, 32, 32))
    found = json.loads(json.dumps(plan.to_json()))
    assert found["mode"] == "stream" and found["phases"][0]["grid"] == [4, 4]
    assert found["predicted"]["total_bytes"] > 0
