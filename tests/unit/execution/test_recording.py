"""How a recording ends, well or not, on a device that is a stand-in: streams, memory and garbage are as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tilegrad.execution import graphs
from tilegrad.execution.graphs import GraphPool

DEVICE = torch.device("cuda:0")


class Capture:
    """As `torch.cuda.graph`: where the device has ended it, the stream stays the recording's."""

    broken = False

    def __init__(self, graph: object, pool: object = None, stream: object = None, capture_error_mode: str = ""):
        self.stream = stream

    def __enter__(self) -> None:
        self.before, STATE.stream = STATE.stream, self.stream

    def __exit__(self, *error: object) -> None:
        if Capture.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        STATE.stream = self.before


STATE = SimpleNamespace(stream="default", mended=[])


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    STATE.stream, STATE.mended = "default", []
    monkeypatch.setattr(Capture, "broken", False)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: object())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: STATE.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(STATE, "stream", stream))
    monkeypatch.setattr(graphs, "_stream", lambda device: "ours")
    monkeypatch.setattr(graphs, "_mend", lambda handle, device: STATE.mended.append(handle))
    yield
    assert gc.isenabled()


def record(pool: GraphPool, error: Exception | None = None) -> None:
    with pool.recording(None, DEVICE):  # type: ignore[arg-type]
        assert STATE.stream == "ours" and not gc.isenabled()
        if error is not None:
            raise error


def test_it_ends_well() -> None:
    pool = GraphPool()
    record(pool)
    first = pool._handle
    record(pool)
    assert pool._handle is first is not None
    assert STATE.stream == "default" and not STATE.mended


def test_a_step_that_fails_by_itself_needs_no_mending() -> None:
    pool = GraphPool()
    with pytest.raises(RuntimeError, match="out of memory"):
        record(pool, RuntimeError("out of memory"))
    assert STATE.stream == "default" and not STATE.mended and pool._handle is not None


def test_what_the_device_has_ended_is_mended_and_its_memory_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GraphPool()
    monkeypatch.setattr(Capture, "broken", True)
    with pytest.raises(RuntimeError, match="previous error"):
        record(pool, RuntimeError("nobody may wait here"))
    assert STATE.stream == "default" and len(STATE.mended) == 1 and pool._handle is None
