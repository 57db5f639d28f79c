"""Which nodes of a plan run as one island: those that run together whenever they run."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import unet
from tilegrad.planners import Effort, TrainingStep, fuse_within, plan_keep
from tilegrad.planners.recompute import schedule_reruns
from tilegrad.planners.segments import plan_sqrt
from tilegrad.schedule import Free, Run, Schedule, check_schedule, fuse
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import predict
from tilegrad.sim.training import training_graph


@cache
def chain() -> Graph:
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    return export_module(nn.Sequential(*layers), (torch.zeros(1, 4, 64, 64),)).graph


def graded(graph: Graph) -> list[str]:
    return [v.name for v in graph.of_kind(Kind.PARAMETER)]


def in_segments(graph: Graph) -> Schedule:
    training = training_graph(graph, graded(graph))
    return plan_sqrt(training, dict.fromkeys(training.node, 1.0))


def islands(schedule: Schedule) -> list[tuple[str, ...]]:
    return [island.nodes for island in schedule.islands.values()]


def runs(schedule: Schedule, name: str) -> list[Run]:
    return [step for step in schedule.steps if isinstance(step, Run) and step.island == name]


def test_what_is_kept_is_one_island() -> None:
    graph = chain()
    assert islands(fuse(plan_keep(training_graph(graph, graded(graph))), graph)) == [
        tuple(node.name for node in graph.nodes)
    ]


def test_a_stretch_that_runs_again_is_one_island() -> None:
    """Without a record the first time, with one the last time."""
    graph = chain()
    schedule = fuse(in_segments(graph), graph)
    check_schedule(schedule)
    twice = [name for name, island in schedule.islands.items() if len(runs(schedule, name)) == 2]
    assert twice and all(len(schedule.islands[name].nodes) > 1 for name in twice)
    for name in twice:
        first, second = runs(schedule, name)
        assert not first.keep and second.keep
    assert sum(isinstance(step, Run) for step in schedule.steps) <= 2 * len(schedule.islands)


def test_what_is_freed_inside_goes_behind_the_island() -> None:
    """A convolution's input that is forgotten is freed right behind it; with its rectifier, behind both."""
    graph = chain()
    step = TrainingStep(training_graph(graph, graded(graph)), CPU, Effort(nodes=0))
    plan = schedule_reruns(step.reruns, int(0.75 * step.keep.peak_bytes), step.effort)
    assert plan is not None
    schedule = fuse(plan, graph)
    check_schedule(schedule)
    pairs = [nodes for nodes in islands(schedule) if len(nodes) > 1]
    assert pairs and all(nodes[0].startswith("conv2d") for nodes in pairs)
    frees = [at for at, one in enumerate(schedule.steps) if isinstance(one, Free)]
    assert frees and isinstance(schedule.steps[frees[0] - 1], Run | Free)


def test_nodes_that_shall_stay_alone_do() -> None:
    graph = chain()
    plan, alone = plan_keep(training_graph(graph, graded(graph))), graph.nodes[4].name
    found = islands(fuse(plan, graph, alone=[alone]))
    assert (alone,) in found and len(found) > 2 and max(map(len, found)) > 1
    assert all(len(nodes) == 1 for nodes in islands(fuse(plan, graph, apart=True)))


def test_only_what_passes_the_budget_is_taken_apart() -> None:
    """An island's backward holds the gradient that came to it; its nodes apart do not."""
    graph = export_module(unet(width=0.25, padding="same"), (torch.zeros(1, 1, 512, 512),)).graph
    names = graded(graph)
    step = TrainingStep(training_graph(graph, names), CPU, Effort(nodes=0))
    plan = schedule_reruns(step.reruns, int(0.5 * step.keep.peak_bytes), step.effort)
    assert plan is not None
    apart, together = (predict(fuse(plan, graph, apart=apart), names).total_bytes for apart in (True, False))
    assert apart < together
    for budget in (apart, together):
        schedule, prediction = fuse_within(plan, graph, names, budget)
        check_schedule(schedule)
        assert prediction.total_bytes == predict(schedule, names).total_bytes <= budget
    assert islands(schedule) == islands(fuse(plan, graph))
    tight, _ = fuse_within(plan, graph, names, apart)
    assert len(schedule.islands) < len(tight.islands) < len(graph.nodes)
    assert fuse_within(plan, graph, names, 0)[1].total_bytes == apart  # and no less
