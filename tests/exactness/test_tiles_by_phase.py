"""Phases in tiles of their own sizes: few where an image has become small. Gradients, statistics and bytes are as they
are in any tiles.
"""

from __future__ import annotations

import copy
from math import prod

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import BudgetError
from tilegrad.planners.tile import TileSearch
from tilegrad.testing import PeakBytes, assert_same_step, integer_module, integer_tensor


class Residual(nn.Module):
    """A skip over a norm, and a stride, so that what two phases read is of two sizes."""

    def __init__(self, channels: int, norm: type[nn.Module]) -> None:
        super().__init__()
        wide = 2 * channels
        self.first, self.second = nn.Conv2d(channels, wide, 3, 2, 1), nn.Conv2d(wide, wide, 3, padding=1)
        self.beside = nn.Conv2d(channels, wide, 1, 2)
        self.norms = nn.ModuleList(norm(wide) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.beside(x)).relu()


def network(norm: type[nn.Module], ending: nn.Module | None = None) -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3, padding=1), norm(4), nn.ReLU(), Residual(4, norm), Residual(8, norm)]
    return integer_module(nn.Sequential(*layers, ending or nn.Conv2d(16, 2, 1)))


class OneGroup(nn.GroupNorm):
    def __init__(self, channels: int) -> None:
        super().__init__(2, channels)


def grids(tiled: tilegrad.TiledModule, x: Tensor) -> list[tuple[int, ...]]:
    return [phase.grid for phase in tiled.plan_for(x).schedule.phases if phase.tiled]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d, OneGroup])
@pytest.mark.parametrize("size", [(96, 64), (75, 61)])
def test_any_norm(norm: type[nn.Module], size: tuple[int, int]) -> None:
    net, x = network(norm), integer_tensor((2, 2, *size))
    plain = plain_peak(net, x)
    met = set[int]()
    for share in (0.75, 0.6, 0.5, 0.4):
        options = {"budget": int(share * plain), "planner": "tile"}
        try:
            found = grids(tilegrad.tile(copy.deepcopy(net), **options), x)
        except BudgetError:
            continue
        met.add(len(set(found)))
        assert_same_step(copy.deepcopy(net), [x], exact=False, tolerance=1e-9, **options)
    assert max(met) > 1, "all phases were cut alike"


def test_late_phases_are_cut_least(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = (
        network(nn.BatchNorm2d, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
        integer_tensor((1, 2, 128, 128)),
    )
    budget = int(0.4 * plain_peak(net, x))
    counts = [prod(grid) for grid in grids(tilegrad.tile(net, budget=budget, planner="tile"), x)]
    assert counts[-1] == min(counts) < max(counts)
    monkeypatch.setattr(TileSearch, "_with_larger", lambda *_: None)
    alike = tilegrad.tile(copy.deepcopy(net), budget=budget, planner="tile")
    assert len(set(grids(alike, x))) == 1 and sum(counts) < sum(map(prod, grids(alike, x)))


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_what_is_predicted_is_needed(share: float) -> None:
    net, x = network(nn.BatchNorm2d).float(), torch.randn(1, 2, 160, 128)
    tiled = tilegrad.tile(net, budget=int(share * plain_peak(net, x)), planner="tile")
    assert len(set(grids(tiled, x))) > 1
    tiled(x).sum().backward()
    net.zero_grad(set_to_none=True)
    fixed = x.nbytes + sum(t.nbytes for t in (*net.parameters(), *net.buffers()))
    with PeakBytes() as peak:
        tiled(x).backward(torch.ones(1, 2, 40, 32))
    predicted = int(tiled.plan.schedule.predicted["total_bytes"])
    assert 0.9 * predicted <= peak.bytes + fixed <= 1.02 * predicted


def plain_peak(net: nn.Module, x: Tensor) -> int:
    run = copy.deepcopy(net)
    with PeakBytes() as peak:
        out = run(x)
        out.backward(torch.ones_like(out))
    return peak.bytes + x.nbytes + sum(t.nbytes for t in (*net.parameters(), *net.buffers()))
