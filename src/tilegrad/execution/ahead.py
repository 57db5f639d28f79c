"""Boxes of tensors that lie on the host, on their way to the device before they are asked for.

While one tile is computed, a thread copies the next one's part of the image into pinned memory, and from there to the
device on a stream of its own.

Rule A1  Memory on the device is taken by the thread that computes, before it goes on: what frees it comes later on the
         same stream. The copy waits for what used that memory before, the tile for the copy.
Rule A2  What is asked for in another order than expected is copied when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from ..region import Box

Key = tuple[str, Box]


class Ahead:
    """`tensors`: those on the host; `loads`: what will be read of them, in order."""

    def __init__(self, device: torch.device, tensors: Mapping[str, Tensor], loads: Sequence[Key]):
        self.device, self.tensors, self.loads, self.at = device, tensors, loads, 0
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._coming: tuple[Key, Tensor, Future[torch.cuda.Event]] | None = None

    def read(self, name: str, box: Box) -> Tensor:
        key = name, box
        coming, self._coming = self._coming, None
        if coming is None or coming[0] != key:  # rule A2
            coming = self._begin(key)
        if key in self.loads[self.at :]:
            self.at = self.loads.index(key, self.at) + 1
            if self.at < len(self.loads):
                self._coming = self._begin(self.loads[self.at])
        _, found, copied = coming
        torch.cuda.current_stream(self.device).wait_event(copied.result())
        return found

    def _begin(self, key: Key) -> tuple[Key, Tensor, Future[torch.cuda.Event]]:
        """Rule A1."""
        part = self.tensors[key[0]].detach()[key[1].slices]
        found = torch.empty_like(part, device=self.device)
        free = torch.cuda.current_stream(self.device).record_event()
        return key, found, _worker().submit(self._copy, part, found, free)

    def _copy(self, part: Tensor, found: Tensor, free: torch.cuda.Event) -> torch.cuda.Event:
        pinned = torch.empty_like(part, pin_memory=True).copy_(part)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(free)
            found.copy_(pinned, non_blocking=True)
            found.record_stream(self.stream)  # should nobody ever ask for it
            return self.stream.record_event()


@cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "tilegrad-ahead")
