"""Temporary files.

They have no names from the moment they are made, so they are gone whatever happens to the process. What lies in long
pieces is read and written by the system; else pages are mapped, but only while that is done: what waits on disk is not
in the process's memory. Files serve again: a step needs those of the step before, and to write to pages that the system
has is twice as fast as to new ones.

Rule F1  Room in the file is taken before pages of it are mapped. A page that has no block on the disk behind it finds
         that out when it is written to, and a full disk then ends the process (SIGBUS) instead of raising an error.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import IO

import torch
from torch import Tensor

from ...errors import RunError
from ...files import take_room
from ...units import format_bytes
from .base import Layout, Part, Slot, ValueStore

Move = Callable[[int, list[memoryview], int], int]
BY_SYSTEM = hasattr(os, "preadv")
LONG = 4 << 10  # bytes: shorter pieces take longer one by one than as mapped pages
ROOM = 256 << 10  # bytes: what is laid out anew, or added up, at a time
GROWTH = 64 << 20  # the most that is reserved ahead: a halo may be of some kilobytes, and a call to the disk takes time


@dataclass(frozen=True)
class _Spot:
    """A tensor's place in a file."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def pieces(self, part: Part) -> tuple[list[int], int]:
        """Where a part lies in the file: its pieces begin there, and are so many bytes long."""
        sides = [(0, n) for n in self.shape] if part is None else [(s.start, s.stop) for s in part]
        step = length = self.dtype.itemsize
        first, together, outer = self.start, True, list[range]()
        for (lo, hi), size in zip(reversed(sides), reversed(self.shape), strict=True):
            if together:  # all behind this dimension is whole
                first, length, together = first + lo * step, (hi - lo) * step, hi - lo == size
            else:
                outer.append(range(lo * step, hi * step, step))
            step *= size
        return [first + sum(at) for at in product(*reversed(outer))], length


@dataclass(eq=False)
class _Blocks:
    """A nameless file in a folder, and how much of it has room on the disk. `maker`: the process whose it is."""

    folder: str
    file: IO[bytes]
    reserved: int = 0
    maker: int = field(default_factory=os.getpid)


class _Idle:
    """Files that nobody uses: the next who needs one takes it. `full`: a disk had no room; since then none are kept."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """In a child made by `fork`, too: the files are its parent's, and whoever had the lock is not there."""
        self.files: list[_Blocks] = []
        self.full = False
        self.lock = threading.RLock()  # a model may end in any thread

    def take(self, size: int) -> _Blocks:
        """The smallest that has so much room, else the largest; a new one where there is none."""
        try:
            folder = tempfile.gettempdir()
            with self.lock:
                here = [blocks for blocks in self.files if blocks.folder == folder]
                fitting = [blocks for blocks in here if blocks.reserved >= size]
                if here:
                    found = min(fitting, key=_reserved) if fitting else max(here, key=_reserved)
                    self.files.remove(found)
                    return found
            return _Blocks(folder, tempfile.TemporaryFile(prefix="tilegrad-", buffering=0))
        except OSError as error:
            raise _no_room(0, error) from error

    def keep(self, blocks: _Blocks) -> None:
        serves = not self.full and blocks.maker == os.getpid()
        with self.lock:
            self.files += [blocks] if serves else []
        if not serves:
            blocks.file.close()

    def let_go(self) -> None:
        with self.lock:
            gone, self.files = self.files, []
        for blocks in gone:
            blocks.file.close()


def _reserved(blocks: _Blocks) -> int:
    return blocks.reserved


_idle = _Idle()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.begin)


class _File:
    """A file that only grows; tensors are mapped one by one."""

    def __init__(self, size: int) -> None:
        self.blocks, self.end = _idle.take(size), 0
        weakref.finalize(self, _idle.keep, self.blocks)

    def reserve(self, shape: Sequence[int], dtype: torch.dtype) -> _Spot:
        """Room for a tensor, filled with anything."""
        size = prod(shape) * dtype.itemsize
        end = self.end + -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if end > self.blocks.reserved:
            self._grow(end)
        spot = _Spot(self.end, tuple(shape), dtype)
        self.end = end
        return spot

    def _grow(self, end: int) -> None:
        """Take room to `end` and, if the disk has it, as much again: a file of many small tensors asks seldom."""
        blocks, ahead = self.blocks, max(end, self.blocks.reserved + min(self.blocks.reserved, GROWTH))
        try:
            blocks.reserved = take_room(blocks.file, blocks.reserved, ahead)
        except OSError:
            _idle.full = True
            _idle.let_go()
            try:
                blocks.reserved = take_room(blocks.file, blocks.reserved, end)
            except OSError as error:
                raise _no_room(end - blocks.reserved, error) from error

    def open(self, spot: _Spot) -> Tensor:
        """The tensor itself, in mapped pages; they are unmapped when the last tensor that uses them is gone."""
        size = prod(spot.shape) * spot.dtype.itemsize
        if not size:
            return torch.empty(spot.shape, dtype=spot.dtype)
        pages = mmap.mmap(self.blocks.file.fileno(), size, offset=spot.start)
        return torch.frombuffer(pages, dtype=spot.dtype).view(spot.shape)

    def move(self, how: Move, tensor: Tensor, places: Sequence[int], length: int) -> None:
        """Read or write the pieces of a tensor, one behind the other, at these places."""
        file, memory = self.blocks.file.fileno(), memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
        for at, place in zip(range(0, len(memory), length), places, strict=True):
            done = how(file, [memory[at : at + length]], place)
            while done < length:  # the system may stop in the middle of what is large
                moved = how(file, [memory[at + done : at + length]], place + done)
                if not moved:
                    raise _no_room(length, OSError(errno.EIO, "the file is shorter than it was"))
                done += moved


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
    """Slots share a file; who needs one next may have it when they are gone."""

    name = "disk"

    @classmethod
    def let_go(cls) -> None:
        _idle.let_go()

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
        self._file = self._file or _File(prod(shape) * dtype.itemsize)
        found = _Mapped(self._file, self._file.reserve(shape, dtype))
        if zeros:
            found.open().zero_()
        return found


class _Mapped(Slot):
    def __init__(self, file: _File, spot: _Spot):
        self.file, self.spot = file, spot

    def open(self) -> Tensor:
        return self.file.open(self.spot)

    def read(self, part: Part, device: torch.device) -> Tensor:
        places, length = self.spot.pieces(part) if device.type == "cpu" and BY_SYSTEM else ([], 0)
        if length < LONG:
            return super().read(part, device)
        shape = self.spot.shape if part is None else tuple(s.stop - s.start for s in part)
        found = torch.empty(shape, dtype=self.spot.dtype)
        self.file.move(os.preadv, found, places, length)
        return found

    def add(self, part: Part, tensor: Tensor) -> None:
        if tensor.device.type != "cpu" or not BY_SYSTEM or self.spot.pieces(part)[1] < LONG:
            super().add(part, tensor)
        elif tensor.nbytes > ROOM:
            for where, half in self._halves(part, tensor):
                self.add(where, half)
        else:
            self.write(part, self.read(part, tensor.device).add_(tensor))

    def write(self, part: Part, tensor: Tensor) -> None:
        able = BY_SYSTEM and tensor.device.type == "cpu" and tensor.dtype == self.spot.dtype
        places, length = self.spot.pieces(part) if able else ([], 0)
        if length < LONG:
            super().write(part, tensor)
        elif tensor.nbytes > ROOM and not tensor.is_contiguous():
            for where, half in self._halves(part, tensor):
                self.write(where, half)
        else:
            self.file.move(os.pwritev, tensor.detach().contiguous(), places, length)

    def _halves(self, part: Part, tensor: Tensor) -> Iterator[tuple[Part, Tensor]]:
        """Of the first dimension that has any."""
        sides = tuple(slice(0, n) for n in self.spot.shape) if part is None else part
        dim = next(d for d, n in enumerate(tensor.shape) if n > 1)
        lo, size = sides[dim].start, tensor.shape[dim]
        for a, b in ((0, size // 2), (size // 2, size)):
            yield (*sides[:dim], slice(lo + a, lo + b), *sides[dim + 1 :]), tensor.narrow(dim, a, b - a)
