"""Load a graph from a file, whatever its format: the content tells, not the name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import FormatError
from ..ir import Graph, check_graph, parse_graph
from .chainer import load_chainer, open_file, sniff_chainer

_HEAD_BYTES = 4096
_LARGEST_TEXT = 1 << 28  # bytes of our own text form, which is read at once


class Format(NamedTuple):
    name: str
    sniff: Callable[[bytes], bool]  # does a file that begins like this have the format?
    read: Callable[[Path], Graph]


def load(path: str | Path) -> Graph:
    """The graph in this file. Raises `FormatError` where it cannot be read."""
    path = Path(path)
    with open_file(path) as file:
        try:
            head = file.read(_HEAD_BYTES)
        except OSError as error:
            raise FormatError(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    for format in FORMATS:
        if format.sniff(head):
            return format.read(path)
    names = ", ".join(format.name for format in FORMATS)
    what = "the file is empty" if not head else "the file has no format that is known here"
    raise FormatError(what, where=path.name, hint=f"one of: {names}")


def _sniff_text(head: bytes) -> bool:
    return head.startswith((b"graph ", b"value "))


def _read_text(path: Path) -> Graph:
    with open_file(path) as file:
        raw = file.read(_LARGEST_TEXT + 1)
    if len(raw) > _LARGEST_TEXT:
        raise FormatError(f"a graph of more than {_LARGEST_TEXT} bytes", where=path.name)
    try:
        graph = parse_graph(raw.decode())
        check_graph(graph)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FormatError(f"bytes that are not UTF-8: {error.reason}", where=f"{path.name}:{line}") from None
    except FormatError as error:
        number = (error.where or "").removeprefix("line ")
        where = f"{path.name}:{number}" if number.isdigit() else f"{path.name}: {error.where}"
        raise FormatError(error.what, where=where, hint=error.hint) from None
    return graph


FORMATS = (
    Format("tilegrad text", _sniff_text, _read_text),
    Format("chainer dump", sniff_chainer, load_chainer),
)
