"""The beginning of a file, which tells its format; of a gzipped file that of its content."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from pathlib import Path

from ..errors import FormatError

HEAD_BYTES = 4096


def read_head(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would make us wait
            raise FormatError("it is a folder or a device, not a file", where=str(path))
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if head.startswith(b"\x1f\x8b"):
                file.seek(0)
                head = gzip.GzipFile(fileobj=file).read(HEAD_BYTES)
    except FormatError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:  # ValueError: a path that cannot be one
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"the file cannot be read: {reason}", where=str(path)) from None
    return head
