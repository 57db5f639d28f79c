"""How a recording ends, well or not, on a device that is a stand-in: streams, memory and garbage are as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilegrad.execution import Executor, Pass, graphs
from tilegrad.execution.graphs import GraphPool, Recorded
from tilegrad.importers import export_module
from tilegrad.ir import Kind
from tilegrad.planners import plan_keep
from tilegrad.schedule import fuse
from tilegrad.sim.training import training_graph

DEVICE = torch.device("cuda:0")


class Capture:
    """As `torch.cuda.graph`: where the device has ended it, the stream stays the recording's."""

    broken = late = False

    def __init__(self, graph: object, pool: object = None, stream: object = None, capture_error_mode: str = ""):
        self.stream = stream

    def __enter__(self) -> None:
        if Capture.late:
            raise RuntimeError("the pool has ended")
        self.before, STATE.stream = STATE.stream, self.stream

    def __exit__(self, *error: object) -> None:
        if Capture.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        STATE.stream = self.before


class Graph:
    """What is recorded has run already, and is gone with a reset."""

    def replay(self) -> None: ...

    def reset(self) -> None:
        STATE.resets += 1


STATE = SimpleNamespace(stream="default", mended=0, ended=[], resets=0)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    STATE.stream, STATE.mended, STATE.ended, STATE.resets = "default", 0, [], 0
    monkeypatch.setattr(Capture, "broken", False)
    monkeypatch.setattr(Capture, "late", False)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: object())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: STATE.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(STATE, "stream", stream))
    monkeypatch.setattr(graphs, "_stream", lambda device: "ours")
    monkeypatch.setattr(graphs, "_mend", lambda device: setattr(STATE, "mended", STATE.mended + 1))
    monkeypatch.setattr(graphs, "end_pool", lambda device, handle: STATE.ended.append(handle))
    yield
    assert gc.isenabled()


def record(pool: GraphPool, error: Exception | None = None) -> Graph:
    graph = Graph()
    with pool.recording(graph, DEVICE):  # type: ignore[arg-type]
        assert STATE.stream == "ours" and not gc.isenabled()
        if error is not None:
            raise error
    return graph


def test_it_ends_well() -> None:
    pool = GraphPool()
    kept = record(pool)
    first = pool._handle
    record(pool)
    assert pool._handle is first is not None and kept is not None
    assert STATE.stream == "default" and not STATE.mended


def test_a_pool_ends_with_the_last_recording_in_it() -> None:
    pool = GraphPool()
    kept = record(pool)
    first = pool._handle
    del kept
    record(pool)
    assert pool._handle is not first


def test_one_that_cannot_begin_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GraphPool()
    monkeypatch.setattr(Capture, "late", True)
    with pytest.raises(RuntimeError, match="has ended"):
        record(pool)
    assert STATE.stream == "default" and STATE.mended == 1 and not STATE.ended


def test_a_step_that_fails_by_itself_needs_no_mending() -> None:
    pool = GraphPool()
    with pytest.raises(RuntimeError, match="out of memory"):
        record(pool, RuntimeError("out of memory"))
    assert STATE.stream == "default" and not STATE.mended


def test_what_the_device_has_ended_is_mended_and_its_memory_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GraphPool()
    kept = record(pool)
    first = pool._handle
    monkeypatch.setattr(Capture, "broken", True)
    with pytest.raises(RuntimeError, match="previous error"):
        record(pool, RuntimeError("nobody may wait here"))
    assert STATE.stream == "default" and STATE.mended == 1 and STATE.ended == [first]
    monkeypatch.setattr(Capture, "broken", False)
    record(pool)
    assert pool._handle is not first and kept is not None


def test_a_backward_that_cannot_be_recorded_lets_go_of_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the step that is run without a recording would need its memory once more."""
    x = torch.randn(1, 2, 8, 8)
    graph = export_module(nn.Sequential(nn.Sigmoid(), nn.MaxPool2d(2)), (x,)).graph
    executor = Executor(fuse(plan_keep(training_graph(graph, graph.inputs)), graph))
    backward, passes = Pass.backward, list[weakref.ref[Pass]]()

    def failing(step: Pass, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        passes.append(weakref.ref(step))
        if len(passes) == 1:
            raise RuntimeError("out of memory\nand more")
        assert passes[0]() is None and STATE.resets == 1  # before the other one begins
        return backward(step, grads)

    monkeypatch.setattr(Pass, "backward", failing)
    monkeypatch.setattr(graphs, "why_not", lambda executor: None)
    recorded = Recorded(executor, GraphPool())
    recorded._warm = 0
    tensors = {name: x.clone().requires_grad_() for name in graph.inputs}
    flight = recorded.flight(tensors, x.device, 0)
    assert flight is not None
    (out,), _ = flight.forward()
    (found,) = flight.backward([torch.ones_like(out)]).values()
    (wanted,) = torch.autograd.grad(F.max_pool2d((y := x.clone().requires_grad_()).sigmoid(), 2).sum(), y)
    assert torch.equal(found, wanted) and recorded._given_up == "out of memory" and len(passes) == 2
    assert recorded.flight(tensors, x.device, 0) is None


def test_a_backward_that_reads_the_input_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """To autograd, the image that is copied in behind the recorded forward is what a convolution kept."""
    net, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), torch.randint(-3, 4, (1, 2, 8, 8)).float()
    graph = export_module(net, (x,)).graph
    graded = [value.name for value in graph.of_kind(Kind.PARAMETER)]
    executor = Executor(fuse(plan_keep(training_graph(graph, graded)), graph))
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    tensors = {value.name: state.get(value.target, x) for value in graph.values if not value.kind.computed}
    monkeypatch.setattr(graphs, "why_not", lambda executor: None)
    recorded = Recorded(executor, GraphPool())
    recorded._warm = 0
    flight = recorded.flight(tensors, x.device, 0)
    assert flight is not None
    (out,), _ = flight.forward()
    found = flight.backward([out.detach()])
    assert recorded._given_up is None and recorded.recording is not None
    wanted = torch.autograd.grad(net(x).square().sum() / 2, list(net.parameters()))
    for name, grad in zip(graded, wanted, strict=True):
        torch.testing.assert_close(found[name], grad)
