"""Whole slides of the scanners' vendors, by OpenSlide.

Levels are the slide's own. Where it holds nothing, it has its background's colour.

OpenSlide wants the corner of a box in pixels of the first level. Where that is no whole number of times larger, the
corner falls between pixels, and what is read depends a little on where the box begins. So blocks are read that begin at
fixed places, several at once: a pixel is the same in whatever box it is.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .base import ImageReader, Slices, check_level, for_each

BLOCK = 512
SUFFIXES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide")


class SlideReader(ImageReader):
    name, library, axes = "slide", "openslide-python openslide-bin", "yxc"

    def __init__(self, item: Any, level: int):
        import openslide

        self.path, self.level, self._open = Path(item), level, openslide.OpenSlide
        self.slide, self._process = self._open(self.path), os.getpid()
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
        top, left = (part.start // BLOCK * BLOCK for part in (rows, columns))
        found = np.empty((rows.stop - top, columns.stop - left, 3), np.uint8)

        def read_block(at: tuple[int, int]) -> None:
            y, x = at
            height, width = (min(BLOCK, n - at) for n, at in zip(self.shape, at, strict=False))
            part = self._region(slice(y, y + height), slice(x, x + width))
            place = found[y - top : y - top + height, x - left : x - left + width]
            place[...] = part[: place.shape[0], : place.shape[1]]

        for_each(read_block, product(range(top, rows.stop, BLOCK), range(left, columns.stop, BLOCK)), 3 * BLOCK**2)
        return found[rows.start - top :, columns.start - left :, channels]

    def _region(self, rows: slice, columns: slice) -> np.ndarray[Any, Any]:
        if self._process != os.getpid():  # forked: two processes would share a place in one open file
            self.slide, self._process = self._open(self.path), os.getpid()
        scale = self.slide.level_downsamples[self.level]
        corner = round(columns.start * scale), round(rows.start * scale)
        size = columns.stop - columns.start, rows.stop - rows.start
        found = np.asarray(self.slide.read_region(corner, self.level, size))
        return np.where(found[..., 3:] > 0, found[..., :3], self.background)

    def source(self) -> Any:
        return self.path
