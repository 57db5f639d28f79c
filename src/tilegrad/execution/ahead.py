"""Boxes of images that lie elsewhere (on disk, on the host), on their way to the device before they are asked for.

While one tile is computed, a thread reads the next one's part of the image as it is stored. For a CUDA device it reads
into pinned memory, and copies from there on a stream of its own. Cast and coloured it is by who asks for it, there.

Rule A1  Memory on the device is taken by the thread that computes, before it goes on: what frees it comes later on the
         same stream. The copy waits for what used that memory before, the tile for the copy.
Rule A2  What is asked for in another order than expected is read when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..images import ImageSource, of_array
from ..region import Box

Key = tuple[str, Box]
Arrived = Callable[[], list[Tensor]]  # waits for what is stored of a box


class Ahead:
    """`sources`: by the name of the value; `loads`: what will be read of them, in order."""

    def __init__(self, device: torch.device, sources: Mapping[str, ImageSource], loads: Sequence[Key]):
        self.device, self.sources, self.loads, self.at = device, sources, loads, 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._coming: tuple[Key, Arrived] | None = None

    def read(self, name: str, box: Box) -> Tensor:
        key = name, box
        coming, self._coming = self._coming, None
        if coming is None or coming[0] != key:  # rule A2
            coming = key, self._begin(key)
        if key in self.loads[self.at :]:
            self.at = self.loads.index(key, self.at) + 1
            if self.at < len(self.loads):
                self._coming = self.loads[self.at], self._begin(self.loads[self.at])
        return self.sources[name].finish(box, coming[1]())

    def _begin(self, key: Key) -> Arrived:
        source, box = self.sources[key[0]], key[1]
        if self.stream is None:
            return _workers().submit(source.stored_tiles, box).result
        rooms = source.rooms(box, self.device)  # rule A1
        free = torch.cuda.current_stream(self.device).record_event()
        copied = _workers().submit(self._copy, source, box, rooms, free)
        return lambda: self._waited(rooms, copied)

    def _copy(self, source: ImageSource, box: Box, rooms: Sequence[Tensor], free: torch.cuda.Event) -> torch.cuda.Event:
        assert self.stream is not None
        pinned = source.stored_tiles(box, pinned=True)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_event(free)
            for room, tile in zip(rooms, pinned, strict=True):
                room.copy_(tile, non_blocking=True)
                room.record_stream(self.stream)  # should nobody ever ask for it
            return self.stream.record_event()

    def _waited(self, rooms: list[Tensor], copied: Future[torch.cuda.Event]) -> list[Tensor]:
        torch.cuda.current_stream(self.device).wait_event(copied.result())
        return rooms


def elsewhere(tensors: Mapping[str, Any], device: torch.device) -> dict[str, ImageSource]:
    """What is not on the device, each as an image of which boxes are read."""
    found = {name: t for name, t in tensors.items() if isinstance(t, ImageSource)}
    if device.type == "cuda":
        host = {name: t for name, t in tensors.items() if name not in found and t.device.type == "cpu"}
        found |= {name: of_array(tensor) for name, tensor in host.items()}
    return found


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, "tilegrad-ahead")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # there are no threads in a child
