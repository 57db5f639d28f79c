"""NumPy's own files, mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import take_room
from .base import ImageReader, ImageWriter, Slices, check_level


class NumpyFile(ImageReader):
    name = "npy"

    def __init__(self, item: Any, level: int):
        check_level(level, 1)
        self.path = Path(item)
        found = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it holds several arrays")
        self.array, self.shape, self.dtype = found, found.shape, found.dtype
        self.levels = (self.shape,)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Path) and (head.startswith(b"\x93NUMPY") or item.suffix == ".npy")

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        return self.array[box]

    def source(self) -> Any:
        return self.path


class MappedWriter(ImageWriter):
    """A file whose pixels lie there as they do in memory. Its blocks are taken first: pages without a block end the
    process where the disk is full."""

    array: np.memmap[Any, Any]

    def _take_room(self, path: Path) -> None:
        with open(path, "r+b") as file:
            take_room(file, self.array.offset, self.array.offset + self.array.nbytes)

    def write(self, box: Slices, tile: np.ndarray[Any, Any]) -> None:
        self.array[box] = tile

    def close(self) -> None:
        self.array.flush()


class NumpyWriter(MappedWriter):
    suffixes = (".npy",)

    def __init__(self, path: Path, shape: Sequence[int], dtype: np.dtype[Any]):
        self.array = np.lib.format.open_memmap(path, "w+", dtype, tuple(shape))
        self._take_room(path)
