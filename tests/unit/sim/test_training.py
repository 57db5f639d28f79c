"""The training graph of a forward graph: names, aliases, what backward reads and how many bytes there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tilegrad.importers import export_module
from tilegrad.ir import Graph, Phase
from tilegrad.sim.training import training_graph


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function, self.conv, self.norm = function, nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.map = nn.Parameter(torch.ones(1, 2, 4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def traced(function: Callable[..., Any], *, seeded: bool = True, **options: Any) -> Graph:
    net = Net(function).train(options.get("train", True))
    graph = export_module(net, [torch.ones(1, 2, 4, 4)]).graph
    graded = [v.name for v in graph.values if v.name.startswith("p_")] + list(graph.inputs)
    return training_graph(graph, graded, seeded=seeded)


def test_a_sum_in_place_is_an_alias_and_its_last_name_is_the_gradients() -> None:
    graph = traced(lambda m, x: m.conv(m.conv(x)) * m.conv(x))
    values = graph.value
    assert values["p_conv_weight.grad"].alias == "p_conv_weight.grad.2"
    assert values["p_conv_weight.grad.2"].alias == "p_conv_weight.grad.1"
    assert values["p_conv_weight.grad.1"].alias is None


def test_gradients_in_one_memory_are_summed_elsewhere() -> None:
    """y = a + b hands one gradient to both; what is added to it for another reader must not reach them."""
    graph = traced(lambda m, x: (lambda a, b: (a + b, a * 2, b * 3))(m.conv(x), m.norm(x)))
    values = graph.value
    shared = [v for v in graph.values if v.alias == "add.grad"]
    assert {v.name for v in shared} <= {"conv2d.grad.1", "conv2d.grad.2", "batch_norm.grad.1", "batch_norm.grad.2"}
    for name in ("conv2d.grad", "batch_norm.grad"):
        assert values[name].alias not in ("add.grad", *(v.name for v in shared)), name


def test_what_is_handed_over_is_its_own_memory() -> None:
    graph = traced(lambda m, x: x + m.map)
    assert graph.value["x.grad"].alias is None and graph.value["p_map.grad"].alias is None


def test_an_input_that_gets_no_gradient_does_not_count() -> None:
    graph = traced(lambda m, x: m.conv(x)[:1].expand_as(x) * x)
    assert "x.grad" in graph.value and "x.grad" in graph.outputs


def test_outputs_that_come_from_outside_bring_gradients() -> None:
    graph = traced(lambda m, x: (x.view(-1), m.map.view(-1)))
    assert {"x.grad", "p_map.grad"} <= {v for n in graph.nodes for v in n.outputs}


def test_a_seed_that_is_one_has_no_bytes_unless_its_value_is_read() -> None:
    assert "seed" not in traced(lambda m, x: m.conv(x).sum(), seeded=False).node
    graph = traced(lambda m, x: (lambda y: (y, y.relu()))(m.conv(x)), seeded=False)
    assert graph.node["seed"].outputs == ("conv2d.grad.1",)


def test_views_are_aliases_unless_they_repeat() -> None:
    graph = traced(lambda m, x: (lambda y: y.view(2, 16).t() @ y[:, :1].expand(1, 8, 4, 4).reshape(2, 64))(m.conv(x)))
    values = graph.value
    assert values["view"].alias == values["t"].alias == "conv2d"
    assert values["expand"].alias is None


def test_buffers_are_kept_while_they_are_trained() -> None:
    def norms(m: Net, x: Tensor) -> Tensor:
        return m.norm(m.norm(x))

    trained = traced(norms)
    assert {"batch_norm.buffers", "batch_norm_1.buffers"} <= set(trained.outputs)
    assert not any(v.name.endswith(".buffers") for v in traced(norms, train=False).values)


def test_complex_values_pass_gradients() -> None:
    graph = traced(lambda m, x: torch.fft.irfft2(torch.fft.rfft2(m.conv(x))))
    backward = [n.name for n in graph.nodes if n.phase is Phase.BACKWARD]
    assert "conv2d.backward" in backward and graph.value["p_conv_weight.grad"].type.dtype == "float32"
