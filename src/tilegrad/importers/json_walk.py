"""JSON files walked member by member, so that a file of hundreds of megabytes never stands in memory as objects.

    walk = open_json(path)
    for key in walk.members():          # at an object: its keys, in order, each with the walk standing at its value
        if key == "events":
            for _ in walk.items():      # at an array: its items
                event = walk.value()    # the value here, decoded
        else:
            walk.skip()

Rule J1  Every value is taken exactly once, by `value`, `skip`, `members` or `items`.
Rule J2  Whatever stands in the file, what comes out is a value or a `FormatError` with its place: the path of keys and
         the line and column. Numbers that JSON has not (NaN), numbers of thousands of digits and nesting without end
         are errors too.
Rule J3  An object that is walked has no key twice.

Limits: the text itself is held, so files over `LARGEST` characters are refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ..errors import FormatError

LARGEST = 2**30  # bytes of text, after decompression
_PIECE = 1 << 20
_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\n\r]*")
_SHOWN = 60  # characters of a key in a message

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def open_json(path: str | Path, progress: Progress | None = None) -> JsonWalk:
    """A walk through the JSON in a file, which may be gzipped."""
    path = Path(path)
    return JsonWalk(read_text(path), path.name, progress)


def read_text(path: Path) -> str:
    """The text of a file, which may be gzipped; never more than `LARGEST` bytes of it."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FormatError("it is a folder or a device, not a file", where=str(path))
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            data = _read_bounded(gzip.GzipFile(fileobj=raw) if packed else raw, path.name)
    except (OSError, EOFError, zlib.error, ValueError) as error:  # BadGzipFile is an OSError; ValueError: NUL in a path
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"the file cannot be read: {reason}", where=str(path)) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise FormatError(what, where=path.name, hint="a JSON file is UTF-8 text") from None


def _read_bounded(file: BinaryIO | gzip.GzipFile, name: str) -> bytes:
    buffer = io.BytesIO()
    while piece := file.read(_PIECE):
        buffer.write(piece)
        if buffer.tell() > LARGEST:
            what = f"more than {LARGEST // 2**20} MiB of text"
            raise FormatError(what, where=name, hint="profile fewer steps")
    return buffer.getvalue()


class JsonWalk:
    """A place in a JSON text."""

    def __init__(self, text: str, name: str, progress: Progress | None = None):
        self.text, self.name, self.at = text, name, 0
        self.path: list[str] = []
        self._progress, self._reported = progress, 0
        self._decode = json.JSONDecoder(parse_constant=self._refuse_constant).raw_decode
        self._skip_space()

    def members(self) -> Iterator[str]:
        """The keys of the object that stands here."""
        self._expect("{", "an object")
        seen: set[str] = set()
        if self._accept("}"):
            return
        while True:
            if not self.text.startswith('"', self.at):
                self.fail("no key in double quotes where one must stand")
            key = self._take()
            if key in seen:
                self.fail(f"the key '{key[:_SHOWN]}' stands twice in one object")
            seen.add(key)
            self._expect(":", "a colon")
            self.path.append(key)
            before = self.at
            yield key
            if self.at == before:
                raise AssertionError(f"rule J1: the value of '{key}' was not taken")
            self.path.pop()
            if self._accept("}"):
                return
            self._expect(",", "a comma or the end of an object")

    def items(self) -> Iterator[int]:
        """The places of the items of the array that stands here."""
        self._expect("[", "an array")
        if self._accept("]"):
            return
        place = 0
        while True:
            self.path.append(str(place))
            before = self.at
            yield place
            if self.at == before:
                raise AssertionError(f"rule J1: item {place} was not taken")
            self.path.pop()
            if self._accept("]"):
                return
            self._expect(",", "a comma or the end of an array")
            place += 1

    def value(self) -> Any:
        """The value that stands here, decoded."""
        return self._take()

    def skip(self) -> None:
        """Pass over the value that stands here. It must be JSON all the same."""
        self._take()

    def starts(self, opening: str) -> bool:
        """Does the value here begin so? `{` an object, `[` an array."""
        return self.text.startswith(opening, self.at)

    def end(self) -> None:
        """Nothing may follow."""
        if self.at != len(self.text):
            self.fail("more text after the end")

    def fail(self, what: str, hint: str | None = None) -> NoReturn:
        """Raise FormatError with this place."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        path = ".".join(key[:_SHOWN] for key in self.path)
        raise FormatError(what, where=f"{self.name}:{line}:{column}" + (f" ({path})" if path else ""), hint=hint)

    def _take(self) -> Any:
        try:
            found, self.at = self._decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            self.fail(f"not JSON: {error.msg[0].lower()}{error.msg[1:]}")
        except RecursionError:
            self.fail("nested too deep")
        except ValueError as error:  # a number of more digits than Python reads
            self.fail(f"a number that cannot be read: {error}")
        self._skip_space()
        if self._progress is not None and self.at - self._reported >= _PIECE:
            self._reported = self.at
            self._progress(self.at, len(self.text))
        return found

    def _skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _accept(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += 1
        self._skip_space()
        return True

    def _expect(self, mark: str, what: str) -> None:
        if not self._accept(mark):
            ended = self.at >= len(self.text)
            self.fail("the file ends too early" if ended else f"{what} must stand here", "is the file whole?")

    def _refuse_constant(self, text: str) -> NoReturn:
        raise ValueError(f"{text} is not a number of JSON")
