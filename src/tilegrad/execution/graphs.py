"""A step as two CUDA graphs, one forward and one backward: recorded once, launched again and again.

A step in tiles is thousands of small calls, and on a GPU Python takes longer over them than the device does. Where a
step does the same every time, all its kernels are launched at once.

Rule C1  What is recorded is what runs: one `Pass`, whose memory stays its own. Inputs are copied in, outputs and
         gradients are copied out.
Rule C2  All recordings of a module lie in one pool of memory, so one step at a time is in flight, from its forward to
         its backward. Another that begins meanwhile runs as it would without a recording.
Rule C3  A recording serves only the very tensors (parameters, buffers) it was made with, where they lay then.
Rule C4  A recording is not missed: whatever stands in its way, the step runs without it, and the log says why, once.
Rule C5  What fails leaves nothing behind. torch's generator believes that a recording still goes on, and random numbers
         would fail from then on, until another recording ends well; torch's current stream is the recording's.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..garbage import no_collections
from ..ir import Graph, Kind
from ..schedule import Move, Storage
from ..torch_private import end_pool
from .executor import Executor
from .unchanged import version_of, was_changed
from .walk import Pass

WARM = 2  # steps before one is recorded: kernels are chosen and libraries loaded by then
MOVED = 3  # recordings in vain, since parameters have moved: then it is given up
_log = logging.getLogger("tilegrad")


def why_not(executor: Executor) -> str | None:
    """What in a schedule cannot be recorded: a step must do the same every time, on the device alone."""
    schedule, graph = executor.schedule, executor.graph
    if not schedule.phases and not schedule.steps:
        return "there is nothing to record"
    if schedule.seat is not None:
        return "ranks send each other messages"
    if schedule.storage != Storage.DEVICE or any(isinstance(step, Move) for step in schedule.steps):
        return "values are moved to the host"
    if any(graph.value[name].kind is Kind.INPUT for name, _ in graph.updates):
        return "the model writes to its input"
    if any(value.away for value in graph.values):
        return "the image lies elsewhere"
    odd = next((node for node in graph.nodes if not executor.ops[node.name].repeats), None)
    return None if odd is None else f"{odd.describe()} may do something else every time"


def copied_bytes(graph: Graph, graded: Sequence[str]) -> int:
    """What a recorded step holds besides: inputs, outputs, their gradients, and the gradients that come out, twice."""
    handed = [graph.type(name).bytes for name in dict.fromkeys(graph.outputs)]
    found = sum(graph.type(name).bytes for name in graph.inputs) + sum(handed)
    return found + (sum(handed) + sum(graph.type(name).bytes for name in graded) if graded else 0)


class GraphPool:
    """The recordings of one module: the memory they share, and which step is in flight."""

    def __init__(self) -> None:
        self._flight: weakref.ref[Flight] | None = None
        self._handle: Any = None
        self._made: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    @contextlib.contextmanager
    def recording(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> Iterator[None]:
        """Other threads (those that load data) go on meanwhile. Garbage waits: what dies may wait for the device, which
        ends a recording."""
        gc.collect()
        if not self._made:  # a pool of memory ends with the last recording in it
            self._handle = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream(device)
        capture = torch.cuda.graph(graph, self._handle, _stream(device), capture_error_mode="thread_local")
        with no_collections():
            try:
                self._begin(capture, graph, device)
                try:
                    yield
                finally:
                    self._end(capture, device)
            finally:
                torch.cuda.set_stream(before)

    def _begin(self, capture: torch.cuda.graph, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        try:
            capture.__enter__()
        except RuntimeError:
            _mend(device)
            raise
        self._made.add(graph)

    def _end(self, capture: torch.cuda.graph, device: torch.device) -> None:
        """A step that fails by itself ends its recording well. One that the device has ended does not: rule C5."""
        try:
            capture.__exit__(None, None, None)
        except RuntimeError:
            end_pool(device, self._handle)
            self._made.clear()
            _mend(device)
            raise

    @property
    def busy(self) -> bool:
        """Rule C2."""
        flying = self._flight() if self._flight is not None else None
        return flying is not None and not flying.spent

    def begin(self, flight: Flight) -> None:
        self._flight = weakref.ref(flight)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: libraries keep a workspace for each stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _mend(device: torch.device) -> None:
    """Rule C5."""
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=_stream(device)):
        torch.zeros(1, device=device)


class Recorded:
    """A schedule's executor, and its recording once there is one."""

    def __init__(self, executor: Executor, pool: GraphPool):
        self.executor, self.pool = executor, pool
        self.recording: Recording | None = None
        self._warm, self._moved = WARM, MOVED
        self._given_up: str | None = None

    def give_up(self, reason: str) -> None:
        """Rule C4."""
        if self._given_up is None:
            _log.info("steps of %s are not recorded as CUDA graphs: %s", self.executor.graph.name, reason)
        self._given_up, self.recording = reason, None

    def flight(self, tensors: Mapping[str, Tensor], device: torch.device, seed: int) -> Flight | None:
        """The step as recorded, if it can be."""
        if self._given_up is not None or self.pool.busy or torch.cuda.is_current_stream_capturing():
            return None
        if self._warm > 0:
            self._warm -= 1
            return None
        if self.recording is not None and not self.recording.serves(tensors):
            self.recording, self._moved = None, self._moved - 1
        if self.recording is None and not self._record(tensors, device, seed):
            return None
        assert self.recording is not None
        found = Flight(self, self.recording, tensors, seed)
        self.pool.begin(found)
        return found

    def _record(self, tensors: Mapping[str, Tensor], device: torch.device, seed: int) -> bool:
        reason = why_not(self.executor)
        if reason is None and any(t.device != device for t in tensors.values()):
            reason = "inputs lie elsewhere"
        if reason is None and self._moved <= 0:
            reason = "parameters are others from step to step"
        if reason is None:
            try:
                self.recording = Recording(self.executor, self.pool, tensors, device, seed)
            except RuntimeError as error:  # torch's word for everything that goes wrong on a device
                reason = _first_line(error)
            if reason is not None:
                gc.collect()  # frames of what failed hold its memory, and each other
        if reason is not None:
            self.give_up(reason)
        return reason is None


class Flight:
    """A recorded step between its forward and its backward: to others it is a pass."""

    def __init__(self, owner: Recorded, recording: Recording, tensors: Mapping[str, Tensor], seed: int):
        self.owner, self.recording, self.tensors, self.seed = owner, recording, tensors, seed
        assert recording.step is not None
        self.needs, self.output_names = recording.step.needs, recording.step.output_names
        self.versions: dict[str, int] = {}
        self.spent = False

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        outputs = self.recording.forward(self.tensors, self.seed)
        self.versions = {name: version_of(t) for name, t in self.tensors.items() if name not in self.recording.before}
        return outputs, []

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        self.spent = True
        for name, version in self.versions.items():
            if version_of(self.tensors[name]) != version:
                raise was_changed(f"'{name}'")
        try:
            self.recording.record_backward(grads)
            failed = None
        except RuntimeError as error:  # whose frames hold memory until we are out of here
            failed = _first_line(error)
        if failed is not None:
            self.owner.give_up(failed)
            self.recording.let_go()
        if failed is not None or not self.recording.is_for(grads):
            return self.recording.backward_without(grads, self.seed)
        return self.recording.backward(grads)


class Recording:
    """A pass whose kernels are recorded. `tensors`: those of the step that is recorded, which then runs."""

    def __init__(
        self,
        executor: Executor,
        pool: GraphPool,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        seed: int,
    ):
        graph = executor.graph
        self.executor, self.device, self.pool = executor, device, pool
        self.inputs = {name: tensors[name].detach().clone() for name in graph.inputs}
        for name, tensor in self.inputs.items():
            tensor.requires_grad_(tensors[name].requires_grad)
        self.fixed = {name: t for name, t in tensors.items() if graph.value[name].kind is not Kind.INPUT}
        self.places = {name: _place(t) for name, t in self.fixed.items()}
        self.seed = torch.tensor(seed, device=device)
        self.ahead, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self.given: list[Tensor | None] | None = None
        self.found: dict[str, Tensor] = {}
        written = {*executor.written, *(old for old, _ in graph.updates)}
        with pool.recording(self.ahead, device):
            self.before = {name: self.fixed[name].detach().clone() for name in written}
            self.step: Pass | None = Pass(executor, {**self.fixed, **self.inputs}, device, seed=self.seed)
            self.outputs, updates = self.step.forward()
            with torch.no_grad():
                for name, value in updates:
                    self.fixed[name].copy_(value)

    def serves(self, tensors: Mapping[str, Tensor]) -> bool:
        """Rule C3. Shapes and layouts of inputs are those of the plan."""
        if any(_place(tensors[name]) != place for name, place in self.places.items()):
            return False
        return all(tensors[name].requires_grad == mine.requires_grad for name, mine in self.inputs.items())

    def forward(self, tensors: Mapping[str, Tensor], seed: int) -> list[Tensor]:
        with torch.no_grad():
            for name, mine in self.inputs.items():
                mine.data.copy_(tensors[name])  # to autograd, records keep what they read: they are made anew with it
            self.seed.fill_(seed)
        found = [torch.empty_like(output) for output in self.outputs]
        self.ahead.replay()  # from here on buffers are written to: nothing may fail any more
        increment_version([self.fixed[name] for name in self.before])
        for mine, theirs in zip(self.outputs, found, strict=True):
            theirs.copy_(mine)
        return found

    def record_backward(self, grads: Sequence[Tensor | None]) -> None:
        """When it is first needed: only then is known which outputs have a gradient."""
        if self.given is not None:
            return
        given = [None if grad is None else grad.detach().clone() for grad in grads]
        assert self.step is not None
        self.step.watch()  # what was written to before is ours
        with self.pool.recording(self.back, self.device):
            self.found = self.step.backward(given)
        self.given = given

    def is_for(self, grads: Sequence[Tensor | None]) -> bool:
        """Do the same outputs have a gradient, as when it was recorded?"""
        assert self.given is not None
        return [mine is None for mine in self.given] == [grad is None for grad in grads]

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        assert self.given is not None
        for mine, grad in zip(self.given, grads, strict=True):
            if mine is not None and grad is not None:
                mine.copy_(grad)
        self.back.replay()
        return {name: grad.clone() for name, grad in self.found.items()}

    def let_go(self) -> None:
        """Of a recording that failed: the step once more needs the memory that it holds."""
        self.step, self.outputs, self.found = None, [], {}
        self.ahead.reset()
        gc.collect()
        torch.cuda.empty_cache()

    def backward_without(self, grads: Sequence[Tensor | None], seed: int) -> dict[str, Tensor]:
        """The step once more, as it is without a recording: from what it read then."""
        step = Pass(self.executor, {**self.fixed, **self.before, **self.inputs}, self.device, seed=seed)
        step.forward()
        return step.backward(grads)


def _place(tensor: Tensor) -> tuple[int, bool]:
    return tensor.data_ptr(), tensor.requires_grad


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
