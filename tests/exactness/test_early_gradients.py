"""Gradients of weights whose memory is there from the beginning of a step: plain's, and in that memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.execution import early, sums, walk
from tilegrad.importers import export_module
from tilegrad.ir import Kind
from tilegrad.modules import planned
from tilegrad.modules.options import Options
from tilegrad.schedule import Schedule
from tilegrad.testing import assert_same_step, integer_module, integer_tensor, run_step


class Shared(nn.Module):
    """A weight that two layers use, one that is not reached, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = (nn.Conv2d(n, 4, 3, padding=1) for n in (3, 4, 4))
        self.unused, self.frozen = nn.Parameter(torch.ones(4, 1, 1)), nn.Conv2d(4, 4, 1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.first(x)).relu())
        return self.last(self.frozen(x).relu())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """What was taken, by pass; every weight is large."""
    found: list[dict[str, Tensor]] = []

    def take(*args: Any) -> dict[str, Tensor]:
        found.append(early.take_early(*args))
        return found[-1]

    monkeypatch.setattr(Schedule, "early", True)
    monkeypatch.setattr(early, "LARGE", 0)
    monkeypatch.setattr(walk, "take_early", take)
    return found


def assert_used(taken: list[dict[str, Tensor]]) -> None:
    """All of it but what is for a weight that is not reached."""
    assert [left.keys() for left in taken if left] == [{"p_unused"}]


@pytest.mark.parametrize("options", [{"tile": 7}, {"tile": 64}, {"budget": "150KiB"}], ids=str)
def test_gradients_are_plains(taken: list[dict[str, Tensor]], options: dict[str, Any]) -> None:
    net, image = integer_module(Shared()), integer_tensor((2, 3, 23, 19)).requires_grad_()
    assert_same_step(net, [image], **options)
    assert_used(taken)


def test_half_precision_is_summed_there(taken: list[dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(sums, "SMALL", 0)  # none waits
    net, image = Shared().bfloat16(), torch.randn(1, 3, 40, 40, dtype=torch.bfloat16)
    found = run_step(tilegrad.tile(copy.deepcopy(net), tile=8), [image])
    assert_used(taken)
    monkeypatch.setattr(Schedule, "early", False)
    expected = run_step(tilegrad.tile(net, tile=8), [image])
    assert found.gradients.keys() == expected.gradients.keys()
    for name, grad in expected.gradients.items():
        assert (grad is None) == (found.gradients[name] is None) == name.endswith("unused")
        assert grad is None or torch.equal(grad, found.gradients[name])


def test_a_plan_for_a_gpu_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs here: the budget holds it, and the curve has the peak that is told."""
    monkeypatch.setattr(early, "LARGE", 1000)
    net = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())))
    graph = export_module(net, (torch.empty(1, 8, 128, 128),), {}).graph
    graded = tuple(value.name for value in graph.of_kind(Kind.PARAMETER))
    options = Options.parse("2MiB", None, None, "auto", "auto", cuda_graphs=False)
    monkeypatch.setattr("tilegrad.modules.options.device_bytes", lambda device: 1 << 30)
    ask = planned.Ask(graph, options, graded, lambda: 9 << 20, torch.device("cuda"), planned.known_machine("cpu"))
    schedule, planning = ask.plan()
    room = early.early_bytes(graph, graded)
    assert planning is not None and planning.budget == 2 << 20
    assert schedule.predicted["early_bytes"] == room == 8 * 8 * 8 * 9 * 4
    assert schedule.predicted["total_bytes"] <= planning.budget
    assert planned.predict(schedule, graded).total_bytes == schedule.predicted["total_bytes"]
