"""Islands of tiles, made when they are asked for and known by their kind, are what making each by itself gives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from thorough import crossed
from tilegrad.bounds import lower_graph
from tilegrad.errors import InternalError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import plan_tiles
from tilegrad.planners.tiling import keep_last
from tilegrad.schedule import Island, Schedule, check_schedule
from tilegrad.sim.clock import measure_time
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import predict
from tilegrad.sim.rehearsal import shape_of


def tiled(name: str, mode: str, tile: dict[str, int], size: int = 256) -> Schedule:
    return plan_tiles(lowered(name, size), mode, tile)


@cache
def lowered(name: str, size: int) -> Graph:
    net = NETWORKS[name](width=0.25, **({"head": "pool"} if name == "vgg16" else {})).train()
    return lower_graph(export_module(net, (torch.zeros(example_shape(name, size)),), {}).graph)


def one_by_one(schedule: Schedule) -> Schedule:
    """With the steps of every island made for itself."""
    found = {name: Island(name, island.steps, island.whole) for name, island in schedule.islands.items()}
    return replace(schedule, islands=found)


TILED = [("unet", {"h": 16}), ("vgg16", {"h": 32, "w": 32}), ("resnet18", {"h": 40, "w": 64}), ("deeplab", {"h": 32})]


@pytest.mark.parametrize(("name", "tile", "mode"), crossed(TILED, ["auto", "stream", "scatter", "gather"]), ids=str)
def test_kinds_tell_all_but_places(name: str, tile: dict[str, int], mode: str) -> None:
    schedule = tiled(name, mode, tile)
    alone = one_by_one(schedule)
    kinds = {id(island.kind) for island in schedule.islands.values()}
    assert len(kinds) < len(schedule.islands)
    for name, island in schedule.islands.items():
        other = alone.islands[name]
        assert other == island and shape_of(other) == shape_of(island)
        for told in ("loads", "nodes", "folds", "stores", "writes", "gives", "receives"):
            assert getattr(other, told) == getattr(island, told)
        assert other.reads(schedule.graph) == island.reads(schedule.graph)
        assert other.reads_back(schedule.graph) == island.reads_back(schedule.graph)
    check_schedule(alone)
    check_schedule(schedule)


@pytest.mark.parametrize(("name", "tile"), [("resnet18", {"h": 64, "w": 64}), ("unet", {"h": 32})], ids=str)
def test_figures_are_the_same(name: str, tile: dict[str, int]) -> None:
    schedule = keep_last(tiled(name, "auto", tile), 5)
    graded = [v.name for v in schedule.graph.of_kind(Kind.PARAMETER)]
    found, slow = predict(schedule, graded), predict(one_by_one(schedule), graded)
    assert found == slow and found.memory == slow.memory
    assert measure_time(schedule, None, CPU) == measure_time(one_by_one(schedule), None, CPU)


def test_an_island_of_many_that_is_wrong() -> None:
    schedule = tiled("vgg16", "stream", {"h": 32})
    broken = {**schedule.islands, "0:4": replace(schedule.islands["0:4"], steps=schedule.islands["0:4"].steps[1:])}
    with pytest.raises(InternalError, match="S7"):
        check_schedule(replace(schedule, islands=broken))
