"""Seams, value by value: any choice of what is carried gives plain's numbers, and dilated branches need no more than
plain does."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import lower_graph
from tilegrad.errors import BudgetError
from tilegrad.execution import Executor, Pass
from tilegrad.importers import Captured, export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import plan_tiles
from tilegrad.planners.tiling.seams import Seams
from tilegrad.schedule import check_schedule
from tilegrad.sim.machine import CPU, Machine
from tilegrad.testing import PeakBytes, assert_same_step, integer_module, integer_tensor


class Branches(nn.Module):
    """Stride, dilation, a transposed convolution, a pool, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 5, padding=2, stride=2)
        self.c, self.d = nn.Conv2d(3, 3, 3, padding=2, dilation=2), nn.ConvTranspose2d(3, 3, 2, stride=2)
        self.e = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x).relu()
        deep = self.c(self.b(first).relu()).relu()
        found: Tensor = self.e(torch.cat([first, self.d(torch.max_pool2d(deep, 3, 1, 1))], 1))
        return found


class Dilated(nn.Module):
    """The branches of ASPP."""

    def __init__(self, width: int = 8, rates: tuple[int, ...] = (12, 24, 36)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        branches = [nn.Conv2d(width, width, 3, padding=rate, dilation=rate) for rate in rates]
        self.branches = nn.ModuleList([nn.Conv2d(width, width, 1), *branches])
        self.out = nn.Conv2d(width * (1 + len(rates)), 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        found: Tensor = self.out(torch.cat([branch(x).relu() for branch in self.branches], 1))
        return found


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, Captured, Graph, Tensor, Tensor, Tensor]:
    net, image = integer_module(Branches()), integer_tensor((1, 2, 24, 20)).requires_grad_()
    out = net(image)
    seed = integer_tensor(tuple(out.shape))
    out.backward(seed)
    captured = export_module(net, (image.detach(),), {})
    return net, captured, lower_graph(captured.graph), image, out.detach(), seed


@pytest.mark.parametrize("seed", range(24))
def test_any_choice_is_exact(plain: tuple[nn.Module, Captured, Graph, Tensor, Tensor, Tensor], seed: int) -> None:
    net, captured, graph, image, wanted, grad = plain
    rng = random.Random(seed)
    carried = {n.outputs[0] for n in graph.nodes if rng.random() < rng.choice((0.2, 0.5, 0.8))}
    sizes = {axis: rng.randint(1, 9) for axis in rng.choice((["h"], ["w"], ["h", "w"]))}
    schedule = plan_tiles(graph, "stream", sizes, carried=carried)
    check_schedule(schedule)
    run = Pass(Executor(schedule), captured.bind([image.detach().requires_grad_()]), torch.device("cpu"))
    (out,), _ = run.forward()
    grads = run.backward([grad])
    assert torch.equal(out, wanted) and image.grad is not None
    assert torch.equal(grads[graph.inputs[0]], image.grad)
    named = dict(net.named_parameters())
    for value in graph.of_kind(Kind.PARAMETER):
        wanted_grad = named[str(value.target)].grad
        assert wanted_grad is not None and torch.equal(grads[value.name], wanted_grad), value.name


def carried_on(machine: Machine, rows: int) -> frozenset[str]:
    graph = lower_graph(export_module(Branches(), (torch.zeros(1, 2, 256, 256),), {}).graph)
    schedule = plan_tiles(graph, "auto", {"h": rows}, machine=machine)
    return frozenset(join.value for name in schedule.islands for join in schedule.islands[name].joins)


def test_what_is_carried_depends_on_the_machine() -> None:
    """Where arithmetic is free rows are computed twice, where memory is they are copied."""
    quick = replace(CPU, flops_per_s=1e18, bytes_per_s=1e9, rates={})
    slow = replace(CPU, flops_per_s=1e6, bytes_per_s=1e15, rates={})
    assert len(carried_on(quick, 64)) < len(carried_on(slow, 64))


def test_the_choice_is_no_dearer_than_either_end() -> None:
    graph = lower_graph(export_module(Branches(), (torch.zeros(1, 2, 256, 256),), {}).graph)
    tiling = plan_tiles(graph, "stream", {"h": 16}).phases[0].forward
    assert tiling is not None
    line = tiling.lines["h"]
    cuts = {"h": {name: [s.lo for s in tiling.spans["h"].share[name]] + [line.sizes[name]] for name in line.sinks}}
    seams = Seams(graph, tiling.axes, tiling.lines, cuts, CPU)
    every = {n.outputs[0] for n in tiling.nodes}
    chosen = seams.choose(tiling.nodes)
    cost = {k: seams.seconds(tiling.nodes, c) for k, c in enumerate((chosen, every, set[str]()))}
    assert cost[0] == min(cost.values())


@pytest.mark.parametrize("tile", [3, 16, (8, 8), (5, 32)], ids=str)
def test_dilated_branches_are_exact(tile: int | tuple[int, int]) -> None:
    assert_same_step(integer_module(Dilated(4, (2, 5, 9))), [integer_tensor((1, 3, 40, 33))], tile=tile)


def needs(net: nn.Module, image: Tensor) -> int:
    net.zero_grad(set_to_none=True)
    with PeakBytes() as peak:
        out = net(image)
        out.backward(torch.ones_like(out))
    return peak.bytes + sum(t.numel() * t.element_size() for t in (*net.parameters(), image))


def test_no_tile_of_dilated_branches_needs_more_than_plain() -> None:
    net, image = Dilated(), torch.randn(1, 3, 72, 72)
    plain_bytes = needs(net, image)
    for tile in (4, 8, 16, 24, 36, (16, 16), (24, 24), (36, 36)):
        assert needs(tilegrad.tile(net, tile=tile), image) <= plain_bytes, tile


def test_dilated_branches_keep_a_budget() -> None:
    net, image = Dilated(), torch.randn(1, 3, 160, 160)
    budget = int(0.8 * needs(net, image))
    for planner in ("auto", "tile"):
        tiled = tilegrad.tile(net, budget=budget, planner=planner)
        tiled.plan_for(image)
        assert needs(tiled, image) <= budget, planner


# -- the dial


def stack() -> nn.Module:
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(5)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers, nn.Conv2d(8, 1, 3, padding=1))


def test_more_memory_keeps_more_tiles() -> None:
    """These tiles, and as much kept as fits: each budget is kept, and none is made again when all fits."""
    net, image = stack(), torch.randn(1, 3, 128, 128)
    plain_bytes, kept = needs(net, image), []
    for share in (0.35, 0.5, 0.7, 1.2):
        tiled = tilegrad.tile(net, tile={"h": 8}, budget=int(share * plain_bytes))
        schedule = tiled.plan_for(image).schedule
        kept.append(len(schedule.kept))
        assert needs(tiled, image) <= share * plain_bytes
    assert kept == sorted(kept) and kept[0] < kept[1] < kept[2] <= kept[3] == 16


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8, 1.5])
def test_kept_tiles_are_exact(share: float) -> None:
    net, image = integer_module(Branches()), integer_tensor((1, 2, 24, 20))
    least = (
        tilegrad.tile(net, tile={"h": 4}).plan_for(image).schedule.predicted["total_bytes"]
    )  # the image's gradient apart
    budget = int(1.15 * least + share * (needs(net, image) - least))
    assert_same_step(net, [image], tile={"h": 4}, budget=budget)


def test_a_plan_says_what_is_kept() -> None:
    net, image = stack(), torch.randn(1, 3, 128, 128)
    plan = tilegrad.tile(net, tile={"h": 8}, budget=int(0.5 * needs(net, image))).plan_for(image)
    count = len(plan.schedule.kept)
    assert f"kept        {count} of 16 tiles have all that backward needs" in str(plan)
    assert len(plan.to_json()["kept"]) == count


def test_tiles_that_do_not_fit_are_refused() -> None:
    net, image = stack(), torch.randn(1, 3, 128, 128)
    with pytest.raises(BudgetError, match=r"these tiles need .*, more than 300KiB, with none of them kept"):
        tilegrad.tile(net, tile={"h": 64}, budget="300KiB").plan_for(image)


class Deep(nn.Module):
    """Looks further around than a tile is long, and has a skip over all of that."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 2, 3, 2, 1), nn.ConvTranspose2d(2, 2, 2, 2)
        self.blocks = nn.ModuleList(nn.Conv2d(2, 2, 5, padding=2) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        first = y = self.down(x)
        for block in self.blocks:
            y = y + block(y).clamp(-1, 1)
        return self.up(y) + self.up(first)


@pytest.mark.parametrize("tile", [{"h": 4}, {"h": 6, "w": 12}, {"w": 8}])
@pytest.mark.parametrize("shape", [(96, 24), (98, 26)])
def test_a_network_that_looks_further_than_a_tile(tile: dict[str, int], shape: tuple[int, int]) -> None:
    """Where tiles are cut from what is read, none is larger than the others: the first does not run ahead."""
    net, image = integer_module(Deep(), -1, 1), integer_tensor((2, 2, *shape))
    assert_same_step(net, [image], tile=tile)
    low = lower_graph(export_module(net, (image,)).graph)
    (tiling,) = [p.forward for p in plan_tiles(low, "stream", {"h": 4}).phases if p.forward is not None]
    made = [spans.own[name].sizes for spans in tiling.spans.values() for name in ("conv2d", "conv2d_8")]
    assert len(made[0]) > -(-shape[0] // 4)
    assert all(sizes.max() <= 4 for sizes in made)
