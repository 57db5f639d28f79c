"""What is an array already: tensors, NumPy's, those of zarr and h5py, anything that has a shape and slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .base import ImageReader, Slices, check_level


class Mapped:
    """A memory-mapped array on its way to another process: by its file, not by its content."""

    def __init__(self, array: np.memmap[Any, Any]):
        self.place = str(array.filename), array.dtype, array.offset, array.shape, _order(array)

    def open(self) -> np.memmap[Any, Any]:
        path, dtype, offset, shape, order = self.place
        return np.memmap(path, dtype, "r", offset, shape, order)


class ArrayReader(ImageReader):
    name = "array"

    def __init__(self, item: Any, level: int):
        check_level(level, 1)
        self.array: Any = item.open() if isinstance(item, Mapped) else item
        self.shape = tuple(map(int, self.array.shape))
        self.dtype = None if isinstance(item, Tensor) else np.dtype(self.array.dtype)
        self.levels = (self.shape,)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Mapped) or is_array(item)

    def read(self, box: Slices) -> np.ndarray[Any, Any] | Tensor:
        return self.array[box].detach() if self.dtype is None else self.array[box]

    def source(self) -> Any:
        whole = isinstance(self.array, np.memmap) and self.array.filename is not None and _is_whole(self.array)
        return Mapped(self.array) if whole else self.array


def is_array(item: Any) -> bool:
    """Does it have a shape, a dtype, and boxes?"""
    if isinstance(item, Path | str | type):
        return False
    return hasattr(item, "shape") and hasattr(item, "dtype") and hasattr(item, "__getitem__")


def _is_whole(array: np.memmap[Any, Any]) -> bool:
    """A view of a map knows its file, but not its own place in it."""
    return not isinstance(array.base, np.ndarray) and (array.flags.c_contiguous or array.flags.f_contiguous)


def _order(array: np.memmap[Any, Any]) -> Any:
    return "C" if array.flags.c_contiguous else "F"
