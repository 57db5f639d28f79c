"""A schedule as text and back: equal islands and steps, checked like what is planned."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from tilegrad.bounds import lower_graph
from tilegrad.bounds.mesh import Mesh
from tilegrad.errors import FormatError, TilegradError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import MeshProblem, plan_keep, plan_tiles
from tilegrad.planners.mesh import plan_rank
from tilegrad.planners.mixed import cut_graph, join_schedules
from tilegrad.planners.offload import plan_offload
from tilegrad.planners.problem import Effort
from tilegrad.planners.recompute import plan_recompute
from tilegrad.schedule import Exchange, Finish, Join, Move, Schedule, Sum, format_schedule, fuse, parse_schedule
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import measure_memory
from tilegrad.sim.training import training_graph

QUICK = Effort(work=50_000, nodes=0)


@cache
def network() -> Graph:
    """Walks that fold, whole nodes between them, halos along two axes."""
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=2, dilation=2)
    return export_module(nn.Sequential(*layers).train(), (torch.zeros(2, 2, 12, 12),)).graph


def graded(graph: Graph) -> tuple[str, ...]:
    return tuple(v.name for v in graph.of_kind(Kind.INPUT, Kind.PARAMETER) if v.type.floating)


def same(schedule: Schedule) -> Schedule:
    """What is written reads back, and is written the same once more."""
    text = format_schedule(schedule)
    found = parse_schedule(text, schedule.graph)
    assert found.steps == schedule.steps
    named = {step.island for step in schedule.steps if hasattr(step, "island")}
    for name in named:
        assert found.islands[name] == schedule.islands[name]
    assert (found.mode, found.storage, found.seat) == (schedule.mode, schedule.storage, schedule.seat)
    assert format_schedule(found) == text
    return found


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("mode", ["stream", "scatter", "gather", "auto"])
@pytest.mark.parametrize("storage", ["device", "disk"])
def test_tiles_of_many_phases(mode: str, storage: str, train: bool) -> None:
    schedule = plan_tiles(lower_graph(network()), mode, {"h": 5, "w": 4}, storage, train=train)
    assert len(schedule.phases) >= 3 and any(isinstance(step, Finish) for step in schedule.steps)
    found = same(schedule)
    if mode == "stream":
        assert any(isinstance(step, Join) for island in found.islands.values() for step in island.steps)


@pytest.mark.parametrize("apart", [False, True])
def test_whole_nodes_that_run_again_or_wait_elsewhere(apart: bool) -> None:
    graph = network()
    training = training_graph(graph, graded(graph))
    seconds = dict.fromkeys(training.node, 1.0)
    keep = plan_keep(training)
    peak = measure_memory(keep).peak_bytes
    same(fuse(keep, graph, apart=apart))
    again = plan_recompute(training, seconds, int(0.9 * peak), QUICK)
    if again is not None:
        same(fuse(again, graph, apart=apart))


def test_copies() -> None:
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Sigmoid())))
    graph = export_module(net, (torch.zeros(1, 8, 64, 64),)).graph
    training = training_graph(graph, graded(graph))
    peak = measure_memory(plan_keep(training)).peak_bytes
    plan = plan_offload(training, dict.fromkeys(training.node, 1.0), CPU, int(0.8 * peak))
    assert plan is not None
    found = same(fuse(plan, graph))
    assert any(isinstance(step, Move) for step in found.steps)


def test_a_mixture() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.Sigmoid())
    graph = export_module(net, (torch.zeros(1, 1, 12, 12),)).graph
    cut = cut_graph(graph, 2)
    assert cut is not None
    inner, rest = cut
    tiles = plan_tiles(lower_graph(inner), "stream", {"h": 4})
    (crossing,) = inner.outputs
    names = [n for n in (*graded(graph), crossing) if n in rest.value]
    schedule = join_schedules(tiles, fuse(plan_keep(training_graph(rest, names)), rest), graph)
    assert same(schedule).mode == "mixed"


@pytest.mark.parametrize("budget", [None, 10_000])
def test_ranks(budget: int | None) -> None:
    graph = lower_graph(network())
    mesh = Mesh(("h", "w"), (2, 2), (0, 1, 2, 3))
    for rank in range(4):
        schedule = plan_rank(MeshProblem(graph, mesh, rank, graded(graph)), budget).schedule
        found = same(schedule)
        assert found.seat is not None and found.seat.rank == rank
        assert {Exchange, Sum, Finish} <= {type(step) for step in found.steps}


def edited(old: str, new: str) -> str:
    schedule = plan_tiles(lower_graph(network()), "stream", {"h": 6})
    text = format_schedule(schedule)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nturn\n", "\nturn around\n", "turn"),
        ("\nturn\n", "\nleap\n", "leap"),
        ("schedule stream halos device", "schedule stream halos attic", "attic"),
        ("\nturn\n", "\nturn\nmove conv2d attic\n", "attic"),
        ("\nrun 0:0\n", "\nrun 9:9\n", "9:9"),
        ("  load input ", "  load nowhere ", "nowhere"),
        ("  load input 0:2", "  load input 0:x", "0:x"),
        ("\nrun 0:0\n", "\n", "S8|S9|S6|S11|island"),
        ("schedule stream", "plan stream", "plan"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    graph = lower_graph(network())
    with pytest.raises(TilegradError, match=message):
        parse_schedule(edited(old, new), graph)


def test_an_empty_text() -> None:
    with pytest.raises(FormatError):
        parse_schedule("", lower_graph(network()))
