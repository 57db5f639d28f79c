"""Files that are written whole or not at all, to a draft beside the target, which then takes its place; room on a disk
that is taken before it is used; and the folder for what is kept from one run of a program to the next."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, NoReturn

from .errors import InputError, TilegradError, one_of

ZEROS = bytes(1 << 20)


def cache_folder() -> Path | None:
    """Where measurements and plans are kept: `$XDG_CACHE_HOME/tilegrad`; None where there is no place for them, and
    with `TILEGRAD_CACHE=off`."""
    if os.environ.get("TILEGRAD_CACHE", "").strip().lower() == "off":
        return None
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # the XDG specification: a relative path is to be ignored
        try:
            folder = Path.home() / ".cache"
        except RuntimeError:
            return None
    return folder / "tilegrad"


def near_file(path: str | Path) -> str | None:
    """What to try where there is no such file: one beside it whose name is like it."""
    target = Path(path)
    try:
        names = [each.name for each in target.parent.iterdir()] if not target.exists() else []
    except OSError:
        return None if target.exists() else f"there is no folder '{target.parent}'"
    hint = one_of(target.name, names)
    return hint if hint.startswith("did") else None


@contextlib.contextmanager
def whole_file(path: str | Path, what: str = "the file", hint: str | None = None) -> Iterator[BinaryIO]:
    """A file to write bytes to. `what` is what errors call it. On an error the old file stays as it was."""
    draft = None
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):  # never put a file in a device's place
            _refuse("it is a folder or a device, not a file", path, what, hint)
        if not target.parent.is_dir():
            _refuse(f"there is no folder {target.parent}", path, what, "make the folder first")
        draft = target.with_name(f".tilegrad-{secrets.token_hex(8)}.tmp")
        with open(draft, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # so that a crash never leaves the name with half the bytes
        os.replace(draft, target)
    except TilegradError:  # ours, or of whoever makes the bytes
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        _refuse(getattr(error, "strerror", None) or str(error), path, what, hint)
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink()  # gone already where all went well


def _refuse(why: str, path: str | Path, what: str, hint: str | None) -> NoReturn:
    raise InputError(f"{what} cannot be written: {why}", where=repr(str(path)), hint=hint)


def save_text(text: str, path: str | Path, what: str = "the file", hint: str | None = None) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with whole_file(path, what, hint) as file:
        file.write(text.encode())


def take_room(file: IO[bytes], start: int, end: int) -> int:
    """Blocks on the disk for a part of a file; the file's new size. On an error the file is as it was."""
    try:
        if not _allocate_blocks(file, start, end):
            _write_zeros(file, start, end)
    except OSError:
        file.truncate(start)
        raise
    return end


def _allocate_blocks(file: IO[bytes], start: int, end: int) -> bool:
    """Without writing them. False where the system or its file system cannot."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return False
    try:
        os.posix_fallocate(file.fileno(), start, end - start)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def _write_zeros(file: IO[bytes], start: int, end: int) -> None:
    file.seek(start)
    for at in range(start, end, len(ZEROS)):
        piece = memoryview(ZEROS)[: end - at]
        while piece:
            piece = piece[file.write(piece) :]  # an almost full disk takes a part of it
