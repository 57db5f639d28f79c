"""What a node costs besides arithmetic and traffic: on a CPU new memory and elements one after another, on a GPU the
share of it that a kernel reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tilegrad.bounds import call_of
from tilegrad.importers import export_module
from tilegrad.ir import Graph
from tilegrad.ops import Call, find
from tilegrad.sim.clock import DENSE, OTHER, whole_seconds
from tilegrad.sim.cost import FRESH, node_cost, node_seconds
from tilegrad.sim.machine import CPU, PRESETS

PLAIN = replace(CPU, fresh_bytes_per_s=None, serial_per_s=None)


def captured(*layers: nn.Module, side: int = 64) -> Graph:
    return export_module(nn.Sequential(*layers), (torch.zeros(1, 8, side, side),)).graph


def call(graph: Graph, name: str) -> Call:
    return call_of(graph, next(node for node in graph.nodes if node.op == name))


@pytest.mark.parametrize(("side", "new"), [(1024, 1.0), (1020, 0.0)])  # 32 MiB, and less
def test_large_blocks_are_new_each_time(side: int, new: float) -> None:
    graph = captured(nn.ReLU(), side=side)
    cost, size = node_cost(graph, graph.nodes[0]), 4 * 8 * side**2
    assert (size >= FRESH, cost.fresh) == (bool(new), new * size)
    assert CPU.fresh_bytes_per_s is not None
    more = node_seconds(graph, CPU)[graph.nodes[0].name] - node_seconds(graph, PLAIN)[graph.nodes[0].name]
    assert more == pytest.approx(new * size / CPU.fresh_bytes_per_s)


def test_another_look_at_memory_takes_none() -> None:
    graph = captured(nn.Flatten(), side=1024)
    assert node_cost(graph, graph.nodes[0]).fresh == 0


def test_max_pools_look_at_elements_one_by_one() -> None:
    """In torch's forward; ours does in backward."""
    graph = captured(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3))
    assert CPU.serial_per_s is not None
    quick, factor = whole_seconds(call(graph, "max_pool2d"), PLAIN)
    forward, more = whole_seconds(call(graph, "max_pool2d"), CPU)
    looked = 4 * 8 * 32**2 / CPU.serial_per_s
    assert (factor, forward) == (OTHER, quick) and more * forward == pytest.approx(quick * OTHER + looked)
    times = [node_seconds(graph, machine)["max_pool2d"] for machine in (CPU, PLAIN)]
    assert times[0] - times[1] == pytest.approx(looked)
    for name, factor in (("avg_pool2d", OTHER), ("conv2d", DENSE)):
        assert whole_seconds(call(graph, name), CPU) == whole_seconds(call(graph, name), PLAIN)
        assert whole_seconds(call(graph, name), CPU)[1] == factor


def test_few_channels_are_no_matrix_products_on_a_gpu() -> None:
    """As much arithmetic takes the longer the fewer channels are read or made; a CPU's figure is measured as it is."""
    arithmetic = replace(PRESETS["h200"], bytes_per_s=1e30, launch_s=0.0)
    dense, depthwise = (captured(nn.Conv2d(8, 8, 7, groups=groups)) for groups in (1, 8))
    whole, narrow = (node_cost(graph, graph.nodes[0]) for graph in (dense, depthwise))
    assert whole.flops == 8 * narrow.flops
    assert 8 * narrow.seconds(arithmetic) / whole.seconds(arithmetic) == pytest.approx(8)
    seconds = [whole_seconds(call(graph, "conv2d"), arithmetic)[0] for graph in (dense, depthwise)]
    assert 8 * seconds[1] / seconds[0] == pytest.approx(8)
    rates = [_rate(read, made) for read, made in ((3, 64), (8, 64), (64, 64), (128, 128), (64, 128), (512, 512))]
    assert rates[4] == rates[2] and sorted(rates[:4]) == rates[:4] and rates[3] < rates[5] < 0.78
    assert rates[2] == pytest.approx(0.52) and rates[0] == pytest.approx(0.03)  # as was measured


def _rate(read: int, made: int) -> float:
    graph = export_module(nn.Conv2d(read, made, 3), (torch.zeros(1, read, 8, 8),)).graph
    return find(graph.nodes[0]).rate(call(graph, "conv2d"))


def test_layer_norms_are_slower_than_passes_over_memory_on_a_gpu() -> None:
    graph = captured(nn.LayerNorm(64), nn.ReLU())
    norm, relu = (whole_seconds(call(graph, name), PRESETS["h200"])[0] for name in ("layer_norm", "relu"))
    assert norm > 4 * relu
