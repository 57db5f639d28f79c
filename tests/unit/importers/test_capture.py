"""Capture: what a graph knows of the module it came from, and one clear message where it cannot come."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import CaptureError, ModelError
from tilegrad.importers import capture, device_of, export_module
from tilegrad.ir import Graph, Kind, Node, Role
from tilegrad.torch_private import FakeTensorMode


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x * self.scale.to(x.dtype)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.stem(x))


class Of(nn.Module):
    """A function as a module, with a convolution and a buffer to use."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def only(graph: Graph, op: str) -> Node:
    (node,) = [n for n in graph.nodes if n.op == op]
    return node


def line_of(text: str, member: Any) -> int:
    """The line of this file where `member` says `text`."""
    lines, start = inspect.getsourcelines(member)
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_parameters_and_buffers_keep_their_names() -> None:
    graph, net = capture(Net(), (2, 3, 8, 9)), Net()
    parameters = {v.target: v.type for v in graph.of_kind(Kind.PARAMETER)}
    assert set(parameters) == set(dict(net.named_parameters()))
    assert parameters["stem.0.conv.weight"].shape == (4, 3, 3, 3)
    buffers = {v.target: str(v.type) for v in graph.of_kind(Kind.BUFFER)}
    assert buffers["stem.0.scale"] == "float64[1]"
    assert buffers["stem.0.norm.running_mean"] == "float32[4]"


def test_values_have_shapes_and_dtypes() -> None:
    graph = capture(Net().bfloat16().eval(), (2, 3, 8, 9))
    assert str(graph.type(graph.inputs[0])) == "bfloat16[2, 3, 8, 9]"
    assert str(graph.type(only(graph, "conv2d").outputs[0])) == "bfloat16[2, 4, 8, 9]"
    assert graph.shape(graph.outputs[0]) == (2, 4, 8, 9)


def test_roles_and_attributes_of_a_call() -> None:
    conv = only(capture(Net(), (2, 3, 8, 9)), "conv2d")
    assert [(i.arg, i.role) for i in conv.inputs] == [
        ("input", Role.DATA),
        ("weight", Role.PARAMETER),
        ("bias", Role.PARAMETER),
    ]
    assert conv.attrs["padding"] == [1, 1] and conv.target == "aten.conv2d.default"


def test_nodes_know_their_module_and_line() -> None:
    graph = capture(Net(), (2, 3, 8, 9))
    conv = only(graph, "conv2d").source
    assert conv.module == "stem.0.conv"
    assert conv.line == f"test_capture.py:{line_of('self.norm(self.conv(x))', Block.forward)}"
    assert only(graph, "mul").source.line == f"test_capture.py:{line_of('self.scale', Block.forward)}"
    assert only(graph, "dropout").source.module == "drop"


def test_tensors_and_shapes_say_the_same() -> None:
    assert (
        capture(Net(), torch.zeros(2, 3, 8, 9))
        == capture(Net(), (2, 3, 8, 9))
        == capture(Net(), torch.Size((2, 3, 8, 9)))
    )


def test_train_and_eval_differ() -> None:
    train, test = (capture(Net().train(mode), (2, 3, 8, 9)) for mode in (True, False))
    assert only(train, "batch_norm").attrs["training"] is True and only(test, "batch_norm").attrs["training"] is False
    assert only(train, "dropout").attrs["train"] is True and only(test, "dropout").attrs["train"] is False


def test_several_inputs_of_several_kinds() -> None:
    net = Of(lambda self, x, y, mask, factor: (x + y) * factor * mask)
    captured = export_module(net, [(1, 4, 5, 6), torch.zeros(5, 6, dtype=torch.int64)], {"mask": (6,), "factor": 3})
    assert [str(captured.graph.type(v)) for v in captured.graph.inputs] == [
        "float32[1, 4, 5, 6]",
        "int64[5, 6]",
        "float32[6]",
    ]


def test_outputs_keep_their_structure() -> None:
    net = Of(lambda self, x: {"a": x * 2, "b": [x + 1, None, 7], "again": x})
    captured = export_module(net, [(1, 4, 5, 6)])
    assert len(captured.graph.outputs) == 2
    assert captured.assemble(["first", "second"], ["image"]) == {
        "a": "first",
        "b": ["second", None, 7],
        "again": "image",
    }


def test_nodes_run_where_parameters_are_or_buffers_or_the_image() -> None:
    with FakeTensorMode():
        cpu, gpu = torch.empty(2), torch.empty(2, device="cuda")
    bare, filtering, trained = nn.ReLU(), nn.Module(), nn.Linear(1, 1)
    filtering.register_buffer("kernel", gpu)
    trained.register_buffer("scale", gpu)
    found = [device_of(net, [given]).type for net in (bare, filtering, trained) for given in (cpu, gpu)]
    assert found == ["cpu", "cuda", "cuda", "cuda", "cpu", "cpu"]
    assert device_of(bare, [1.0, cpu.to("meta"), gpu]).type == "cuda" and device_of(bare).type == "cpu"


def test_a_shared_module_has_one_parameter() -> None:
    graph = capture(Of(lambda self, x: self.conv(self.conv(x))), (1, 4, 5, 6))
    first, second = [n for n in graph.nodes if n.op == "conv2d"]
    assert first.reads[1:] == second.reads[1:]
    assert len(list(graph.of_kind(Kind.PARAMETER))) == 2


def test_a_module_may_return_its_loss() -> None:
    net = Of(lambda self, x, y: F.cross_entropy(self.conv(x), y))
    graph = capture(net, (2, 4, 5, 6), torch.zeros(2, 5, 6, dtype=torch.int64))
    assert graph.shape(graph.outputs[0]) == ()
    assert only(graph, "cross_entropy_loss").reads == (only(graph, "conv2d").outputs[0], graph.inputs[1])


def test_a_buffer_that_is_written_is_an_update() -> None:
    def count(self: Of, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count

    graph = capture(Of(count), (1, 4, 5, 6))
    ((old, new),) = graph.updates
    assert graph.value[old].target == "count"
    assert graph.producer[new].op == "add" and new in only(graph, "mul").reads


def test_constants_are_kept() -> None:
    captured = export_module(Of(lambda self, x: x + torch.tensor([1.0, 2.0])), [(3, 2)])
    assert [t.tolist() for t in captured.constants.values()] == [[1.0, 2.0]]


def test_weights_need_not_be_in_memory() -> None:
    with torch.device("meta"):
        net = Net()
    assert capture(net, (1, 3, 65536, 65536)).shape("dropout") == (1, 4, 65536, 65536)


def branch(self: Of, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


REFUSED: dict[str, tuple[Callable[..., Any], type[Exception], str, str]] = {
    "branch": (branch, CaptureError, "branches on the content of a tensor", "torch.where"),
    "float": (lambda self, x: x * float(x.max()), CaptureError, "takes a number out of a tensor", "item"),
    "item": (lambda self, x: x * x.sum().item(), CaptureError, "takes a number out of a tensor", "item"),
    "mask": (lambda self, x: x[x > 0], CaptureError, "shape depends on the content", "torch.where"),
    "hook": (lambda self, x: (x * 2).register_hook(print), CaptureError, "a hook on the gradient", "return the tensor"),
    "numpy": (lambda self, x: torch.tensor(x.numpy()), CaptureError, "a NumPy array of a tensor", "torch operators"),
    "sparse": (lambda self, x: x.to_sparse(), CaptureError, "makes a sparse tensor", "dense"),
    "channels": (
        lambda self, x: self.conv(x[:, :3]),
        ModelError,
        "to have 4 channels, but got 3",
        "number of channels",
    ),
    "rank": (lambda self, x: self.conv(x[0, 0]), ModelError, "Expected 3D .unbatched. or 4D", "without tilegrad"),
    "arguments": (lambda self: 0, ModelError, "takes 1 positional argument but 2 were given", "arguments"),
}


@pytest.mark.parametrize(("function", "kind", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_one_clear_message(function: Callable[..., Any], kind: type[Exception], message: str, hint: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        capture(Of(function), (1, 4, 5, 6))
    assert "test_capture.py:" in caught.value.where
    assert hint in caught.value.hint
    assert len(str(caught.value).splitlines()) == 3


def test_a_branch_is_shown() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Of(branch), (1, 4, 5, 6))
    assert caught.value.where == f"{__file__}:{line_of('x.sum() > 0', branch)}"


def test_wrong_shapes_of_a_whole_network() -> None:
    with pytest.raises(ModelError, match=r"expected input\[2, 5, 8, 9\] to have 3 channels, but got 5") as caught:
        capture(Net(), (2, 5, 8, 9))
    assert f"test_capture.py:{line_of('self.norm(self.conv(x))', Block.forward)}" in caught.value.where
    with pytest.raises(ModelError, match="negative dimension"):
        capture(Net(), (2, 3, -8, 9))


LARGE = """
import resource, time, torch
from tilegrad import capture
from tilegrad.models import resnet18
net = resnet18()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start, before = time.process_time(), peak()
graph = capture(net, (1, 3, 65536, 65536))
assert graph.type(graph.inputs[0]).bytes == 3 * 4 * 2**32
print(time.process_time() - start, peak() - before)
"""


def test_a_huge_image_costs_nothing() -> None:
    source = str(Path(tilegrad.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    assert ran.returncode == 0, ran.stderr
    seconds, grown = map(float, ran.stdout.split())
    assert seconds < 20
    assert grown < 2**30
