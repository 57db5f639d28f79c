"""Where tensors wait: on the device, in host memory, or in a memory-mapped temporary file.

The file has no name from the moment it is made, so it is gone whatever happens to the process.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Hashable
from typing import BinaryIO

import torch
from torch import Tensor

from ..region import Box
from ..schedule import Storage


class Shelf:
    """Keeps tensors by key and gives them back on the device they came from."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.items: dict[Hashable, tuple[Tensor, torch.device]] = {}
        self.bytes = 0
        self._file: _File | None = None

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a copy of `tensor` (which may be a view of something large)."""
        device = tensor.device
        self.bytes += tensor.numel() * tensor.element_size()
        if self.storage is Storage.DISK and device.type != "meta":
            kept = self._disk().write(tensor)
        elif self.storage is Storage.HOST and device.type == "cuda":
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            kept.copy_(tensor, non_blocking=True)
        else:
            kept = tensor.clone(memory_format=torch.preserve_format)
        self.items[key] = (kept, device)

    def get(self, key: Hashable, *, last: bool) -> Tensor:
        """The tensor on its device; `last`: nobody will ask again."""
        kept, device = self.items.pop(key) if last else self.items[key]
        if last:
            self.bytes -= kept.numel() * kept.element_size()
        if self.storage is Storage.DISK and device.type != "meta":
            return kept.clone() if device.type == "cpu" else kept.to(device)
        return kept.to(device, non_blocking=True)

    def _disk(self) -> _File:
        if self._file is None:
            self._file = _File()
        return self._file


class _File:
    """A nameless file that only grows, mapped piece by piece."""

    def __init__(self) -> None:
        self.file: BinaryIO = tempfile.TemporaryFile(prefix="tilegrad-")  # noqa: SIM115 - lives as long as we do
        self.end = 0

    def write(self, tensor: Tensor) -> Tensor:
        """Store the tensor's elements and return a tensor that reads them from the file."""
        mapped = self.reserve(tensor.numel(), tensor.dtype).view(tensor.shape)
        mapped.copy_(tensor)
        return mapped

    def reserve(self, count: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor of so many elements that lives in the file."""
        size, start = count * dtype.itemsize, self.end
        if not size:
            return torch.empty(0, dtype=dtype)
        self.end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.file.truncate(self.end)
        pages = mmap.mmap(self.file.fileno(), size, offset=start)
        return torch.frombuffer(pages, dtype=dtype)


class Whole:
    """A value that tiles write and read box by box."""

    def __init__(self, shape: tuple[int, ...], storage: Storage):
        self.shape, self.storage = shape, storage
        self.tensor: Tensor | None = None
        self.device: torch.device | None = None
        self._file: _File | None = None

    def write(self, box: Box, tile: Tensor) -> None:
        if self.tensor is None:
            self._allocate(tile)
        assert self.tensor is not None
        if tile.shape == self.tensor.shape and self.storage is Storage.DEVICE:
            self.tensor = tile  # the only tile: nothing to copy
        else:
            self.tensor[box.slices].copy_(tile, non_blocking=True)

    def _allocate(self, tile: Tensor) -> None:
        self.device = tile.device
        if tile.device.type == "meta" or self.storage is Storage.DEVICE:
            if tile.shape == torch.Size(self.shape):
                self.tensor = tile
                return
            self.tensor = torch.empty(self.shape, dtype=tile.dtype, device=tile.device, memory_format=layout_of(tile))
        elif self.storage is Storage.HOST:
            self.tensor = torch.empty(self.shape, dtype=tile.dtype, pin_memory=tile.device.type == "cuda")
        else:
            self._file = _File()
            count = 1
            for n in self.shape:
                count *= n
            self.tensor = self._file.reserve(count, tile.dtype).view(self.shape)

    def read(self, box: Box) -> Tensor:
        """A box on the value's device; a view where it lies there already."""
        assert self.tensor is not None and self.device is not None
        found = self.tensor if box.shape == self.tensor.shape else self.tensor[box.slices]
        if self._file is not None and self.device.type == "cpu":
            return found.clone()
        return found.to(self.device, non_blocking=True)


def layout_of(tensor: Tensor) -> torch.memory_format:
    """channels_last survives."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d) and not tensor.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format
