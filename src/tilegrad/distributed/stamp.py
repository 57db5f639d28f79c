"""What an array is, in a few bytes: the same for all ranks that cut their parts from the same one.

Of what is in memory it is a sample of its elements. Of what is not, nothing is read: it is the file's name, and which
part of it is looked at, how it is turned and coloured, so that a crop or a flip of one rank alone is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..images import ImageSource
from ..images.source import Picture
from .digest import SAMPLES, digest, digest_sample


def stamp_of(x: Any) -> Tensor | str:
    if isinstance(x, Tensor):
        return digest_sample(x)
    if isinstance(x, ImageSource):
        return "; ".join(map(_of_picture, x.parts))
    return _of_map(x) if isinstance(x, np.memmap) and x.filename is not None else _of_elements(x)


def _of_picture(picture: Picture) -> str:
    item, reader = picture.opened.item, picture.opened.reader
    path = item.name if isinstance(item, Path) else ""  # folders may have other names elsewhere
    what = path or _text(stamp_of(getattr(reader, "array", item)))
    colours = [(name, _text(digest(by)) if isinstance(by, Tensor) else by) for name, by in picture.colours]
    return f"{what} {picture.opened.level} {picture.sides} {colours}"


def _of_map(x: np.memmap[Any, Any]) -> str:
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    place = x.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return f"{Path(str(x.filename)).name} {x.offset + place} {x.strides}"


def _of_elements(x: Any) -> str:
    """Of arrays in memory many; of those that may lie anywhere (zarr, h5py) the first, the last and one between."""
    shape, size = tuple(map(int, x.shape)), int(np.prod(x.shape))
    count = min(SAMPLES if isinstance(x, np.ndarray) else 3, size)
    places = np.unravel_index(np.linspace(0, max(size - 1, 0), count).astype(np.int64), shape)
    if isinstance(x, np.ndarray):
        found = x[places]
    else:
        boxes = [tuple(slice(int(k), int(k) + 1) for k in at) for at in zip(*places, strict=True)]
        found = np.concatenate([np.asarray(x[box]).reshape(-1) for box in boxes]) if boxes else np.zeros(0)
    return _text(digest(torch.from_numpy(found.reshape(-1))))


def _text(number: Tensor | str) -> str:
    return number if isinstance(number, str) else str(int(number))
