"""Local, fold or whole, and in which phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.bounds import NodePart, label_axes, lower_graph, sort_nodes
from tilegrad.importers import capture

Sorted = list[tuple[str, NodePart, int]]  # operator, part, phase


class Of(nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.linear = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def parts(function: Callable[..., Tensor], tiled: Sequence[str] = ("h", "w")) -> Sorted:
    graph = lower_graph(capture(Of(function).train(), (2, 3, 16, 16)))
    roles = sort_nodes(graph, label_axes(graph), tiled)
    return [(n.op, roles.part[n.name], roles.phase[n.name]) for n in graph.nodes]


L, F_, W = NodePart.LOCAL, NodePart.FOLD, NodePart.WHOLE


def test_a_classifier_folds_its_pool_and_runs_its_head_whole() -> None:
    found = parts(lambda self, x: self.linear(self.conv(x).relu().mean((2, 3))))
    assert found == [("conv2d", L, 0), ("relu", L, 0), ("mean", F_, 0), ("linear", W, 1)]


def test_squeeze_and_excite_takes_two_walks() -> None:
    found = parts(lambda self, x: (y := self.conv(x)) * y.mean((2, 3), keepdim=True).sigmoid())
    assert found == [("conv2d", L, 0), ("mean", F_, 0), ("sigmoid", W, 1), ("mul", L, 2)]


def test_batch_norm_in_training_takes_two_walks() -> None:
    found = parts(lambda self, x: self.norm(self.conv(x)).relu())
    assert [f for f in found if f[0] in ("conv2d", "moments", "normalize", "relu")] == [
        ("conv2d", L, 0),
        ("moments", F_, 0),
        ("normalize", L, 2),
        ("relu", L, 2),
    ]


def test_what_mixes_the_tiled_axes_is_whole() -> None:
    found = parts(lambda self, x: self.conv(x.softmax(-1)).flip(2))
    assert [(op, part) for op, part, _ in found] == [("softmax", W), ("conv2d", L), ("flip", W)]
    rows = parts(lambda self, x: self.conv(x.softmax(-1)), tiled=("h",))
    assert [(op, part) for op, part, _ in rows] == [("softmax", L), ("conv2d", L)]


def test_what_reads_an_axis_whole_cannot_make_a_part_of_it() -> None:
    """Even where the input's dimension has no name: it is only met by the convolution behind."""
    for function in (
        lambda self, x: self.conv(x.softmax(-1)),
        lambda self, x: self.conv((x * 2).view(2, 3, 8, 32)),
        lambda self, x: self.conv(F.layer_norm(x, (16,))),
    ):
        assert parts(function)[-2][1] is W
        assert parts(function)[-1][1] is L


def test_an_expanded_axis_can_be_made_in_parts() -> None:
    assert parts(lambda self, x: self.conv(x[:, :, :1].expand(2, 3, 16, 16)))[-2][:2] == ("expand", L)


def test_a_sum_over_one_of_two_tiled_axes_is_whole() -> None:
    assert parts(lambda self, x: self.conv(x).sum(2))[-1][1] is W
    assert parts(lambda self, x: self.conv(x).sum(2), tiled=("h",))[-1][1] is F_
    assert parts(lambda self, x: self.conv(x).sum(2), tiled=("w",))[-1][1] is L


def test_a_loss_in_the_model_is_folded() -> None:
    found = parts(lambda self, x: F.mse_loss(self.conv(x), x))
    assert found[-2:] == [("mse_loss", L, 0), ("mean", F_, 0)]
    assert {phase for *_, phase in found} == {0}


def test_without_axes_everything_is_whole() -> None:
    assert {part for _, part, _ in parts(lambda self, x: torch.relu(self.conv(x)), tiled=())} == {W}


def test_what_waits_for_no_walk_is_made_before_the_first() -> None:
    """A mask that is drawn in the middle of a network, a weight that is computed: no walk ends for them."""
    found = parts(lambda self, x: self.conv(self.conv(x) * torch.rand(2, 1, 1, 1)).relu())
    assert found == [("conv2d", L, 2), ("rand", W, 1), ("mul", L, 2), ("conv2d", L, 2), ("relu", L, 2)]
    found = parts(lambda self, x: F.conv2d(self.conv(x), self.conv.weight.tanh()))
    assert found == [("conv2d", L, 2), ("tanh", W, 1), ("conv2d", L, 2)]


def test_what_only_the_head_reads_is_made_with_it() -> None:
    found = parts(lambda self, x: F.linear(self.conv(x).mean((2, 3)), self.linear.weight.tanh()))
    assert found == [("conv2d", L, 0), ("mean", F_, 0), ("tanh", W, 1), ("linear", W, 1)]
