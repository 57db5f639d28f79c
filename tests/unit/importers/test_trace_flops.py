"""Flops that follow from the shapes in a trace are those that a recording of the same step counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from profile_samples import save_trace
from tilegrad.importers.torch_events import OpData
from tilegrad.importers.trace_flops import shape_flops


class Products(nn.Module):
    """Everything that multiplies matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1, dilation=2, groups=2)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2)
        self.line = nn.Conv1d(6, 4, 5)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.up(self.first(x)).flatten(2)
        found = self.line(found).mT
        found = self.last(found)
        score = torch.bmm(found, found.mT) @ found
        return (score @ torch.ones(3, 2)).sum()


def trace(run: nn.Module, image: Tensor, path: Path) -> tilegrad.Profile:
    return tilegrad.load_profile(save_trace(path, lambda: run(image).backward(), record_shapes=True, with_stack=True))


def test_they_are_those_of_a_recording(tmp_path: Path) -> None:
    net, image = Products(), torch.randn(2, 4, 12, 10, requires_grad=True)
    with tilegrad.record() as rec:
        net(image).backward()
    found = trace(net, image, tmp_path / "trace.json")
    known = [op.flops for op in found.operators if op.flops]
    assert sum(known) == sum(op.flops or 0 for op in rec.profile.operators) and len(known) > 10
    assert not [op.type for op in found.operators if op.flops == 0]  # unknown is not nothing
    assert shape_flops("aten::matmul", OpData(((2, 5), (5,)))) == 2 * 2 * 5
    assert shape_flops("aten::matmul", OpData(((5,), (3, 5, 4)))) == 2 * 3 * 5 * 4
    assert shape_flops("aten::scaled_dot_product_attention", OpData(((2, 7, 4), (2, 5, 4), (2, 5, 3)))) == 980


def test_operators_know_their_line(tmp_path: Path) -> None:
    """Forward and backward, in a trace and in a recording."""
    net, image = Products(), torch.randn(2, 4, 12, 10, requires_grad=True)
    traced = trace(net, image, tmp_path / "trace.json")
    assert {op.source.rpartition("/")[2].partition(":")[0] for op in traced.operators if "conv" in op.type} == {
        Path(__file__).name
    }
    with tilegrad.record() as rec:
        net(image)
    line = Products.forward.__code__.co_firstlineno
    convolutions = [op.source for op in rec.profile.operators if "convolution" in op.type]
    assert convolutions == [f"{Path(__file__).name}:{line + n}" for n in (1, 1, 2)]


@pytest.mark.parametrize(
    ("type", "shapes", "inputs"),
    [
        ("aten::relu", ((2, 3),), ()),
        ("aten::conv2d", (), ()),
        ("aten::conv2d", ((1, 3, 8, 8), (4, 3, 3, 3)), ("", "", "", "[1, 1]", "same", "[1, 1]", "1")),
        ("aten::conv2d", ((1, 3, 8, 8), (4, 3)), ("", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1")),
        ("aten::mm", ((2, 3), (4, 5)), ("", "")),
        ("aten::matmul", ((2, 3),), ("",)),
    ],
)
def test_what_shapes_do_not_tell_is_unknown(
    type: str, shapes: tuple[tuple[int, ...], ...], inputs: tuple[str, ...]
) -> None:
    assert shape_flops(type, OpData(shapes, (), inputs)) is None
