"""A frozen norm within its convolution: plain's numbers and gradients, and nothing kept of what lies between."""

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
from tilegrad.kernels import Fused, folded_norm, with_kernels
from tilegrad.planners import plan_tiles
from tilegrad.testing import PeakBytes, assert_same, assert_same_step, integer_module, integer_tensor, run_step


def with_norm(conv: nn.Module, norm: nn.Module, *rest: nn.Module) -> nn.Module:
    """Integer numbers, and variances whose roots are powers of two: plain's sums and ours are exact."""
    net = integer_module(nn.Sequential(conv, norm, *rest, nn.Conv2d(4, 2, 3, padding=1))).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_var is not None:
            module.eps = 0.0625
            module.running_var.copy_(4.0 ** torch.arange(-1, 3, dtype=torch.float64) - module.eps)
    return net


CASES: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
    "no bias": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
    "relu6": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU6()),
    "hardtanh": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Hardtanh(-2, 3)),
    "no activation": lambda: with_norm(nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4)),
    "silu-like": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softshrink(1.0)),
    "groups": lambda: with_norm(nn.Conv2d(2, 4, 3, padding=2, dilation=2, groups=2), nn.BatchNorm2d(4), nn.ReLU()),
    "not affine": lambda: with_norm(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4, affine=False), nn.ReLU()),
}
FOLDED = {"no activation": "FoldedNorm", "silu-like": "FoldedNorm"}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_norm, "is_worth_it", lambda made, weights: made > 0)


def found_kernels(net: nn.Module, image: Tensor) -> list[str]:
    graph = lower_graph(export_module(net, (image,), {}).graph)
    calls = {node.name: call_of(graph, node) for node in graph.nodes}
    steps = with_kernels(plan_tiles(graph, "stream", {"h": 5}).islands["0:0"], graph, calls, "cpu")
    return [type(step.kernel).__name__ for step in steps if isinstance(step, Fused)]


@pytest.mark.parametrize("case", CASES)
def test_norms_are_folded(case: str) -> None:
    found = found_kernels(CASES[case](), torch.zeros(1, 2, 13, 12, dtype=torch.float64))
    assert found == [FOLDED.get(case, "FoldedNormActivation")]


def test_norms_that_learn_or_are_of_half_precision_are_not() -> None:
    net, image = CASES["relu"](), torch.zeros(1, 2, 13, 12, dtype=torch.float64)
    assert found_kernels(net.bfloat16(), image.bfloat16()) == ["InPlaceActivation"]
    learns = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
    assert not any("Folded" in name for name in found_kernels(learns, image))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("learns", [True, False], ids=["learns", "frozen"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "last"])
@pytest.mark.parametrize("options", [{"tile": 5}, {"tile": 5, "mode": "gather"}, {"planner": "keep"}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_step_is_plains(case: str, options: dict[str, object], layout: torch.memory_format, learns: bool) -> None:
    net = CASES[case]().to(memory_format=layout)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(learns)
    image = integer_tensor((2, 2, 13, 12)).contiguous(memory_format=layout)
    assert_same_step(net, [image], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_with_and_without(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded, not folded by the same kernel, and one node after another."""
    net, image, found = CASES[case](), integer_tensor((2, 2, 13, 12)), []
    for worth in (True, False):
        monkeypatch.setattr(folded_norm, "is_worth_it", lambda made, _, worth=worth: worth and made > 0)
        found.append(run_step(tilegrad.tile(copy.deepcopy(net), tile=5), [image]))
    monkeypatch.setattr(executor, "with_kernels", lambda island, *_: island.steps)
    found.append(run_step(tilegrad.tile(copy.deepcopy(net), tile=5), [image]))
    assert_same(found[0], found[2])
    assert_same(found[1], found[2])


def test_the_images_between_are_not_kept() -> None:
    """Four convolutions, norms and rectifiers: of each only what the last makes is kept, in tiles and whole."""
    blocks = [m for _ in range(4) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    net, image = nn.Sequential(*blocks).eval(), torch.randn(1, 8, 128, 128)
    tiled = tilegrad.tile(net, planner="keep")
    peaks = []
    for run in (tiled, tiled, net):
        with PeakBytes() as peak:
            run(image).sum().backward()
        peaks.append(peak.highest)
    assert peaks[1] <= 0.75 * peaks[2]
