"""Where tensors wait: on the device, in host memory, or in a memory-mapped temporary file.

The file has no name from the moment it is made, so it is gone whatever happens to the process. Pages are mapped only
while they are read or written: what waits on disk is not in the process's memory.

Rule F1  Room in the file is taken before pages of it are mapped. A page that has no block on the disk behind it finds
         that out when it is written to, and a full disk then ends the process (SIGBUS) instead of raising an error.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO

import torch
from torch import Tensor

from ..errors import RunError
from ..region import Box
from ..schedule import Storage
from ..units import format_bytes

GROWTH = 64 << 20  # the most that is reserved ahead: a halo may be of some kilobytes, and a call to the disk takes time
ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class _Spot:
    """A tensor's place in a file."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class _File:
    """A nameless file that only grows; tensors are mapped one by one."""

    def __init__(self) -> None:
        try:
            self.file = tempfile.TemporaryFile(prefix="tilegrad-", buffering=0)  # noqa: SIM115 - lives as long as its owner
        except OSError as error:
            raise _no_room(0, error) from error
        weakref.finalize(self, self.file.close)
        self.end = self.reserved = 0

    def reserve(self, shape: Sequence[int], dtype: torch.dtype) -> _Spot:
        """Room for a tensor, filled with zeros."""
        size = prod(shape) * dtype.itemsize
        end = self.end + -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if end > self.reserved:
            self._grow(end)
        spot = _Spot(self.end, tuple(shape), dtype)
        self.end = end
        return spot

    def _grow(self, end: int) -> None:
        """Take room to `end` and, if the disk has it, as much again: a file of many small tensors asks seldom."""
        ahead = max(end, self.reserved + min(self.reserved, GROWTH))
        try:
            self.reserved = _take_room(self.file, self.reserved, ahead)
        except OSError:
            try:
                self.reserved = _take_room(self.file, self.reserved, end)
            except OSError as error:
                raise _no_room(end - self.reserved, error) from error

    def open(self, spot: _Spot) -> Tensor:
        """The tensor itself, in mapped pages; they are unmapped when the last tensor that uses them is gone."""
        size = prod(spot.shape) * spot.dtype.itemsize
        if not size:
            return torch.empty(spot.shape, dtype=spot.dtype)
        pages = mmap.mmap(self.file.fileno(), size, offset=spot.start)
        return torch.frombuffer(pages, dtype=spot.dtype).view(spot.shape)


def _take_room(file: IO[bytes], start: int, end: int) -> int:
    """Blocks on the disk for a part of a file; the file's new size. On an error the file is as it was."""
    try:
        if not _allocate_blocks(file, start, end):
            _write_zeros(file, start, end)
    except OSError:
        file.truncate(start)
        raise
    return end


def _allocate_blocks(file: IO[bytes], start: int, end: int) -> bool:
    """Without writing them. False where the system or its file system cannot."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return False
    try:
        os.posix_fallocate(file.fileno(), start, end - start)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def _write_zeros(file: IO[bytes], start: int, end: int) -> None:
    file.seek(start)
    for at in range(start, end, len(ZEROS)):
        piece = memoryview(ZEROS)[: end - at]
        while piece:
            piece = piece[file.write(piece) :]  # an almost full disk takes a part of it


def _no_room(size: int, error: OSError) -> RunError:
    """What a user with a full disk needs to know."""
    folder = tempfile.tempdir or "the folder for temporary files"  # set where one was found
    free = f"; {format_bytes(shutil.disk_usage(folder).free)} are free" if os.path.isdir(folder) else ""
    wanted = f"{size} bytes more ({format_bytes(size)})" if size else "a new file"
    return RunError(
        f"no place on disk for {wanted}, where halos and values wait: {error.strerror or error}{free}",
        where=folder,
        hint='TMPDIR=FOLDER of a larger disk, a smaller tile=, or halos="host"',
    )


class Shelf:
    """Keeps tensors by key and gives them back on the device they came from."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.items: dict[Hashable, tuple[Tensor | _Spot, torch.device]] = {}
        self.bytes = 0
        self._file: _File | None = None

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a copy of `tensor` (which may be a view of something large)."""
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
        self.bytes += tensor.numel() * tensor.element_size()

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
        if self.storage is Storage.DISK:
            self._file = _File()
            self._spot = self._file.reserve(self.shape, tile.dtype)
            self.device = tile.device
            return
        self.device = tile.device
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
