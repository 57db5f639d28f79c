"""What a format of images is: a class that opens a file, or an array, and reads boxes of it.

Rule P1  A box is read when it is asked for, and nothing beyond the pieces of the file that hold it.
Rule P2  Several threads may read at once.
Rule P3  What a header promises is believed only as far as the file could hold it: no piece is larger than `MOST_PIECE`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import FormatError, InputError
from ..units import format_bytes

MOST_PIECE = 1 << 30  # bytes of a chunk, tile or strip, which is decoded whole
SMALL_PIECE = 16 << 20  # of which several are decoded at once
READERS = 8
Slices = tuple[slice, ...]


class ImageReader:
    """An open image at one level. `axes`: a letter for each dimension of what is stored, if known."""

    name: ClassVar[str]
    library: ClassVar[str] = ""  # what must be installed for it

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None  # None: torch's alone, see `read`
    axes: str | None = None
    levels: Sequence[tuple[int, ...]] = ()  # the shape of each

    def __init__(self, item: Any, level: int):
        raise NotImplementedError

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        """Is it of this format? `head`: the first bytes, where `item` is the path of a file."""
        raise NotImplementedError

    def read(self, box: Slices) -> np.ndarray[Any, Any] | Tensor:
        """A box of what is stored; it may be a view."""
        raise NotImplementedError

    def source(self) -> Any:
        """What to open again in another process."""
        raise NotImplementedError


class ImageWriter:
    """A new file of this shape, which is written box by box."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    library: ClassVar[str] = ""

    def __init__(self, path: Path, shape: Sequence[int], dtype: np.dtype[Any]):
        raise NotImplementedError

    def write(self, box: Slices, tile: np.ndarray[Any, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """All is written."""


def check_level(level: int, count: int) -> None:
    if not 0 <= level < count:
        raise InputError(f"there is no level {level}", hint=f"level=0 to {count - 1}" if count > 1 else "level=0")


def check_piece(shape: Sequence[int], dtype: np.dtype[Any], file_bytes: int | None = None, ratio: int = 1) -> None:
    """Rule P3. `ratio`: the most that a byte of the file can stand for."""
    size = prod(int(n) for n in shape) * dtype.itemsize
    if size > MOST_PIECE or (file_bytes is not None and size > ratio * file_bytes):
        raise FormatError(f"a piece of {'x'.join(map(str, shape))} {dtype} is {format_bytes(size)}")


def for_each(work: Callable[[Any], None], pieces: Iterable[Any], size: int) -> None:
    """Decode pieces of `size` bytes, several at once where they are small: decoders let go of Python's lock."""
    pieces = list(pieces)
    if len(pieces) < 2 or size > SMALL_PIECE:
        for piece in pieces:
            work(piece)
    else:
        list(_readers().map(work, pieces))


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(READERS, os.cpu_count() or 1), "tilegrad-read")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_readers.cache_clear)  # there are no threads in a child
