"""Times on CUDA devices: an event before and after every operator, read when all is done.

An event costs microseconds and needs no tool of the vendor. A span so begins when the device reaches the operator:
where it waits for the host, the launch is part of the span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

Mark = tuple[torch.device, str, Any]  # device, stream, event


class DeviceClock:
    """Marks on CUDA streams, and the host's second of each."""

    def __init__(self) -> None:
        self.present = torch.cuda.is_available()
        self._zero: dict[int, tuple[float, Any]] = {}

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
        """The device an operator works on, if it is one of ours."""
        for item in args:
            first = item[0] if isinstance(item, (list, tuple)) and item else item
            if isinstance(first, Tensor) and first.is_cuda:
                return first.device
        wanted = kwargs.get("device")
        device = torch.device(wanted) if wanted is not None else None
        return device if device is not None and device.type == "cuda" else None

    def mark(self, device: torch.device) -> Mark | None:
        """A moment in the current stream. None while a graph is captured: events have no time there."""
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = torch.cuda.current_stream(device)
        if stream.device_index not in self._zero:
            self._begin(stream)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return stream.device, str(stream.cuda_stream), event

    def _begin(self, stream: torch.cuda.Stream) -> None:
        torch.cuda.synchronize(stream.device)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        self._zero[stream.device_index] = perf_counter(), event

    def close(self) -> None:
        for index in self._zero:
            torch.cuda.synchronize(index)

    def second(self, mark: Mark) -> float:
        zero, event = self._zero[mark[0].index]
        return zero + event.elapsed_time(mark[2]) / 1e3
