"""PNG, JPEG and BMP, by Pillow: formats without boxes, so the file is decoded whole when it is first read. A palette
is left aside: its indices are what a mask means."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .base import ImageReader, Slices, check_level

MARKS = (b"\x89PNG", b"\xff\xd8\xff", b"BM")
TYPES = {"1": np.dtype(bool), "I;16": np.dtype(np.uint16), "I": np.dtype(np.int32), "F": np.dtype(np.float32)}


class PictureFile(ImageReader):
    name, library = "png, jpeg, bmp", "pillow"

    def __init__(self, item: Any, level: int):
        from PIL import Image

        check_level(level, 1)
        self.path = Path(item)
        with Image.open(self.path) as file:
            channels = len(file.getbands())
            self.shape = (file.height, file.width, *([channels] if channels > 1 else []))
            self.axes = "hwc"[: len(self.shape)]
            self.dtype = TYPES.get(file.mode, np.dtype(np.uint8))
        self.levels = (self.shape,)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Path) and head.startswith(MARKS)

    @cached_property
    def _pixels(self) -> np.ndarray[Any, Any]:
        from PIL import Image

        with Image.open(self.path) as file:
            return np.asarray(file)

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        return self._pixels[box]

    def source(self) -> Any:
        return self.path
