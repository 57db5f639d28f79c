"""A budget that cannot be: the least that works, what decides it, and what would lower it, for each kind of model."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import lower_graph
from tilegrad.bounds.mesh import Mesh
from tilegrad.errors import BudgetError
from tilegrad.importers import export_module
from tilegrad.ir import Kind
from tilegrad.planners import Effort, MeshProblem, Problem, TrainingStep, plan_step
from tilegrad.planners.mesh import plan_rank
from tilegrad.planners.offload import least_by_copies
from tilegrad.sim.machine import find_machine
from tilegrad.units import parse_bytes
from training_graphs import seeded_graph


def convolutions(norm: bool = False, count: int = 4, width: int = 8) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(count):
        layers.append(nn.Conv2d(width if i else 1, width, 3, padding=1))
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1))


def refuse(net: nn.Module, shape: tuple[int, ...], **options: Any) -> BudgetError:
    with pytest.raises(BudgetError) as caught:
        tilegrad.tile(net, **options).plan_for(shape)
    return caught.value


def just_above(net: nn.Module, shape: tuple[int, ...]) -> int:
    """A little more than what is there in any case."""
    floats = 2 * sum(p.numel() for p in net.parameters()) + math.prod(shape)
    return 4 * floats + sum(b.nbytes for b in net.buffers()) + 2048


def about(error: BudgetError, what: str) -> int:
    """The bytes that a hint names."""
    found = re.search(rf"{re.escape(what)} \((?:about )?([0-9.]+\w+)", error.hint or "")
    assert found, error.hint
    return parse_bytes(found[1])


def test_the_least_that_an_error_carries_works() -> None:
    net, shape = convolutions(), (1, 1, 64, 64)
    error = refuse(net, shape, budget=just_above(net, shape))
    assert error.least_bytes is not None and f"({error.least_bytes} bytes)" in error.what and error.where
    plan = tilegrad.tile(net, budget=error.least_bytes).plan_for(shape)
    assert plan.schedule.predicted["total_bytes"] <= error.least_bytes


@pytest.mark.parametrize(("batch", "hint"), [(1, "or a smaller input"), (6, "or fewer than 6 samples")])
def test_less_of_the_input(batch: int, hint: str) -> None:
    net, shape = convolutions(), (batch, 1, 64, 64)
    error = refuse(net, shape, budget=just_above(net, shape), planner="tile")
    assert error.hint is not None and error.hint.endswith(hint)


def test_parameters_alone_are_too_much() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 30 * 30, 100))
    error = refuse(net, (1, 1, 32, 32), budget="1MiB")
    assert "; no plan can, for parameters (1.37MiB) and their gradients (1.37MiB) are there in any case" in error.what
    assert error.hint is not None and error.hint.endswith(", fewer parameters with requires_grad or a smaller model")
    assert "input" not in error.hint and "halos" not in error.hint


def test_without_gradients_there_are_none_to_save() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 30 * 30, 100))
    with torch.no_grad():
        error = refuse(net, (1, 1, 32, 32), budget="1MiB")
    assert "no plan can, for parameters (1.37MiB) are there" in error.what
    assert error.hint is not None and error.hint.endswith("or a smaller model") and "requires_grad" not in error.hint


def test_the_input_alone_is_too_much() -> None:
    error = refuse(convolutions(), (4, 1, 256, 256), budget="1MiB")
    assert "no plan can, for inputs (1.00MiB) are there in any case" in error.what
    assert error.hint is not None and re.fullmatch(r'budget="\d+MiB" or fewer than 4 samples', error.hint)


def test_halos_elsewhere() -> None:
    net, shape = convolutions(width=16), (1, 1, 128, 128)
    budget = just_above(net, shape)
    here = refuse(net, shape, budget=budget, halos="device", planner="tile")
    there = refuse(net, shape, budget=budget, halos="disk", planner="tile")
    assert here.least_bytes is not None and there.least_bytes is not None and "halos" not in (there.hint or "")
    assert there.least_bytes < here.least_bytes
    assert about(here, 'halos="disk"') == pytest.approx(there.least_bytes, rel=0.15)


def test_norms_that_train_need_little_more_than_frozen_ones() -> None:
    """What they wait for is not stored where memory is short: it would not help to freeze them."""
    net, shape = convolutions(norm=True, count=6, width=16), (1, 1, 256, 256)
    budget = just_above(net, shape)
    training = refuse(net, shape, budget=budget, halos="device", planner="tile")
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    frozen = refuse(net, shape, budget=budget, halos="device", planner="tile")
    assert frozen.least_bytes is not None and training.least_bytes is not None
    assert training.least_bytes < 1.5 * frozen.least_bytes and ".eval()" not in (training.hint or "")


def test_values_that_could_wait_in_a_file() -> None:
    graph, machine = seeded_graph(3, unit=1 << 16), find_machine("v100")
    with pytest.raises(BudgetError) as caught:
        plan_step(Problem(3 << 20, TrainingStep(graph, machine, Effort(nodes=0), hosted=False)))
    needed = least_by_copies(graph)[0]
    assert caught.value.least_bytes is not None and needed < caught.value.least_bytes
    assert about(caught.value, 'planner="offload"') == pytest.approx(needed, rel=0.01)


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cumsum(torch.cumsum(self.first(x), -1), -2)).mean()


def test_an_operator_that_runs_whole() -> None:
    error = refuse(Sums(), (1, 1, 64, 64), budget="64KiB")
    assert error.hint is not None and "another operator for cumsum 'cumsum" in error.hint
    assert "which runs whole (docs/operators.md#barriers)" in error.hint


@pytest.mark.parametrize(
    ("options", "named"), [({"planner": "recompute"}, True), ({}, False), ({"mode": "stream"}, False)]
)
def test_other_planners_are_named_where_one_was_asked_for(options: dict[str, Any], named: bool) -> None:
    net, shape = convolutions(), (1, 1, 64, 64)
    error = refuse(net, shape, budget=just_above(net, shape), **options)
    assert ('planner="auto"' in (error.hint or "")) is named


def test_tiles_that_were_asked_for() -> None:
    net, shape = convolutions(width=16), (2, 1, 128, 128)
    error = refuse(net, shape, budget="1MiB", tile=64)
    assert re.match(r"these tiles need \S+, more than 1\.00MiB, with none of them kept$", error.what)
    assert error.hint is not None and re.match(r'budget="\d+MiB", a smaller tile=, budget= alone', error.hint)
    assert error.hint.endswith("or fewer than 2 samples") and error.where
    assert error.least_bytes is not None and tilegrad.tile(net, budget=error.least_bytes, tile=64).plan_for(shape)


@pytest.mark.parametrize("budget", ["640KiB", "2MiB", "8MiB"])
def test_a_chain_of_norms_in_less_than_its_stored_values(budget: str) -> None:
    """Four of them are 16 MiB: none is stored where squares of the image leave room for the halos of all."""
    net = convolutions(norm=True, count=6, width=16)
    found = tilegrad.tile(net, budget=budget, halos="device").plan_for((1, 1, 256, 256)).schedule
    assert found.predicted["total_bytes"] <= parse_bytes(budget)


def test_tiles_of_a_model_that_cannot_fit() -> None:
    error = refuse(convolutions(width=64), (1, 1, 64, 64), budget="400KiB", tile=16)
    assert "no plan can, for parameters" in error.what and "tile=" not in (error.hint or "")


def test_a_rank() -> None:
    net = convolutions(width=8)
    graph = lower_graph(export_module(net, ((2, 1, 128, 64),), {}).graph)
    graded = tuple(v.name for v in graph.of_kind(Kind.PARAMETER))
    ranks = MeshProblem(graph, Mesh(("h",), (2,), (0, 1)), 0, graded, "segment")
    with pytest.raises(BudgetError) as caught:
        plan_rank(ranks, 100_000)
    error = caught.value
    assert re.match(r"nothing fits 97.7KiB on a rank: the smallest plan found needs \S+ \(\d+ bytes\)$", error.what)
    assert error.hint is not None and error.hint.endswith('MiB", more ranks or fewer than 2 samples')
    assert error.least_bytes is not None and plan_rank(ranks, error.least_bytes)
    with pytest.raises(
        BudgetError, match=r"on a rank: .* no plan can, for parameters \S+ their gradients \S+ and inputs"
    ):
        plan_rank(ranks, 10_000)
