"""Values between phases that are made again for backward, or never stored: plain's results, and the predicted bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import lower_graph
from tilegrad.ir import Graph
from tilegrad.models import resnet18
from tilegrad.modules import runner
from tilegrad.planners.tiling import USUAL, Between, Scale, Walks, cut_tiles, keep_last, levels, make_schedule
from tilegrad.schedule import Again, Schedule, Storage, check_schedule
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import predict
from tilegrad.testing import PeakBytes, assert_same, assert_same_step, integer_module, integer_tensor, run_step

Choose = Callable[[Graph], Schedule]


class Sums(nn.Module):
    """Blocks with statistics that integers have: a skip, two branches, and something random on the way."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        layers = [nn.Conv2d(2, 3, 3, padding=1), *(nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(4))]
        self.layers, self.drop = nn.ModuleList(layers), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self._centred(self.layers[0](x))
        x = (x + self._centred(self.layers[2](self.drop(self._centred(self.layers[1](x)))))).relu()
        left, right = self._centred(self.layers[3](x)), self._centred(self.layers[4](x))
        return left - right

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.sum((2, 3), keepdim=True)


class Normed(nn.Module):
    """A stem, two blocks with skips, a pool."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks = (
            nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), norm(8))
            for _ in range(2)
        )
        self.blocks, self.last = nn.ModuleList(blocks), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = (x + block(x)).relu()
        out: Tensor = self.last(x)
        return out


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
    "group": lambda c: nn.GroupNorm(4, c),
}


def schedules(graph: Graph, mode: str, between: Between = USUAL, again: Again | None = None) -> Schedule:
    """`again`: None for all that there is."""
    height, width = graph.shape(graph.inputs[0])[2:]
    phases = cut_tiles(Walks(graph), mode, {"h": -(-height // 3), "w": -(-width // 2)}, CPU, between=between)
    if again is None:
        again = Again(stored(graph, phases))
    return make_schedule(graph, "stream" if mode == "auto" else mode, phases, Storage.DEVICE, True, again)


def stored(graph: Graph, phases: Any) -> frozenset[str]:
    found = {name for phase in phases if phase.tiled for name in phase.stores}
    return frozenset(found - set(graph.outputs))


def every(graph: Graph, mode: str, *, fleeting: bool) -> Schedule:
    found = schedules(graph, mode)
    values = stored(graph, found.phases)
    return schedules(graph, mode, again=Again(values, fleeting))


def some(graph: Graph, mode: str) -> Schedule:
    values = sorted(stored(graph, schedules(graph, mode).phases))
    return schedules(graph, mode, again=Again(frozenset(values[::2]), True))


def kept(graph: Graph, mode: str) -> Schedule:
    """The last tiles keep their records, whatever is made again."""
    return keep_last(schedules(graph, mode), 5)


def fluid(graph: Graph, mode: str) -> Schedule:
    stock = Scale(graph, (), True, CPU).stock(schedules(graph, mode).phases)
    return schedules(graph, mode, levels(graph, stock)[-1])


WAYS: dict[str, Callable[[Graph, str], Schedule]] = {
    "all": lambda graph, mode: every(graph, mode, fleeting=False),
    "all, fleeting": lambda graph, mode: every(graph, mode, fleeting=True),
    "some": some,
    "the last kept": kept,
    "not stored": fluid,
}


def planned(choose: Choose, seen: list[Schedule] | None = None) -> Any:
    """`tilegrad.tile` runs what is chosen."""

    def plan(graph: Graph, *_: object) -> tuple[Schedule, None]:
        found = choose(lower_graph(graph))
        check_schedule(found)
        if seen is not None:
            seen.append(found)
        return found, None

    return mock.patch.object(runner, "plan_call", plan)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["auto", "stream", "scatter", "gather"])
def test_integers(way: str, mode: str) -> None:
    seen: list[Schedule] = []
    with planned(lambda graph: WAYS[way](graph, mode), seen):
        assert_same_step(integer_module(Sums()), [integer_tensor((2, 2, 13, 11)).requires_grad_()], tile=5)
    assert seen[0].remade.values or way == "not stored"
    assert seen[0].remade.fleeting == (way in ("all, fleeting", "some"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms(way: str, norm: str) -> None:
    """Running statistics are updated once; gradients are those of the same tiles with everything kept, to the bit."""
    torch.manual_seed(0)
    net, image = Normed(NORMS[norm]).double().train(), torch.randn(2, 3, 27, 22, dtype=torch.float64)
    with planned(lambda graph: WAYS[way](graph, "auto")):
        assert_same_step(net, [image], exact=False, tile=5)
    if way != "not stored":
        results = []
        for choose in (lambda graph: schedules(graph, "auto", again=Again()), lambda graph: WAYS[way](graph, "auto")):
            with planned(choose):
                results.append(run_step(tilegrad.tile(net, tile=5), [image]))
            net.zero_grad()
        assert_same(*(replace(result, buffers={}) for result in results))


@pytest.mark.parametrize("way", WAYS)
def test_dropout_draws_the_same_numbers(way: str) -> None:
    net, image, found = integer_module(Sums(0.5)), integer_tensor((1, 2, 13, 11)), []
    for choose in (lambda graph: schedules(graph, "auto", again=Again()), lambda graph: WAYS[way](graph, "auto")):
        torch.manual_seed(3)
        net.zero_grad()
        with planned(choose):
            found.append(run_step(tilegrad.tile(net, tile=5), [image]))
    assert_same(found[1], found[0])


@pytest.mark.parametrize("way", WAYS)
def test_predicted_bytes(way: str) -> None:
    torch.manual_seed(0)
    seen: list[Schedule] = []
    net, image = resnet18(width=0.125).train(), torch.randn(1, 3, 128, 96)
    with planned(lambda graph: WAYS[way](graph, "auto"), seen):
        tiled = tilegrad.tile(net, tile=5)
        tiled(image).sum().backward()
        net.zero_grad(set_to_none=True)
        with PeakBytes() as peak:
            tiled(image).sum().backward()
    graded = [v.name for v in seen[0].graph.values if v.target is not None and v.target in dict(net.named_parameters())]
    found = predict(seen[0], graded)
    outside = sum(v.type.bytes for v in seen[0].graph.values if not v.kind.computed)
    assert peak.bytes == pytest.approx(found.total_bytes - outside, rel=0.02)
