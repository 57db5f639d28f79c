"""Kernels give what their nodes give, whole and in tiles, and are used where nobody else reads what lies between."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import call_of, lower_graph
from tilegrad.execution import executor
from tilegrad.importers import export_module
from tilegrad.kernels import Fused, kernels, with_kernels
from tilegrad.planners import plan_tiles
from tilegrad.testing import assert_same, assert_same_step, integer_module, integer_tensor, run_step


class Skips(nn.Module):
    """A convolution whose result is rectified and read once more: nothing may be written over it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return y + self.b(y.relu()).relu()


CASES: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.ReLU()),
    "leaky": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.LeakyReLU(0.5), nn.Conv2d(4, 3, 1)),
    "no bias, groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 5, padding=2, groups=2, bias=False), nn.ReLU()),
    "read twice": Skips,
    "the last": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()),
    "bounded": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.Hardtanh(-3, 2)),
}


def used(net: nn.Module, image: Tensor, tile: int) -> list[Fused]:
    graph = lower_graph(export_module(net, (image,), {}).graph)
    schedule = plan_tiles(graph, "stream", {"h": tile})
    calls = {node.name: call_of(graph, node) for node in graph.nodes}
    island = schedule.islands["0:0"]
    return [step for step in with_kernels(island, graph, calls, "cpu") if isinstance(step, Fused)]


def test_they_are_found() -> None:
    names = [type(kernel).__name__ for kernel in kernels()]
    pairs = ["FoldedNormActivation", "CudnnConvolution", "InPlaceActivation", "FoldedNorm"]
    alone = {"DepthwiseConvolution", "PixelNorm", "BiasedLinear", "ScaledChannels", "ComparingPool"}
    assert names[:4] == pairs and set(names[4:]) == alone


@pytest.mark.parametrize("case", CASES)
def test_they_are_used_where_they_may(case: str) -> None:
    count = {"relu": 2, "leaky": 1, "no bias, groups": 1, "read twice": 1, "the last": 1, "bounded": 2}[case]
    assert len(used(CASES[case](), torch.zeros(1, 2, 13, 12), 5)) == count


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("case", CASES)
def test_tiles_are_plains(case: str, mode: str) -> None:
    assert_same_step(integer_module(CASES[case]()), [integer_tensor((2, 2, 13, 12))], tile=5, mode=mode)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [{"tile": 5}, {"planner": "keep"}], ids=str)
def test_with_and_without(case: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path against the slow one, to the last bit."""
    net, image = integer_module(CASES[case]()), integer_tensor((2, 2, 13, 12))
    fast = run_step(tilegrad.tile(copy.deepcopy(net), **options), [image])  # type: ignore[arg-type]
    monkeypatch.setattr(executor, "with_kernels", lambda island, *_: island.steps)
    slow = run_step(tilegrad.tile(copy.deepcopy(net), **options), [image])  # type: ignore[arg-type]
    assert_same(fast, slow)


def test_other_devices_and_numbers_are_left_alone() -> None:
    net, image = CASES["relu"](), torch.zeros(1, 2, 13, 12)
    graph = lower_graph(export_module(net, (image,), {}).graph)
    calls = {node.name: call_of(graph, node) for node in graph.nodes}
    island = plan_tiles(graph, "stream", {"h": 5}).islands["0:0"]
    assert with_kernels(island, graph, calls, "xpu") == island.steps
