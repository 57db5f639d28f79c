"""Which dimension lies on which axis: names from convolutions, spread both ways, contradictions read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.bounds import Axes, label_axes, lower_graph
from tilegrad.importers import capture
from tilegrad.ir import Graph


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(self, *tensors)


def labelled(function: Callable[..., Any], *inputs: Any) -> tuple[Graph, Axes]:
    graph = capture(Of(function), *inputs)
    return graph, label_axes(graph)


def of_outputs(graph: Graph, axes: Axes) -> list[dict[str, int]]:
    return [dict(axes.dims[name]) for name in graph.outputs]


def test_images_in_one_two_and_three_dimensions() -> None:
    for rank, names in ((1, {"w": 2}), (2, {"h": 2, "w": 3}), (3, {"d": 2, "h": 3, "w": 4})):
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](3, 4, 3)
        graph = capture(conv, (2, 3, *[8] * rank))
        assert label_axes(graph).dims[graph.outputs[0]] == {"n": 0} | names
        graph = capture(conv, (3, *[8] * rank))  # no batch
        assert label_axes(graph).dims[graph.outputs[0]] == {axis: d - 1 for axis, d in names.items()}


def test_parameters_and_channels_have_no_axis() -> None:
    graph, axes = labelled(lambda self, x: self.conv(x), (2, 3, 8, 9))
    assert all(not axes.dims[v.name] for v in graph.values if v.target)
    assert axes.on(graph.outputs[0], 1) is None and axes.on(graph.outputs[0], 3) == "w"


def test_names_follow_permutes_and_views() -> None:
    moved = labelled(lambda self, x: self.conv(x).permute(0, 2, 3, 1), (2, 3, 8, 9))
    assert of_outputs(*moved) == [{"n": 0, "h": 1, "w": 2}]
    mixed = labelled(lambda self, x: self.conv(x).flatten(2), (2, 3, 8, 9))
    assert of_outputs(*mixed) == [{"n": 0, "h": 2}]  # tokens are rows of pixels


def test_names_reach_masks_and_maps_that_meet_the_image_late() -> None:
    net = Of(lambda self, x, mask, target: F.cross_entropy(self.conv(x) * mask, target))
    graph = lower_graph(capture(net, (2, 3, 8, 9), (8, 9), torch.zeros(2, 8, 9, dtype=torch.int64)))
    axes, (_, mask, target) = label_axes(graph), graph.inputs
    assert axes.dims[mask] == {"h": 0, "w": 1}
    assert axes.dims[target] == {"n": 0, "h": 1, "w": 2}


def test_an_axis_of_length_one_is_none() -> None:
    assert of_outputs(*labelled(lambda self, x: self.conv(x), (1, 3, 1, 9))) == [{"w": 3}]


def test_without_convolutions_ranks_are_taken_at_their_word() -> None:
    assert of_outputs(*labelled(lambda self, x: x * 2, (2, 3, 8, 9))) == [{"n": 0, "h": 2, "w": 3}]


def test_an_image_added_to_its_transpose_reads_that_whole() -> None:
    graph, axes = labelled(lambda self, x: self.conv(x) + self.conv(x).transpose(2, 3), (1, 3, 8, 8))
    (add,) = [n.name for n in graph.nodes if n.op == "add"]
    assert axes.whole == {(add, 1)}
    for dims in axes.dims.values():
        assert len(set(dims.values())) == len(dims)  # no dimension has two names
