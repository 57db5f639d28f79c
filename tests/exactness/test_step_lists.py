"""Reference networks under plans of whole nodes: a step equal to plain torch's, in the bytes that were predicted.

Plans are those of the planners for several budgets, and random ones: any legal order of running again and of moving
away must give the same numbers.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from step_plans import (
    Apart,
    Choose,
    Graphs,
    Planned,
    Stepped,
    assert_plans,
    at_random,
    both,
    fixed,
    graph_for,
    peaks,
    plans,
    runner_of,
)
from test_reference_networks import EXACT, SMALL, assert_lively, few_taps, image, small
from torch import Tensor

import thorough
from tilegrad.importers import Captured
from tilegrad.ir import Graph
from tilegrad.models import NETWORKS, example_shape
from tilegrad.modules.planned import executable
from tilegrad.planners import Effort, TrainingStep, offload, plan_keep
from tilegrad.planners.offload import plan_offload
from tilegrad.planners.recompute import plan_recompute
from tilegrad.planners.segments import plan_segments, plan_sqrt
from tilegrad.schedule import Schedule
from tilegrad.sim.machine import CPU
from tilegrad.testing import assert_same, integer_tensor, run_step

QUICK = ("unet", "unet_valid", "wavenet1d")  # few nodes: planned in no time
LARGE = ("resnet34", "resnet50", "densenet121", "convnext_tiny", "mobilenet_v2", "efficientnet_b0")  # hundreds of nodes
RANDOM: dict[str, Choose] = {
    "random": at_random(0, drop=0.08, move=0.3),
    "random, moves": at_random(1, drop=0.01, move=0.9),
    "random, reruns": at_random(2, drop=0.2, move=0.0),
}


@cache
def graph_of(name: str) -> tuple[Captured, Graph]:
    return graph_for(small(name, train=True), [double(name).requires_grad_()])


def double(name: str) -> Tensor:
    """A larger image: activations outweigh parameters."""
    made = torch.Generator().manual_seed(0)
    return torch.randn(example_shape(name, 2 * SMALL[name][1]), generator=made, dtype=torch.float64)


@pytest.mark.parametrize("name", SMALL)
def test_any_plan_gives_plains_numbers(name: str) -> None:
    # float64, a few hundred roundings deep, through norms over as few as nine elements
    net, graphs = small(name, train=True), Graphs()
    wanted = run_step(copy.deepcopy(net), [image(name)])
    assert_lively(wanted)
    choices = {"keep": plan_keep, "sqrt": square_roots, **RANDOM}
    few = list(RANDOM)[: 1 if name == "densenet121" and not thorough.slow else 2]
    for label in few if name in LARGE else choices:
        both_ways = both(choices[label])
        # of hundreds of nodes each plan in one way, both with --slow
        for way in [both_ways[label == "random"]] if name in LARGE and not thorough.slow else both_ways:
            found = run_step(Stepped(copy.deepcopy(net), way, graphs), [image(name)])
            assert_same(found, wanted, exact=False, tolerance=1e-10, note=label)


def square_roots(graph: Graph) -> Schedule:
    return plan_sqrt(graph, dict.fromkeys(graph.node, 1.0))


def test_every_network_is_here() -> None:
    assert SMALL.keys() == NETWORKS.keys()


@pytest.mark.parametrize("planner", ["segments", "recompute", "offload"])
@pytest.mark.parametrize("name", QUICK)
def test_planned_for_several_budgets(name: str, planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALL", 1 << 8)  # these networks are small
    _, graph = graph_of(name)
    found = [planned(graph, planner, share) for share in (0.6, 0.8, 0.9, 0.95)]
    choices = [fixed(schedule) for schedule in found if schedule is not None]
    assert len(choices) >= 2
    assert_plans(small(name, train=True), [double(name)], choices, exact=False, peak=False)


def planned(graph: Graph, planner: str, share: float) -> Schedule | None:
    """The planner's own answer to a budget between what is resident (0) and plain (1)."""
    steps = TrainingStep(graph, CPU, Effort(work=50_000, nodes=0))
    assert steps.keep.memory is not None
    low, high = steps.keep.memory.resident_bytes, steps.keep.peak_bytes
    budget = int(low + share * (high - low))
    if planner == "segments":
        return plan_segments(graph, steps.seconds, budget, work=50_000)
    if planner == "recompute":
        return plan_recompute(graph, steps.seconds, budget, steps.effort)
    return plan_offload(graph, steps.seconds, CPU, budget)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SMALL)
def test_every_planner_for_many_budgets(name: str) -> None:
    _, graph = graph_of(name)
    found = [c.schedule for _, c in plans(graph, (0.3, 0.45, 0.6, 0.75, 0.9), ("segments", "recompute", "offload"))]
    assert_plans(small(name, train=True), [double(name)], list(map(fixed, found)), exact=False, peak=False)


# Integers: no bit may differ


@pytest.mark.parametrize("name", EXACT)
def test_whole_numbers_are_equal(name: str) -> None:
    make, shape, _ = EXACT[name]
    choices = [plan_keep, square_roots, *(at_random(seed) for seed in range(4)), at_random(4, drop=1.0, move=1.0)]
    assert_plans(few_taps(make()), [integer_tensor(shape)], choices, exact=True, peak=False)


# Bytes


REAL = {"unet": 124, "resnet18": 192, "mobilenet_v2": 96, "vgg16": 96, "convnext_tiny": 96, "deeplab": 96}


@pytest.mark.parametrize("name", REAL)
def test_bytes_are_as_predicted(name: str) -> None:
    """Of what a step allocates, for values of a size that matters."""
    net, x = small(name, train=True).float(), pictures(name)
    captured, graph = graph_for(net, [x])
    usual = (plan_keep, square_roots) if name in ("unet", "resnet18") else ()
    for at, choose in enumerate((*usual, at_random(0, drop=0.1), at_random(1, drop=0.01, move=0.9))):
        for way in both(choose) if usual or thorough.slow else [both(choose)[at]]:
            measured, predictions = peaks(runner_of(captured, graph, way), graph, copy.deepcopy(net), [x])
            for predicted in predictions:
                assert predicted > 2**19
                assert 0.95 * predicted <= measured <= predicted + 4096


@pytest.mark.parametrize("planner", ["segments", "recompute", "offload"])
def test_the_budget_holds(planner: str) -> None:
    net, x = small("unet", train=True).float(), pictures("unet")
    captured, graph = graph_for(net, [x])
    outside = sum(v.type.bytes for v in graph.values if not v.kind.computed)
    found = list(plans(graph, (0.55, 0.7, 0.85), (planner,)))
    assert len(found) > 1
    for budget, candidate in found:
        apart = runner_of(captured, graph, Apart(fixed(candidate.schedule)))
        fused = Planned(captured, executable(candidate.schedule, captured.graph, captured.graded([x]), budget))
        for runner in (apart, fused):
            measured, predictions = peaks(runner, graph, copy.deepcopy(net), [x])
            for predicted in predictions:
                assert 0.95 * predicted <= measured <= predicted + 4096
            assert predictions[-1] + outside == candidate.peak_bytes <= budget or runner is fused
            assert measured + outside <= budget + 4096


def pictures(name: str) -> Tensor:
    shape = example_shape(name, REAL[name])
    return torch.randn((2, *shape[1:]), generator=torch.Generator().manual_seed(0))
