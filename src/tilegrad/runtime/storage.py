"""Where tensors wait: on the device, in host memory, or in a memory-mapped temporary file.

The file has no name from the moment it is made, so it is gone whatever happens to the process. Pages are mapped only
while they are read or written: what waits on disk is not in the process's memory.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..region import Box
from ..schedule import Storage


@dataclass(frozen=True)
class _Spot:
    """A tensor's place in a file."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class _File:
    """A nameless file that only grows; tensors are mapped one by one."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="tilegrad-")  # noqa: SIM115 - lives as long as its owner
        weakref.finalize(self, self.file.close)
        self.end = 0

    def reserve(self, shape: Sequence[int], dtype: torch.dtype) -> _Spot:
        """Room for a tensor, filled with zeros."""
        spot = _Spot(self.end, tuple(shape), dtype)
        size = prod(shape) * dtype.itemsize
        self.end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.file.truncate(self.end)
        return spot

    def open(self, spot: _Spot) -> Tensor:
        """The tensor itself, in mapped pages; they are unmapped when the last tensor that uses them is gone."""
        size = prod(spot.shape) * spot.dtype.itemsize
        if not size:
            return torch.empty(spot.shape, dtype=spot.dtype)
        pages = mmap.mmap(self.file.fileno(), size, offset=spot.start)
        return torch.frombuffer(pages, dtype=spot.dtype).view(spot.shape)


class Shelf:
    """Keeps tensors by key and gives them back on the device they came from."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.items: dict[Hashable, tuple[Tensor | _Spot, torch.device]] = {}
        self.bytes = 0
        self._file: _File | None = None

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a copy of `tensor` (which may be a view of something large)."""
        self.bytes += tensor.numel() * tensor.element_size()
        kept: Tensor | _Spot
        if self.storage is Storage.DISK:
            self._file = self._file or _File()
            kept = self._file.reserve(tensor.shape, tensor.dtype)
            self._file.open(kept).copy_(tensor)
        elif self.storage is Storage.HOST and tensor.device.type == "cuda":
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            kept.copy_(tensor, non_blocking=True)
        else:
            kept = tensor.clone(memory_format=torch.preserve_format)
        self.items[key] = (kept, tensor.device)

    def take(self, key: Hashable) -> Tensor | None:
        """The tensor, for the last time; None where nothing was left."""
        return self.get(key, last=True) if key in self.items else None

    def get(self, key: Hashable, *, last: bool) -> Tensor:
        """The tensor on its device; `last`: nobody will ask again."""
        kept, device = self.items.pop(key) if last else self.items[key]
        if isinstance(kept, _Spot):
            assert self._file is not None
            mapped = self._file.open(kept)
            found = mapped.clone() if device.type == "cpu" else mapped.to(device)
        else:
            found = kept.to(device, non_blocking=True)
        if last:
            self.bytes -= found.numel() * found.element_size()
        return found


class Whole:
    """A value that tiles write, read, or add to, box by box."""

    def __init__(self, shape: tuple[int, ...], storage: Storage):
        self.shape, self.storage = shape, storage
        self.device: torch.device | None = None
        self._tensor: Tensor | None = None
        self._file: _File | None = None
        self._spot: _Spot | None = None

    def write(self, box: Box, tile: Tensor) -> None:
        if self.device is None:
            if self._takes(tile):
                self.device, self._tensor = tile.device, tile  # the only tile: nothing to copy
                return
            self._allocate(tile, zeros=False)
        self._all()[box.slices].copy_(tile, non_blocking=True)

    def add(self, box: Box, tile: Tensor, *, shared: bool = False) -> None:
        """Add a tile to what is there, which begins as zero. `shared`: the tile's memory is someone else's."""
        if self.device is None:
            if self._takes(tile) and not shared:
                self.device, self._tensor = tile.device, tile
                return
            self._allocate(tile, zeros=True)
        target = self._all()[box.slices]
        target += tile.to(target.device)

    def read(self, box: Box) -> Tensor:
        """A box on the value's device; a view where it lies there already."""
        assert self.device is not None
        found = self._all() if box.shape == self.shape else self._all()[box.slices]
        if self._spot is not None and self.device.type == "cpu":
            return found.clone()
        return found.to(self.device, non_blocking=True)

    def part(self) -> None:
        """From now on another tensor of the same memory: the one that was read is its reader's alone."""
        if self._tensor is not None:
            self._tensor = self._tensor.detach()

    def _takes(self, tile: Tensor) -> bool:
        return tuple(tile.shape) == self.shape and self.storage is Storage.DEVICE

    def _allocate(self, tile: Tensor, *, zeros: bool) -> None:
        self.device = tile.device
        if self.storage is Storage.DISK:
            self._file = _File()
            self._spot = self._file.reserve(self.shape, tile.dtype)
            return
        away = self.storage is Storage.HOST and tile.device.type == "cuda"
        device = torch.device("cpu") if away else tile.device
        self._tensor = torch.empty(
            self.shape, dtype=tile.dtype, device=device, pin_memory=away, memory_format=layout_of(tile)
        )
        if zeros:
            self._tensor.zero_()

    def _all(self) -> Tensor:
        if self._spot is not None:
            assert self._file is not None
            return self._file.open(self._spot)
        assert self._tensor is not None
        return self._tensor


def layout_of(tensor: Tensor) -> torch.memory_format:
    """channels_last survives. Strides tell it even for a tile of one pixel, which lies in memory like any other."""
    if tensor.dim() in (4, 5) and tensor.stride(1) == 1 and 1 < tensor.shape[1] <= tensor.stride(-1):
        return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format
