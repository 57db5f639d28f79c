"""A memory-mapped temporary file.

It has no name from the moment it is made, so it is gone whatever happens to the process. Pages are mapped only
while they are read or written: what waits on disk is not in the process's memory.

Rule F1  Room in the file is taken before pages of it are mapped. A page that has no block on the disk behind it finds
         that out when it is written to, and a full disk then ends the process (SIGBUS) instead of raising an error.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...errors import RunError
from ...files import take_room
from ...units import format_bytes
from .base import Layout, Slot, ValueStore

GROWTH = 64 << 20  # the most that is reserved ahead: a halo may be of some kilobytes, and a call to the disk takes time


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
            self.reserved = take_room(self.file, self.reserved, ahead)
        except OSError:
            try:
                self.reserved = take_room(self.file, self.reserved, end)
            except OSError as error:
                raise _no_room(end - self.reserved, error) from error

    def open(self, spot: _Spot) -> Tensor:
        """The tensor itself, in mapped pages; they are unmapped when the last tensor that uses them is gone."""
        size = prod(spot.shape) * spot.dtype.itemsize
        if not size:
            return torch.empty(spot.shape, dtype=spot.dtype)
        pages = mmap.mmap(self.file.fileno(), size, offset=spot.start)
        return torch.frombuffer(pages, dtype=spot.dtype).view(spot.shape)


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


class DiskStore(ValueStore):
    """Slots share a file; their room is given back with the store."""

    name = "disk"

    def __init__(self) -> None:
        self._file: _File | None = None

    def reserve(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout,
        *,
        zeros: bool,
    ) -> Slot:
        self._file = self._file or _File()
        return _Mapped(self._file, self._file.reserve(shape, dtype))  # which is filled with zeros anyway


class _Mapped(Slot):
    def __init__(self, file: _File, spot: _Spot):
        self.file, self.spot = file, spot

    def open(self) -> Tensor:
        return self.file.open(self.spot)
