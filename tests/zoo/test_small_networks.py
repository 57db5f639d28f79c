"""Small networks of the public families: a step equal to plain's in tiles and in half of plain's memory, and with
their drop rates one that can be repeated."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from small_networks import NETWORKS
from torch import Tensor, nn
from zoo_steps import Seeded, assert_plains, picture, plain_bytes, plain_step, without_drops

from thorough import crossed
from tilegrad.errors import BudgetError
from tilegrad.testing import StepResult, assert_same

# They have no drop rates: that their steps are plain's is all there is to know.
STEADY = {"eca_resnet", "shufflenet", "dynunet", "spectral_norm, hooks", "spectral_norm, parametrized", "globe"}
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name][0]().double().train()


@cache
def still(name: str) -> tuple[nn.Module, Tensor, StepResult]:
    """The network without drop rates, its image and plain's step. All tests leave them as they are."""
    net, x = without_drops(made(name)), picture(NETWORKS[name][1])
    return net, x, plain_step(net, x)


@every_network
def test_tiles_give_plains_step(name: str) -> None:
    net, x, wanted = still(name)
    assert_plains(net, x, wanted, tile=16, mode="stream")


@every_network
def test_half_of_plains_memory_gives_plains_step(name: str) -> None:
    net, x, wanted = still(name)
    try:
        assert_plains(net, x, wanted, budget=plain_bytes(net, x) // 2)
    except BudgetError as error:
        pytest.skip(f"{name}: {str(error).splitlines()[0]}")


@pytest.mark.parametrize("name", crossed(NETWORKS))
def test_evaluation_gives_plains_outputs(name: str) -> None:
    net, x = copy.deepcopy(still(name)[0]).eval(), still(name)[1]
    assert_plains(net, x, plain_step(net, x), tile=16, mode="stream")


@pytest.mark.parametrize("name", crossed([name for name in NETWORKS if name not in STEADY]))
def test_steps_with_drop_rates_are_repeated_by_seed(name: str) -> None:
    net, x = made(name), picture(NETWORKS[name][1])
    steps = Seeded(net, x, tile=16)
    first = steps(7)
    assert_same(steps(7), first)
    assert_same(Seeded(net, x, tile=24)(7), first, exact=False, tolerance=1e-9)
    with pytest.raises(AssertionError, match="output 0"):
        assert_same(steps(8), first, exact=False, tolerance=1e-9)


@every_network
def test_they_are_small(name: str) -> None:
    net, x, _ = still(name)
    assert 1000 < sum(p.numel() for p in net.parameters()) < 10_000
    assert min(x.shape[2:]) >= 33 and max(x.shape[2:]) <= 64
