"""Copies to the host and back, beside computing where the device allows it.

A CUDA device copies through pinned memory on streams of its own. On the CPU the device's memory *is* the host's: what
is moved away goes to a nameless file.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..schedule import Storage
from .storage import Shelf


class Mover:
    """Keeps what is away, by name."""

    def __init__(self, device: torch.device):
        self.device = device
        self._file = Shelf(Storage.DISK)
        self._away: dict[str, Tensor] = {}
        self._coming: dict[str, Tensor] = {}
        self._done: dict[str, torch.cuda.Event] = {}
        self._streams = (_stream(device), _stream(device)) if device.type == "cuda" else None

    def offload(self, name: str, tensor: Tensor) -> None:
        """Begin to copy out."""
        if self.device.type == "meta":
            self._away[name] = tensor.to("meta")
        elif self._streams is None:
            self._file.put(name, tensor)
        else:
            stream = self._streams[0]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            kept = torch.empty_like(tensor, device="cpu", pin_memory=True)
            with torch.cuda.stream(stream):
                kept.copy_(tensor, non_blocking=True)
            self._away[name] = kept
            self._done[name] = stream.record_event()

    def fetch(self, name: str) -> Tensor:
        """Begin to copy back; the copy away is given up."""
        if self.device.type == "meta":
            return torch.empty_like(self._away.pop(name))
        if self._streams is None:
            return self._file.get(name, last=True)
        kept, stream = self._away.pop(name), self._streams[1]
        back = torch.empty_like(kept, device=self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))  # its memory may just have been given back
        with torch.cuda.stream(stream):
            back.copy_(kept, non_blocking=True)
        self._done[name] = stream.record_event()
        self._coming[name] = kept  # pinned memory must outlive the copy from it
        return back

    def wait(self, name: str) -> None:
        """What comes next on the device waits for the last copy of this value."""
        event = self._done.pop(name, None)
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
