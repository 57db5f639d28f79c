"""Memory of this process that other processes of its host may read, once they are given its file descriptors.

It has no name in a file system, so nothing is left behind however a process ends. Blocks are of few sizes and serve
again and again: the same messages are sent in every step. What is asked for is taken from the system at once, so that
where there is none it is an error, and not a signal in the middle of a copy.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import RunError
from ..units import format_bytes

SEGMENT = 8 << 20  # bytes that are taken at a time, at least
PAGE = 4096
STEPS = 8  # sizes of blocks between one power of two and the next


@dataclass
class Block:
    """`readers`: who have not yet read what lies in it."""

    number: int
    segment: int
    offset: int
    data: Tensor = None  # type: ignore[assignment]
    readers: int = 0


class SharedMemory:
    def __init__(self) -> None:
        self.files: list[int] = []  # one for each segment
        self.blocks: list[Block] = []
        self._free = defaultdict[int, list[Block]](list)
        self._last: Tensor | None = None  # segment, of which there is something left
        self._used = 0

    @property
    def nbytes(self) -> int:
        return sum(os.fstat(file).st_size for file in self.files)

    def take(self, size: int) -> Block:
        """A block of at least so many bytes."""
        room = _rounded(size)
        return self._free[room].pop() if self._free[room] else self._carve(room)

    def give_back(self, block: Block) -> None:
        self._free[block.data.numel()].append(block)

    def _carve(self, room: int) -> Block:
        if self._last is None or self._last.numel() - self._used < room:
            self._last, self._used = self._segment(max(room, SEGMENT)), 0
        lo, self._used = self._used, self._used + room
        self.blocks.append(Block(len(self.blocks), len(self.files) - 1, lo, self._last[lo : lo + room]))
        return self.blocks[-1]

    def _segment(self, size: int) -> Tensor:
        file = os.memfd_create("tilegrad", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.close(file)
            what = f"no memory is left for messages to other ranks of this host: {format_bytes(size)} more"
            raise RunError(what, hint="smaller inputs, or fewer ranks on this host") from error
        self.files.append(file)
        return mapped(file)

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
