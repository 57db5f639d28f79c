"""Files, opened to be read, and their beginning, which tells the format; of a gzipped file that of its content."""

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

HEAD_BYTES = 4096
GZIP = b"\x1f\x8b"


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file. Whatever keeps them from being read is a `FormatError`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would make us wait
            raise FormatError("it is a folder or a device, not a file", where=str(path))
        with path.open("rb") as file:
            yield file
    except FormatError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # BadGzipFile is an OSError; ValueError: NUL in a path
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"the file cannot be read: {reason}", where=str(path)) from None


def read_head(path: Path) -> bytes:
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
        if not head.startswith(GZIP):
            return head
        file.seek(0)
        return gzip.GzipFile(fileobj=file).read(HEAD_BYTES)
