"""Whole slides of the scanners' vendors, by OpenSlide.

Levels are the slide's own. Where it holds nothing, it has its background's colour. Where a level is not a whole number
of times smaller than the first, OpenSlide places boxes to the nearest pixel of the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .base import ImageReader, Slices, check_level

SUFFIXES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide")


class SlideReader(ImageReader):
    name, library, axes = "slide", "openslide-python openslide-bin", "yxc"

    def __init__(self, item: Any, level: int):
        import openslide

        self.path, self.level = Path(item), level
        self.slide = openslide.OpenSlide(self.path)
        check_level(level, self.slide.level_count)
        self.levels = tuple((height, width, 3) for width, height in self.slide.level_dimensions)
        self.shape, self.dtype = self.levels[level], np.dtype(np.uint8)
        colour = self.slide.properties.get(openslide.PROPERTY_NAME_BACKGROUND_COLOR, "ffffff")
        self.background = np.frombuffer(bytes.fromhex(colour), np.uint8)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Path) and item.suffix.lower() in SUFFIXES

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        rows, columns, channels = box
        scale = self.slide.level_downsamples[self.level]
        corner = round(columns.start * scale), round(rows.start * scale)
        size = columns.stop - columns.start, rows.stop - rows.start
        found = np.asarray(self.slide.read_region(corner, self.level, size))
        seen = found[..., 3:] > 0
        return np.where(seen, found[..., :3], self.background)[..., channels]

    def source(self) -> Any:
        return self.path
