"""Files as bytes, unpacked where they are gzipped; the beginning of one, which tells its format."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import FormatError
from ..files import near_file

HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"


@contextmanager
def open_content(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO | gzip.GzipFile]]:
    """A file, and what is in it. Where it cannot be read, then or later, that is a `FormatError`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would make us wait
            raise FormatError("it is a folder or a device, not a file", where=str(path))
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            yield raw, gzip.GzipFile(fileobj=raw) if packed else raw
    except FormatError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # BadGzipFile is an OSError; ValueError: NUL in a path
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"the file cannot be read: {reason}", where=str(path), hint=near_file(path)) from None


def read_head(path: Path) -> bytes:
    with open_content(path) as (_, content):
        return content.read(HEAD_BYTES)
