"""Plans in words and as data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilegrad.bounds import lower_graph
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import TrainingStep
from tilegrad.planners.tiling import plan_plain, plan_tiles
from tilegrad.schedule import Schedule, format_plan, plan_to_json
from tilegrad.sim.machine import CPU


def without_inputs() -> Graph:
    """As in a profile that does not say what came from outside."""
    graph = lower_graph(export_module(torch.nn.Conv2d(1, 2, 3, padding=1), ((1, 1, 16, 16),), {}).graph)
    return replace(
        graph, values=tuple(replace(v, kind=Kind.PARAMETER) if not v.kind.computed else v for v in graph.values)
    )


@pytest.mark.parametrize("plan", ["keep", "plain", "tiles"])
def test_a_graph_without_inputs(plan: str) -> None:
    graph = without_inputs()
    assert not graph.inputs
    made: dict[str, Schedule] = {
        "keep": TrainingStep(graph, CPU).keep.schedule,
        "plain": plan_plain(graph),
        "tiles": plan_tiles(graph, "stream", {"h": 8}),
    }
    assert plan_to_json(made[plan])["mode"] == made[plan].mode
    assert format_plan(made[plan])
