"""NumPy's own files, mapped into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .base import ImageReader, Slices, check_level


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
