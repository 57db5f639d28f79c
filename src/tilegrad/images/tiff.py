"""TIFF, by tifffile: tiled or in strips, BigTIFF, OME-TIFF, of either byte order, planar or interleaved.

What lies there as it is gets mapped into memory; of what is compressed the tiles or strips that hold a box are decoded.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, InputError
from .base import ImageReader, Slices, check_level, check_piece, for_each
from .numpy_file import MappedWriter
from .slide import SUFFIXES as SLIDES

MARKS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MOST_RATIO = 1100  # of deflate and its kin
MOST_GROWTH, HEADERS = 2, 1 << 16  # what a codec may add to what it cannot make smaller


class _Complaints(logging.Filter):
    """What tifffile says of a file that is damaged or cut short, of which it then gives what is left."""

    def __enter__(self) -> _Complaints:
        self.found, self.thread = list[str](), threading.get_ident()
        logging.getLogger("tifffile").addFilter(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("tifffile").removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        mine = record.thread == self.thread
        if mine and (record.levelno >= logging.ERROR or "TiffFileError" in record.getMessage()):
            self.found.append(record.getMessage())
        return not mine

    def check(self) -> None:
        if self.found:
            raise FormatError(f"the file is damaged, or not all there: {self.found[0]}")


class TiffReader(ImageReader):
    name, library = "tiff", "tifffile"

    def __init__(self, item: Any, level: int):
        import tifffile

        self.path = Path(item)
        with _Complaints() as complaints, tifffile.TiffFile(self.path) as file:
            series = file.series[0]
            complaints.check()
            check_level(level, len(series.levels))
            here = series.levels[level]
            self.levels = tuple(tuple(map(int, each.shape)) for each in series.levels)
            self.shape, self.axes = self.levels[level], here.axes.lower()
            self.pages: list[Any] = list(here.pages)
            if None in self.pages:
                raise FormatError("a page is missing")
            ends = [at + n for each in series.levels for p in each.pages if p is not None for at, n in _spans(p)]
            self.key: Any = self.pages[0].keyframe  # what is the same for all of them
            self.tables, self.decode = self.key.jpegtables, self.key.decode
            self.dtype = np.dtype(self.key.dtype).newbyteorder(file.byteorder)
        with open(self.path, "rb") as raw:
            self._bytes = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
        self._check(max(ends, default=0))

    def _check(self, end: int) -> None:
        key, size = self.key, len(self._bytes)
        if end > size:
            raise FormatError(f"it ends at byte {size}, and its pixels at {end}")
        if len(self.pages) * prod(key.shape) != prod(self.shape):
            raise FormatError(f"{len(self.pages)} pages of {key.shape} are not {self.shape}")
        for page in self.pages:
            held = sum(count for _, count in _spans(page))
            if not held or (self.plain and prod(key.shape) * key.dtype.itemsize > held):
                raise FormatError("its pixels are fewer than its header says")
        if not self.plain:
            check_piece(key.chunks, key.dtype, size, MOST_RATIO)

    @cached_property
    def plain(self) -> bool:
        """Does it lie in the file as it does in memory?"""
        key = self.key
        return bool(
            key.compression == key.predictor == key.fillorder == 1
            and key.bitspersample == 8 * key.dtype.itemsize
            and all(page.is_contiguous for page in self.pages)
        )

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        if not isinstance(item, Path) or item.suffix.lower() in SLIDES:
            return False
        return head.startswith(MARKS) or item.suffix.lower() in (".tif", ".tiff", ".btf", ".tf8")

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        """Pages are the first axes of the series, the axes of a page the last."""
        outer = self.shape[: len(self.shape) - len(self.key.shape)]
        inner = box[len(outer) :]
        places = [range(part.start, part.stop) for part in box[: len(outer)]]
        found = np.empty([part.stop - part.start for part in box], self.dtype)
        for at, place in zip(np.ndindex(*map(len, places)), product(*places), strict=True):
            index = int(np.ravel_multi_index(place, outer)) if outer else 0
            found[at] = self._page(self.pages[index], inner)
        return found

    def _page(self, page: Any, box: Slices) -> np.ndarray[Any, Any]:
        """A box of one page, by way of tifffile's own five axes: planes, depth, rows, columns, samples."""
        if self.plain:
            return np.ndarray(self.key.shape, self.dtype, self._bytes, page.dataoffsets[0])[box]
        sides = {"S": 0 if self.key.planarconfig == 2 else 4, "Z": 1, "Y": 2, "X": 3}
        wanted = [slice(0, 1)] * 5
        for letter, part in zip(self.key.axes, box, strict=True):
            wanted[sides[letter]] = part
        found = np.full([part.stop - part.start for part in wanted], self.key.nodata, self.dtype)
        size = prod(self.key.chunks) * self.key.dtype.itemsize
        for_each(lambda index: self._decode(page, index, wanted, found), self._pieces(wanted), size)
        return found.reshape([part.stop - part.start for part in box])

    def _pieces(self, wanted: Sequence[slice]) -> Iterator[int]:
        """The tiles or strips that hold a part of a box, by number: planes, then depth, rows and columns of them."""
        key = self.key
        extent: tuple[int, ...] = (1, 1, key.rowsperstrip, key.imagewidth)
        if key.is_tiled:
            extent = (1, key.tiledepth, key.tilelength, key.tilewidth)
        grid = [-(-n // size) for n, size in zip(key.shaped, extent, strict=False)]
        spans = [range(w.start // s, -(-w.stop // s)) for w, s in zip(wanted, extent, strict=False)]
        for at in product(*spans):
            yield int(np.ravel_multi_index(at, grid))

    def _decode(self, page: Any, index: int, wanted: Sequence[slice], found: np.ndarray[Any, Any]) -> None:
        start, count = page.dataoffsets[index], page.databytecounts[index]
        if not count:
            return  # a tile that holds nothing
        if count > MOST_GROWTH * prod(self.key.chunks) * self.key.dtype.itemsize + HEADERS:
            raise FormatError(f"a piece of {count} bytes is more than its pixels could be")
        piece, place, _ = self.decode(self._bytes[start : start + count], index, jpegtables=self.tables)
        if piece is None:
            return
        piece = piece[None]
        spans = [
            (max(w.start, lo), min(w.stop, lo + n), lo, w.start)
            for w, lo, n in zip(wanted, place, piece.shape, strict=True)
        ]
        inside = tuple(slice(lo - corner, hi - corner) for lo, hi, corner, _ in spans)
        target = tuple(slice(lo - begin, hi - begin) for lo, hi, _, begin in spans)
        found[target] = piece[inside]

    def source(self) -> Any:
        return self.path


def _spans(page: Any) -> Iterator[tuple[int, int]]:
    """Where a page's tiles or strips begin, and how long they are."""
    return zip(page.dataoffsets, page.databytecounts, strict=True)


class TiffWriter(MappedWriter):
    """A BigTIFF without compression, a plane for each channel."""

    suffixes, library = (".tif", ".tiff", ".btf"), "tifffile"

    def __init__(self, path: Path, shape: Sequence[int], dtype: np.dtype[Any]):
        import tifffile

        if shape[0] != 1 or len(shape) not in (4, 5):
            raise InputError(f"a TIFF holds one image, not {tuple(shape)}", hint='"out.zarr"')
        axes = "CZYX"[6 - len(shape) :] if shape[1] == 1 else "CYX" if len(shape) == 4 else "CZYX"
        kept = tuple(shape[1:]) if shape[1] > 1 else tuple(shape[2:])
        about: dict[str, Any] = {"photometric": "minisblack", "metadata": {"axes": axes}, "bigtiff": True}
        self.array = tifffile.memmap(path, shape=kept, dtype=dtype, **about)
        self._take_room(path)

    def write(self, box: Slices, tile: np.ndarray[Any, Any]) -> None:
        self.array[box[len(box) - self.array.ndim :]] = tile.reshape(tile.shape[tile.ndim - self.array.ndim :])
