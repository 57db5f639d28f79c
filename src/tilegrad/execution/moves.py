"""Copies to the host and back, beside computing where the device allows it.

A CUDA device copies through pinned memory on streams of its own. On the CPU the device's memory *is* the host's: what
is moved away goes to a nameless file.

Rule M1  Tensors that share memory (views, sums in place) move together, each memory once, and come back as they lay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .saved import memory_of
from .shelf import Shelf


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor and where it lies in a memory that is away."""

    memory: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int


class Mover:
    """Keeps what is away, by name."""

    def __init__(self, device: torch.device):
        self.device = device
        self._file = Shelf("disk")
        self._parts: dict[str, dict[str, _Part]] = {}
        self._away: dict[str, dict[int, Tensor]] = {}
        self._coming: dict[str, dict[int, Tensor]] = {}
        self._done: dict[str, torch.cuda.Event] = {}
        self._streams = (_stream(device), _stream(device)) if device.type == "cuda" else None

    def offload(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Begin to copy out: one name for all, a key for each."""
        memories = {memory_of(t): _flat(t) for t in tensors.values()}
        self._parts[name] = {
            key: _Part(memory_of(t), t.dtype, tuple(t.shape), t.stride(), int(t.storage_offset()))
            for key, t in tensors.items()
        }
        if self._streams is None:
            for memory, flat in memories.items():
                self._put(name, memory, flat)
            return
        stream = self._streams[0]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        kept = {memory: torch.empty_like(flat, device="cpu", pin_memory=True) for memory, flat in memories.items()}
        with torch.cuda.stream(stream):
            for memory, flat in memories.items():
                kept[memory].copy_(flat, non_blocking=True)
        self._away[name] = kept
        self._done[name] = stream.record_event()

    def _put(self, name: str, memory: int, flat: Tensor) -> None:
        if self.device.type == "meta":
            self._away.setdefault(name, {})[memory] = torch.empty_like(flat)
        else:
            self._file.put((name, memory), flat)

    def fetch(self, name: str) -> dict[str, Tensor]:
        """Begin to copy back; the copy away is given up."""
        parts = self._parts.pop(name)
        flats = self._back(name, {part.memory for part in parts.values()})
        return {key: _typed(flats[p.memory], p.dtype).as_strided(p.size, p.stride, p.start) for key, p in parts.items()}

    def _back(self, name: str, memories: set[int]) -> dict[int, Tensor]:
        if self.device.type == "meta":
            return {memory: torch.empty_like(flat) for memory, flat in self._away.pop(name, {}).items()}
        if self._streams is None:
            return {memory: self._file.get((name, memory), last=True) for memory in memories}
        kept, stream = self._away.pop(name), self._streams[1]
        back = {memory: torch.empty_like(flat, device=self.device) for memory, flat in kept.items()}
        stream.wait_stream(torch.cuda.current_stream(self.device))  # its memory may just have been given back
        with torch.cuda.stream(stream):
            for memory, flat in kept.items():
                back[memory].copy_(flat, non_blocking=True)
        self._done[name] = stream.record_event()
        self._coming[name] = kept  # pinned memory must outlive the copy from it
        return back

    def wait(self, name: str) -> None:
        """What comes next on the device waits for the last copy of this value."""
        event = self._done.pop(name, None)
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


def _flat(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor lies in."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _typed(flat: Tensor, dtype: torch.dtype) -> Tensor:
    return flat if flat.dtype is dtype else flat.view(dtype)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
