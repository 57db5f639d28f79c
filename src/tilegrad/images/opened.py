"""Opening: which format it is, what its dimensions are, and one clear error where it cannot be read."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError, InputError, TilegradError
from ..extras import install_hint
from ..files import near_file
from .base import ImageReader, Slices

HEAD = 64  # bytes of a file that tell its format


@cache
def formats() -> dict[str, type[ImageReader]]:
    """All there are, those in this folder and those that a user has defined."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{found.name}")
    return {kind.name: kind for kind in sorted(ImageReader.__subclasses__(), key=lambda kind: kind.name)}


class Opened:
    """A reader, and what it was opened from: in another process it is opened again."""

    def __init__(self, item: Any, level: int = 0):
        self.item, self.level = Path(item) if isinstance(item, str) else item, level
        self.name = str(self.item) if isinstance(self.item, Path) else type(item).__name__
        with _explained(self.name):
            kind = _format_of(self.item)
            with installed(kind.name, kind.library):
                self.reader = kind(self.item, level)
            self.dtype = _torch_type(self.reader)

    @property
    def is_tensor(self) -> bool:
        """Then a box is a view."""
        return self.reader.dtype is None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.reader.shape

    @property
    def levels(self) -> Any:
        return self.reader.levels

    def read(self, box: Slices) -> np.ndarray[Any, Any] | Tensor:
        with _explained(self.name):
            return self.reader.read(box)

    def __reduce__(self) -> tuple[Any, ...]:
        return Opened, (self.reader.source(), self.level)


def _format_of(item: Any) -> type[ImageReader]:
    head = b""
    if isinstance(item, Path):
        if not item.exists():
            raise FormatError("there is no such file", hint=near_file(item))
        if item.is_file():
            with open(item, "rb") as file:
                head = file.read(HEAD)
            if not head:
                raise FormatError("the file is empty")
    found = next((kind for kind in formats().values() if kind.takes(item, head)), None)
    if found is None:
        known = ", ".join(name for name in formats() if name != "array")
        raise FormatError("it is of no format that is known", hint=f"one of {known}, or an array")
    return found


@contextmanager
def installed(name: str, library: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = install_hint(error, f"pip install {library}")
        raise InputError(f"{name} needs a library: {error}", hint=hint) from error


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever a library says of a file, the file is named."""
    try:
        yield
    except TilegradError as error:
        raise type(error)(error.what, where=error.where or name, hint=error.hint) from error.__cause__
    except Exception as error:  # of libraries, each with its own kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FormatError(f"the image cannot be read: {reason}", where=name) from error


def _torch_type(reader: ImageReader) -> torch.dtype:
    if reader.dtype is None:
        return reader.read(tuple(slice(0, 0) for _ in reader.shape)).dtype
    name = "bool" if reader.dtype.kind == "b" else reader.dtype.newbyteorder("=").name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise FormatError(f"pixels of {reader.dtype} are no numbers that torch has")
    return found
