"""NIfTI volumes, by nibabel: x, y, z, and channels where there is a fourth axis. A `.nii.gz` is unpacked from its
beginning for every box: unpack it once where boxes are many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from .base import ImageReader, Slices, check_level


class NiftiReader(ImageReader):
    name, library = "nifti", "nibabel"

    def __init__(self, item: Any, level: int):
        import nibabel

        check_level(level, 1)
        self.path = Path(item)
        file: Any = nibabel.load(self.path)
        self.data = file.dataobj
        self.shape = tuple(map(int, self.data.shape))
        if len(self.shape) not in (2, 3, 4) or 0 in self.shape:
            raise FormatError(f"{len(self.shape)} axes, {self.shape}")
        self.axes = "xyzc"[: len(self.shape)]
        self.dtype = self.read(tuple(slice(0, 1) for _ in self.shape)).dtype  # its header may hold a slope
        self.levels = (self.shape,)

    @classmethod
    def takes(cls, item: Any, head: bytes) -> bool:
        return isinstance(item, Path) and item.name.lower().endswith((".nii", ".nii.gz"))

    def read(self, box: Slices) -> np.ndarray[Any, Any]:
        return np.asarray(self.data[box])

    def source(self) -> Any:
        return self.path
