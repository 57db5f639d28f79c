"""Slides that are made, not scanned: tissue with two small marks, far apart, striped up and down or left and right.

The label says whether both have stripes of the same direction. A patch sees one mark at most, and either direction is
as likely for either label: it knows nothing. Stripes are two pixels wide: a slide that is made smaller has lost them.
Everything follows from the seed, and is made in bands of rows: a slide of any size takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

BAND, RADIUS, STRIPE = 256, 16, 2
CLASSES = ("same", "different")
TEXTURES = ("tissue", "rows", "columns")  # of masks
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Mark:
    row: int
    column: int
    columns: bool  # stripes go up and down


@dataclass(frozen=True)
class Slide:
    size: int
    seed: int

    @cached_property
    def marks(self) -> tuple[Mark, Mark]:
        """One near the left side, one near the right."""
        draw = np.random.default_rng((self.seed, 1))
        rows = draw.integers(RADIUS, self.size - RADIUS, 2)
        inset = draw.integers(RADIUS, self.size // 4, 2)
        left, right = draw.integers(0, 2, 2)
        return Mark(int(rows[0]), int(inset[0]), bool(left)), Mark(int(rows[1]), int(self.size - inset[1]), bool(right))

    @property
    def label(self) -> str:
        return CLASSES[self.marks[0].columns != self.marks[1].columns]

    def bands(self) -> Iterator[tuple[int, Pixels, Pixels]]:
        """From top to bottom: the first row, the pixels [rows, columns, 3], and which texture each has."""
        for top in range(0, self.size, BAND):
            rows = np.arange(top, min(top + BAND, self.size))
            light = self._tissue(rows)
            mask = np.zeros(light.shape[:2], np.uint8)
            for mark in self.marks:
                _draw(mark, rows, light, mask)
            yield top, (light.clip(0, 1) * 255).astype(np.uint8), mask

    def pixels(self) -> Pixels:
        return np.concatenate([band for _, band, _ in self.bands()])

    def mask(self) -> Pixels:
        return np.concatenate([mask for _, _, mask in self.bands()])

    def _tissue(self, rows: Any) -> Any:
        """Pink ground, darker strands, violet nuclei, a little noise."""
        strands = self._noise(rows, 48, 2)[..., None] * np.array([0.10, 0.16, 0.10])
        nuclei = np.clip(self._noise(rows, 9, 3) - 0.45, 0, 1)[..., None] * np.array([0.5, 0.6, 0.2])
        grain = np.random.default_rng((self.seed, 4, int(rows[0]))).normal(0, 0.02, (len(rows), self.size, 1))
        found: Any = np.array([0.82, 0.6, 0.74]) + strands - nuclei + grain
        return found

    def _noise(self, rows: Any, pitch: int, which: int) -> Any:
        """Smooth, from -1 to 1: a coarse grid of numbers, blended."""
        cells = self.size // pitch + 2
        grid = np.random.default_rng((self.seed, which)).uniform(-1, 1, (cells, cells))
        up, across = rows / pitch, np.arange(self.size) / pitch
        lines = _blend(grid, up)
        return _blend(lines.T, across).T


def _blend(grid: Any, at: Any) -> Any:
    low = at.astype(int)
    share = (at - low)[:, None]
    return grid[low] * (1 - share) + grid[low + 1] * share


def _draw(mark: Mark, rows: Any, light: Any, mask: Pixels) -> None:
    reach = np.arange(-RADIUS, RADIUS)
    inside = (rows >= mark.row - RADIUS) & (rows < mark.row + RADIUS)
    down, across = (rows[inside] - mark.row)[:, None], reach[None, :]
    disc = down**2 + across**2 < RADIUS**2
    stripes = ((across if mark.columns else down) // STRIPE % 2 * 2 - 1) * disc
    columns = slice(mark.column - RADIUS, mark.column + RADIUS)
    where = np.flatnonzero(inside)
    light[where, columns] += 0.4 * np.broadcast_to(stripes, disc.shape)[..., None]
    mask[where, columns] = np.where(disc, 1 + mark.columns, mask[where, columns])


def write_tiff(slide: Slide, path: Path) -> None:
    """In tiles of 256, as scanners write them."""
    import tifffile

    def tiles() -> Iterator[Pixels]:
        for _, band, _ in slide.bands():
            for left in range(0, slide.size, BAND):
                yield np.ascontiguousarray(band[:, left : left + BAND])

    shape = (slide.size, slide.size, 3)
    tifffile.imwrite(
        path, tiles(), shape=shape, dtype=np.uint8, tile=(BAND, BAND), photometric="rgb", compression="zlib"
    )


def write_zarr(slide: Slide, path: Path, *, mask: bool = False) -> None:
    """Channels first, or the mask of its textures."""
    import zarr

    shape = (slide.size, slide.size) if mask else (3, slide.size, slide.size)
    chunks = (BAND, BAND) if mask else (3, BAND, BAND)
    array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype=np.uint8)
    for top, band, textures in slide.bands():
        array[..., top : top + len(band), :] = textures if mask else np.moveaxis(band, -1, 0)


def make_set(folder: str | Path, size: int, count: int) -> list[tuple[str, int]]:
    """Slides on disk, by turns as TIFF and zarr, and their labels; those that are there stay."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(count):
        path, write = [(Path(folder) / f"{seed}.tif", write_tiff), (Path(folder) / f"{seed}.zarr", write_zarr)][
            seed % 2
        ]
        if not path.exists():
            write(Slide(size, seed), path)
        found.append((str(path), CLASSES.index(Slide(size, seed).label)))
    return found
