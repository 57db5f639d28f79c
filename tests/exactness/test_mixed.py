"""A first stretch in tiles, the rest whole, in one schedule: outputs, gradients and buffers are plain's."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import lower_graph
from tilegrad.execution import Executor, Pass
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import Problem, TileSearch, TrainingStep, plan_keep, plan_step, plan_tiles
from tilegrad.planners.mixed import cut_graph, join_schedules
from tilegrad.schedule import Storage, check_schedule, fuse
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import predict
from tilegrad.sim.training import training_graph
from tilegrad.testing import PeakBytes, integer_tensor

ways = pytest.mark.parametrize("apart", [False, True], ids=["fused", "apart"])


class Net(nn.Module):
    """Convolutions, a residual, a normalisation, a pool, dropout: one value crosses after some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 3, 3)
        self.norm, self.drop, self.head = nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Linear(3, 2)
        self.unread = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.a(x)).relu()
        x = torch.max_pool2d(x + self.b(x).relu(), 2)
        return self.head(self.drop(self.c(x)).mean((2, 3)))


def _tensors(net: nn.Module, graph: Graph, x: Tensor) -> dict[str, Tensor]:
    named = dict(net.named_parameters()) | dict(net.named_buffers())
    x = x.detach().requires_grad_()
    return {v.name: x if v.kind is Kind.INPUT else named[str(v.target)] for v in graph.values if not v.kind.computed}


def _step(
    net: nn.Module, x: Tensor, cut: int, rows: int, apart: bool
) -> tuple[list[Tensor], dict[str, Tensor], int, int]:
    """Values, gradients, and the bytes of a step, measured and predicted."""
    graph = export_module(net, (x,), {}).graph
    found = cut_graph(graph, cut)
    assert found is not None
    inner, rest = found
    graded = {v.name for v in graph.of_kind(Kind.PARAMETER)} | set(graph.inputs)
    tiles = plan_tiles(lower_graph(inner), "stream", {"h": rows}, Storage.DEVICE)
    whole = plan_keep(training_graph(rest, [name for name in (*graded, *inner.outputs) if name in rest.value]))
    schedule = join_schedules(tiles, fuse(whole, rest, apart=apart), graph)
    check_schedule(schedule)
    tensors = _tensors(net, schedule.graph, x)
    run = Pass(Executor(schedule), tensors, torch.device("cpu"), seed=3)
    with PeakBytes() as peak:
        outputs, updates = run.forward()
        grads = run.backward([torch.ones_like(o) for o in outputs])
    given = sum(t.numel() * t.element_size() for t in tensors.values())
    return (
        [*outputs, *(t for _, t in sorted(updates, key=lambda u: u[0]))],
        grads,
        peak.bytes + given,
        predict(schedule, sorted(graded)).total_bytes,
    )


def _cuts(net: nn.Module, x: Tensor) -> list[int]:
    graph = export_module(net, (x,), {}).graph
    return [k for k in range(1, len(graph.nodes)) if cut_graph(graph, k) is not None]


@ways
@pytest.mark.parametrize("rows", [3, 8])
def test_every_cut_gives_the_same(rows: int, apart: bool) -> None:
    torch.manual_seed(0)
    net = Net().double().train()
    x = torch.randn(2, 2, 22, 13, dtype=torch.float64)
    cuts = _cuts(net, x)
    assert len(cuts) >= 5
    first = None
    for cut in cuts:
        values, grads, _, _ = _step(copy.deepcopy(net), x, cut, rows, apart)
        first = first or (values, grads)
        for a, b in zip(values, first[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
        assert grads.keys() == first[1].keys()
        for key, grad in grads.items():
            torch.testing.assert_close(grad, first[1][key], rtol=1e-10, atol=1e-10, msg=f"{key} at cut {cut}")


@ways
def test_integers_are_equal_to_plain(apart: bool) -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3)
    )
    net = net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(integer_tensor(tuple(p.shape)))
    x = integer_tensor((2, 2, 35, 31))
    out = net(x)
    out.backward(torch.ones_like(out))
    for cut in _cuts(net, x):
        values, grads, _, _ = _step(net, x, cut, 6, apart)
        assert torch.equal(values[0], out)
        graph = export_module(net, (x,), {}).graph
        named = dict(net.named_parameters())
        for v in graph.of_kind(Kind.PARAMETER):
            wanted = named[str(v.target)].grad
            assert wanted is not None and torch.equal(grads[v.name], wanted), (cut, v.name)


@ways
def test_the_peak_is_as_predicted(apart: bool) -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(6)), nn.MaxPool2d(8))
    x = torch.randn(1, 4, 256, 256)
    for cut in (4, 8, 12):
        _, _, measured, predicted = _step(net, x, cut, 32, apart)
        assert predicted * 0.98 <= measured <= predicted * 1.02


def test_the_planner_mixes_where_it_pays() -> None:
    """Many layers at full size, then many small ones: only the first are worth tiles."""
    top = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6)]
    rest = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(10)]
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *top, nn.MaxPool2d(8), *rest)
    x = torch.randn(1, 3, 256, 256)
    graph = export_module(net, (x,), {}).graph
    graded = tuple(v.name for v in graph.of_kind(Kind.PARAMETER))
    steps = TrainingStep(training_graph(graph, graded), CPU)
    budget = int(0.4 * steps.keep.peak_bytes)
    tiles = TileSearch(lower_graph(graph), ("h",), "stream", graded, True, lambda: 0, CPU)
    found = plan_step(Problem(budget, steps, tiles, graph), planner="mixed")
    mixed = found.chosen.schedule
    assert mixed.phases and "tiles along h, the rest" in found.chosen.detail
    assert set(mixed.islands) > {phase.name(tile) for phase in mixed.phases for tile in phase.tiles()}
    assert found.chosen.peak_bytes <= budget
    tiled = tilegrad.tile(net, budget=budget, planner="mixed")
    plan = tiled.plan_for(x)
    assert plan.schedule.predicted["total_bytes"] <= budget
    assert re.search(r"mixed, 1 phase, then \d+ nodes whole\n", str(plan)), str(plan)
    out = tiled(x)
    out.backward(torch.ones_like(out))
    got = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad(set_to_none=True)
    out = net(x)
    out.backward(torch.ones_like(out))
    for g, p in zip(got, net.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(g, p.grad, rtol=1e-4, atol=1e-4 * float(p.grad.abs().max()))


def test_a_stretch_with_two_ends_is_not_cut() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(y.relu()) + y

    graph = export_module(Skip(), (torch.zeros(1, 2, 8, 8),), {}).graph
    assert cut_graph(graph, 1) is not None
    assert cut_graph(graph, 2) is None  # both y and its rectified self are read behind
