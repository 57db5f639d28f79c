"""Zarr, version 2 and 3: an array, or an OME-Zarr group, whose `multiscales` name the levels and the axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from .base import ImageReader, ImageWriter, Slices, check_level, check_piece

CHUNK = 256  # rows and columns of a chunk that is written
MARKS = ("zarr.json", ".zarray", ".zgroup", ".zattrs")


class ZarrReader(ImageReader):
    name, library = "zarr", "zarr"

    def __init__(self, item: Any, level: int):
        import zarr

        self.path = Path(item)
        found = zarr.open(self.path, mode="r")
        if isinstance(found, zarr.Group):
            arrays, self.axes = _levels(found, self.path)
        else:
            arrays = [found]
        check_level(level, len(arrays))
        self.array: Any = arrays[level]
        self.shape, self.dtype = tuple(self.array.shape), np.dtype(self.array.dtype)
        self.levels = tuple(tuple(array.shape) for array in arrays)
        check_piece(self.array.chunks, self.dtype)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Path) and item.is_dir() and any((item / mark).is_file() for mark in MARKS)

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        return np.asarray(self.array[box])

    def source(self) -> Any:
        return self.path


def _levels(group: Any, path: Path) -> tuple[list[Any], str | None]:
    attributes = dict(group.attrs)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        names = ", ".join(sorted(name for name, _ in group.arrays())) or "none"
        raise FormatError(f"a group without multiscales; its arrays: {names}", hint=f'"{path}/NAME"')
    axes = scales[0].get("axes")
    letters = [str(axis["name"] if isinstance(axis, dict) else axis) for axis in axes] if axes else []
    named = "".join(letters) if letters and all(len(letter) == 1 for letter in letters) else None
    return [group[each["path"]] for each in scales[0]["datasets"]], named


class ZarrWriter(ImageWriter):
    """An array of version 3, its dimensions named."""

    suffixes, library = (".zarr",), "zarr"

    def __init__(self, path: Path, shape: Sequence[int], dtype: np.dtype[Any]):
        import zarr

        chunks = tuple(1 if d == 0 else min(n, CHUNK) for d, n in enumerate(shape))
        names = {4: "ncyx", 5: "nczyx"}.get(len(shape))
        self.array = zarr.create_array(path, shape=tuple(shape), chunks=chunks, dtype=dtype, dimension_names=names)

    def write(self, box: Slices, tile: np.ndarray[Any, Any]) -> None:
        self.array[box] = tile
