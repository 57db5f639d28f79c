"""A step as two CUDA graphs, one forward and one backward: recorded once, launched again and again.

A step in tiles is thousands of small calls, and on a GPU Python takes longer over them than the device does. Where a
step does the same every time, all its kernels are launched at once.

Rule C1  What is recorded is what runs: one `Pass`, whose memory stays its own. Inputs are copied in, outputs and
         gradients are copied out.
Rule C2  A recorded step is in flight from its forward to its backward. Another one that begins meanwhile runs as it
         would without a recording.
Rule C3  It is used only for the very tensors (parameters, buffers) it was recorded with, where they lay then.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..ir import Kind
from ..schedule import Move, Storage
from .executor import Executor
from .unchanged import version_of, was_changed
from .walk import Pass


def can_be_recorded(executor: Executor) -> bool:
    """Does every step do the same, on the device alone?"""
    schedule = executor.schedule
    moves = any(isinstance(step, Move) for step in schedule.steps)
    return not executor.draws and not moves and schedule.storage == Storage.DEVICE and schedule.seat is None


class Flight:
    """A recorded step between its forward and its backward: to others it is a pass."""

    def __init__(self, recording: Recording, tensors: Mapping[str, Tensor]):
        self.recording, self.tensors, self.spent = recording, tensors, False
        self.needs, self.output_names = recording.step.needs, recording.step.output_names
        self.versions: dict[str, int] = {}

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        outputs = self.recording.forward(self.tensors)
        written = self.recording.written
        self.versions = {name: version_of(t) for name, t in self.tensors.items() if name not in written}
        return outputs, []

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        self.spent = True
        for name, version in self.versions.items():
            if version_of(self.tensors[name]) != version:
                raise was_changed(f"'{name}'")
        return self.recording.backward(grads)


class Recording:
    """A pass whose kernels are recorded. `tensors`: those of the step that is recorded, which then runs."""

    def __init__(self, executor: Executor, tensors: Mapping[str, Tensor], device: torch.device):
        graph = executor.graph
        self.inputs = {name: tensors[name].detach().clone() for name in graph.inputs}
        for name, tensor in self.inputs.items():
            tensor.requires_grad_(tensors[name].requires_grad)
        self.fixed = {name: t for name, t in tensors.items() if graph.value[name].kind is not Kind.INPUT}
        self.places = {name: (t.data_ptr(), t.requires_grad) for name, t in self.fixed.items()}
        self.device, self.stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.flight: weakref.ref[Flight] | None = None
        self.given: list[Tensor | None] | None = None
        self.found: dict[str, Tensor] = {}
        self.ahead, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.ahead, self.pool, self.stream):
            self.step = Pass(executor, {**self.fixed, **self.inputs}, device)
            self.outputs, updates = self.step.forward()
            with torch.no_grad():
                for name, value in updates:
                    self.fixed[name].copy_(value)
        self.written = {name for name, _ in updates}

    def serves(self, tensors: Mapping[str, Tensor]) -> bool:
        """Rules C2 and C3."""
        flying = self.flight() if self.flight is not None else None
        if flying is not None and not flying.spent:
            return False
        if any((tensors[name].data_ptr(), tensors[name].requires_grad) != at for name, at in self.places.items()):
            return False
        return all(tensors[name].requires_grad == mine.requires_grad for name, mine in self.inputs.items())

    def begin(self, tensors: Mapping[str, Tensor]) -> Flight:
        flight = Flight(self, tensors)
        self.flight = weakref.ref(flight)
        return flight

    def forward(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            for name, mine in self.inputs.items():
                mine.copy_(tensors[name])
        self.ahead.replay()
        return [output.clone() for output in self.outputs]

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        if self.given is None:
            self.given = [None if grad is None else grad.detach().clone() for grad in grads]
            self.step.versions = {
                name: version_of(t) for name, t in self.step._watched().items()
            }  # ours are written to
            with torch.cuda.graph(self.back, self.pool, self.stream):
                self.found = self.step.backward(self.given)
        if [mine is None for mine in self.given] != [grad is None for grad in grads]:
            return self._otherwise(grads)
        for mine, grad in zip(self.given, grads, strict=True):
            if mine is not None and grad is not None:
                mine.copy_(grad)
        self.back.replay()
        return {name: grad.clone() for name, grad in self.found.items()}

    def _otherwise(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Other outputs have gradients than when it was recorded: the step once more, as it is without a recording."""
        step = Pass(self.step.executor, self.step.tensors, self.device)
        step.forward()
        return step.backward(grads)
