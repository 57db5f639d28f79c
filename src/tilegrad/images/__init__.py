"""Images of which boxes are read: files of many formats, one file here for each, and anything that slices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from .arrays import is_array as is_array
from .axes import sides_of
from .base import ImageReader as ImageReader
from .opened import Opened
from .opened import formats as formats
from .source import ImageSource as ImageSource
from .source import Picture
from .source import batch as batch
from .source import of_array as of_array

Colour = float | Sequence[float] | None


def open(
    item: str | Path | Any,
    *,
    level: int = 0,
    axes: str | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float | None = None,
    mean: Colour = None,
    std: Colour = None,
) -> ImageSource:
    """An image of which boxes are read when they are needed: a path (zarr, OME-Zarr, TIFF, slides, .npy, NIfTI), or
    anything that has a shape and slices (tensors, memory maps, arrays of zarr and h5py).

    level: of a pyramid, 0 is the largest. axes: a letter for each axis that is stored ("hwc", "czyx"), where the file
    does not say. dtype: of what is read. scale, mean, std: `(pixels * scale - mean) / std`, the last two a number or
    one for each channel. Bytes in a floating dtype need a scale: 1/255, or 1 for 0 to 255 as they are.
    """
    for name, colour in (("scale", scale), ("mean", mean), ("std", std)):
        numbers = np.asarray(1.0 if colour is None else colour, dtype=float)
        if not np.isfinite(numbers).all() or (name != "mean" and not numbers.all()):
            raise InputError(f"{name}={colour} makes nothing of an image", hint=f"{name}=0.5")
    opened = Opened(item, level)
    found = ImageSource((Picture(opened, sides_of(opened, axes)),), dtype)
    if scale is not None:
        found = found * scale
    if scale is None and not (mean is None and std is None) and not found.stored.is_floating_point:
        what = f"mean and std, and no scale for {found.stored}".replace("torch.", "")
        raise InputError(what, where=found.name, hint="scale=1/255, or scale=1 where they are meant for 0 to 255")
    if mean is not None:
        found = found - found.per_channel(mean)
    return found if std is None else found / found.per_channel(std)
