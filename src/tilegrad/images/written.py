"""New images, written box by box to a draft beside the target, which takes its place when all is there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError, RunError, TilegradError
from ..region import Box
from .base import ImageWriter
from .opened import formats, installed


def writer_of(path: Path) -> type[ImageWriter]:
    formats()  # all of ours are imported
    known = {suffix: kind for kind in _kinds(ImageWriter) for suffix in kind.suffixes}
    if path.suffix not in known:
        raise InputError(f"'{path}' cannot be written", hint=f"a name that ends in {', '.join(sorted(known))}")
    return known[path.suffix]


def _kinds(base: type[ImageWriter]) -> Iterator[type[ImageWriter]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


class Written:
    """A file in the making."""

    def __init__(self, path: Path, draft: Path):
        self.path, self.draft = path, draft
        self.writer: ImageWriter | None = None

    def begin(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        kind = writer_of(self.path)
        with installed(kind.library, kind.library):
            self.writer = kind(self.draft, shape, torch.empty(0, dtype=dtype).numpy().dtype)

    def write(self, box: Box, tile: Tensor) -> None:
        assert self.writer is not None
        self.writer.write(box.slices, tile.detach().cpu().numpy())

    def end(self) -> None:
        """The draft takes its place."""
        if self.writer is None:
            return
        self.writer.close()
        self.writer = None
        old = None
        if self.path.is_dir():  # a folder cannot be replaced in one go
            old = self.draft.with_name(f"{self.draft.name}.old")
            os.rename(self.path, old)
        os.replace(self.draft, self.path)
        if old is not None:
            shutil.rmtree(old)


@contextlib.contextmanager
def written(paths: Sequence[str | Path], overwrite: bool = False) -> Iterator[list[Written]]:
    """Images to be written. None takes its place before all are complete."""
    targets = [Path(os.path.abspath(path)) for path in paths]
    for path in targets:
        writer_of(path)
        if path.exists() and not overwrite:
            raise InputError(f"'{path}' is there already", hint="another name, or overwrite=True")
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}", hint="make the folder first")
    found = [Written(p, p.with_name(f".tilegrad-{secrets.token_hex(8)}{p.suffix}")) for p in targets]
    try:
        yield found
        for each in found:
            each.end()
    except TilegradError:
        raise
    except OSError as error:
        names = ", ".join(map(str, targets))
        raise RunError(f"the result cannot be written: {error.strerror or error}", where=names) from error
    finally:
        for each in found:
            each.writer = None
            if each.draft.is_dir():
                shutil.rmtree(each.draft, ignore_errors=True)
            else:
                each.draft.unlink(missing_ok=True)
