"""Memory of this process that other processes of its host may read, once they are given its file descriptors.

It has no name in a file system, so nothing is left behind however a process ends. Blocks are of few sizes and serve
again and again: the same messages are sent in every step. Of a segment only what its blocks need is taken from the
system, and that at once, so that where there is none it is an error, and not a signal in the middle of a copy.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import RunError
from ..units import format_bytes

SEGMENT = 256 << 20  # addresses that are mapped at a time, at least: each takes file descriptors of all ranks
LARGER = 1.5  # times what is asked for: a block that is free and no larger serves, too
PAGE = 4096
NO_FILES = "more file descriptors (ulimit -n)"  # what to try
STEPS = 8  # sizes of blocks between one power of two and the next


@dataclass(eq=False)
class SharedBlock:
    """`readers`: who have not yet read what lies in it; `lent`: a tensor lies in it that is not ours; `free`: nobody's,
    for the next that needs one."""

    number: int
    segment: int
    offset: int
    room: int  # bytes
    data: Tensor
    readers: set[Any] = field(default_factory=set)
    lent: weakref.ref[memoryview] | None = None
    free: bool = False


class SharedMemory:
    def __init__(self) -> None:
        self.files: list[int] = []  # one for each segment
        self.blocks: list[SharedBlock] = []
        self._maps: list[mmap.mmap] = []
        self._free = defaultdict[int, list[SharedBlock]](list)  # by room
        self._rooms: dict[int, int] = {}  # by size
        self._last: Tensor | None = None  # segment, of which there is something left
        self._used = 0
        self._taken = 0
        self._lent: dict[int, SharedBlock] = {}  # by where they begin
        self._lock = threading.RLock()  # a tensor may end in any thread

    @property
    def nbytes(self) -> int:
        """What is taken from the system."""
        return self._taken

    def take(self, size: int) -> SharedBlock:
        """A block of at least so many bytes. It comes back when all its readers have read it: `has_read`."""
        room = self._rooms.get(size)
        if room is None:
            room = self._rooms[size] = _rounded(size)
        free = self._free[room] or self._larger(room)
        block = free.pop() if free else self._carve(room)
        block.free = False
        return block

    def _larger(self, room: int) -> list[SharedBlock]:
        """Blocks that are free and little larger."""
        fitting = (size for size, blocks in self._free.items() if blocks and room < size <= LARGER * room)
        return self._free[min(fitting, default=room)]

    def has_read(self, number: int, reader: Any) -> None:
        block = self.blocks[number]
        with self._lock:
            if reader in block.readers:
                block.readers.remove(reader)
                if not (block.readers or block.lent is not None or block.free):
                    self._settle(block)

    def _settle(self, block: SharedBlock) -> None:
        block.free = True
        self._free[block.room].append(block)

    def lend(self, size: int) -> Tensor:
        """A block, as a tensor of bytes: it comes back when nobody holds that any more, either."""
        block = self.take(size)
        memory = memoryview(self._maps[block.segment])[block.offset : block.offset + size]
        found = torch.frombuffer(memory, dtype=torch.uint8)
        place = found.data_ptr()

        def give_back(_: object) -> None:
            with self._lock:
                del self._lent[place]
                block.lent = None
                if not (block.readers or block.free):
                    self._settle(block)

        block.lent = weakref.ref(memory, give_back)
        self._lent[place] = block
        return found

    def lent(self, tensor: Tensor) -> SharedBlock | None:
        """The block that was lent for a tensor, if nobody else has yet to read it."""
        block = self._lent.get(tensor.data_ptr()) if tensor.is_contiguous() else None
        return block if block is not None and not block.readers else None

    def _carve(self, room: int) -> SharedBlock:
        if self._last is None or self._last.numel() - self._used < room:
            self._last, self._used = self._segment(max(room, SEGMENT)), 0
        lo = self._used
        try:
            os.posix_fallocate(self.files[-1], lo, room)
        except OSError as error:
            what = f"no memory is left for messages to other ranks of this host: {format_bytes(room)} more"
            raise RunError(what, hint="smaller inputs, or fewer ranks on this host") from error
        self._used, self._taken = lo + room, self._taken + room
        self.blocks.append(SharedBlock(len(self.blocks), len(self.files) - 1, lo, room, self._last[lo : lo + room]))
        return self.blocks[-1]

    def _segment(self, size: int) -> Tensor:
        try:
            file = os.memfd_create("tilegrad", os.MFD_CLOEXEC)
            try:
                os.ftruncate(file, size)
                self._maps.append(mmap.mmap(file, size))
            except OSError:
                os.close(file)
                raise
        except OSError as error:
            what = f"no memory can be shared with other ranks of this host: {error.strerror}"
            raise RunError(what, hint=f"{NO_FILES}, or fewer ranks on this host") from error
        self.files.append(file)
        return torch.frombuffer(self._maps[-1], dtype=torch.uint8)

    def close(self) -> None:
        """What others have mapped, and tensors that lie in it, stay."""
        for file in self.files:
            os.close(file)
        self.files = []


def mapped(file: int) -> Tensor:
    """The bytes of a file that is memory. They stay mapped as long as the tensor lives."""
    return torch.frombuffer(mmap.mmap(file, os.fstat(file).st_size), dtype=torch.uint8)


def _rounded(size: int) -> int:
    step = max(PAGE, (1 << max(size - 1, 0).bit_length()) // STEPS)
    return -(-max(size, 1) // step) * step
