"""A schedule as plain data and back: all of it, though no box of a tile is written."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from torch import nn

import tilegrad
from reference_graphs import NAMES, reference_graph
from tilegrad.bounds import image_axes, lower_graph
from tilegrad.errors import TilegradError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import plan_keep, plan_plain, plan_tiles
from tilegrad.planners.mixed import cut_graph, join_schedules
from tilegrad.planners.tiling import keep_last, make_schedule
from tilegrad.schedule import Again, Schedule, format_schedule, fuse, pack_schedule, unpack_schedule
from tilegrad.sim.training import training_graph


def same(schedule: Schedule) -> Schedule:
    found = unpack_schedule(json.loads(json.dumps(pack_schedule(schedule))))
    assert found.graph == schedule.graph
    assert found.steps == schedule.steps
    assert dict(found.islands) == dict(schedule.islands)
    for phase, other in zip(found.phases, schedule.phases, strict=True):
        for key in ("number", "nodes", "folds", "boxed", "whole", "stores", "grid"):
            assert getattr(phase, key) == getattr(other, key)
        assert (phase.backward is phase.forward) == (other.backward is other.forward)
        for tiling, expected in ((phase.forward, other.forward), (phase.backward, other.backward)):
            assert (tiling is None) == (expected is None)
            if tiling is not None and expected is not None:
                assert (tiling.lines, tiling.spans) == (expected.lines, expected.spans)
    for key in ("mode", "storage", "predicted", "notes", "gap", "work", "kept"):
        assert getattr(found, key) == getattr(schedule, key)
    assert str(tilegrad.Plan(found)) == str(tilegrad.Plan(schedule))
    assert tilegrad.Plan(found).to_json() == tilegrad.Plan(schedule).to_json()
    return found


@cache
def network() -> Graph:
    """Walks that fold, whole nodes between them, halos along two axes, a value that is read whole and by box."""
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=2, dilation=2)
    return export_module(nn.Sequential(*layers).train(), (torch.zeros(2, 2, 12, 12),)).graph


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("mode", ["stream", "scatter", "gather", "auto"])
@pytest.mark.parametrize("storage", ["device", "disk"])
def test_tiles(mode: str, storage: str, train: bool) -> None:
    graph = lower_graph(network())
    schedule = plan_tiles(graph, mode, {"h": 5, "w": 4}, storage, train=train)
    same(schedule)
    if train:
        same(keep_last(schedule, 3))
        again = Again(frozenset(v for phase in schedule.phases for v in phase.stores) - {*graph.outputs}, True)
        found = make_schedule(graph, schedule.mode, schedule.phases, storage, True, again)
        assert same(found).remade == found.remade != Again()
    same(plan_plain(graph, train=train))


@pytest.mark.parametrize("name", NAMES)
def test_tiles_of_every_reference_network(name: str) -> None:
    graph = lower_graph(reference_graph(name))
    same(plan_tiles(graph, "auto", dict.fromkeys(image_axes(graph)[-1:], 16)))


def test_whole_nodes_and_both() -> None:
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.Sigmoid(), nn.Conv2d(3, 2, 3, padding=1), nn.Tanh()
    graph = export_module(nn.Sequential(*layers), (torch.zeros(1, 2, 12, 12),)).graph
    graded = [v.name for v in graph.of_kind(Kind.PARAMETER)]
    plan = plan_keep(training_graph(graph, graded))
    same(fuse(plan, graph))
    same(fuse(plan, graph, apart=True))
    cut = cut_graph(graph, 2)
    assert cut is not None
    first, rest = cut
    behind = [v for v in (*graded, *first.outputs) if v in rest.value]
    whole = fuse(plan_keep(training_graph(rest, behind)), rest)
    same(join_schedules(plan_tiles(lower_graph(first), "stream", {"h": 4}), whole, graph))


def test_small() -> None:
    """A thousand tiles cost a few bytes each."""
    net = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1) for _ in range(4)))
    graph = lower_graph(export_module(net, ((1, 1, 256, 256),)).graph)
    schedule = plan_tiles(graph, "stream", {"h": 8, "w": 8})
    assert len(schedule.islands) == 1024
    assert len(json.dumps(pack_schedule(schedule))) < 0.1 * len(format_schedule(schedule))


def test_what_is_read_is_checked() -> None:
    data = pack_schedule(plan_tiles(lower_graph(network()), "stream", {"h": 5}))
    with pytest.raises(TilegradError):
        unpack_schedule({**data, "steps": data["steps"].replace("turn\n", "")})
