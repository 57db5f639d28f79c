"""JSON files walked member by member, so that a file of gigabytes never stands in memory, as objects or as text.

    walk = open_json(path)
    for key in walk.members():          # at an object: its keys, in order, each with the walk standing at its value
        if key == "events":
            for event in walk.values(): # at an array: its items, decoded
                ...
        elif key == "tables":
            for _ in walk.items():      # at an array: its items, each with the walk standing at it
                table = walk.value()    # the value here, decoded
        else:
            walk.skip()

Rule J1  Every value is taken exactly once, by `value`, `skip`, `members`, `items` or `values`.
Rule J2  Whatever stands in the file, what comes out is a value or a `FormatError` with its place: the path of keys and
         the line and column. Numbers that JSON has not (NaN), numbers of thousands of digits and nesting without end
         are errors too. A number like 1e999 is JSON: it comes out as infinity, and the caller must ask.
Rule J3  An object that is walked has no key twice.

Limits: the file has at most `LARGEST_FILE` bytes of text, and one value that is taken whole at most `LARGEST_VALUE`
characters. Of the text, a window is held: about a mebibyte, or the value that is taken.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from ..errors import FormatError
from .head import open_content

LARGEST_FILE = 2**32  # bytes of text, after decompression
LARGEST_VALUE = 2**28
_PIECE = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*").match
_SHOWN = 60  # characters of a key in a message
_GOES_ON = 2  # a number that ends so close to the end of the window may go on: "1.5" may be "1.5e-3"
_CUT = 16  # an error so close to the end of the window may come from the cut: no token but a string is longer

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all


def open_json(path: str | Path, progress: Progress | None = None) -> JsonWalk:
    """A walk through the JSON in a file, which may be gzipped."""
    path = Path(path)
    return JsonWalk("", path.name, pieces=_pieces(path, LARGEST_FILE, progress))


def read_text(path: Path, largest: int) -> str:
    """The text of a file, which may be gzipped; never more than so many bytes of it."""
    return "".join(_pieces(path, largest))


def _pieces(path: Path, largest: int, progress: Progress | None = None) -> Iterator[str]:
    """The text of a file, piece by piece. The file is closed at the end, and where the iterator is given up."""
    with open_content(path) as (raw, content):
        total = os.fstat(raw.fileno()).st_size
        for piece in _decoded(content, path.name, largest):
            if progress is not None:
                progress(min(raw.tell(), total), total)
            yield piece


def _decoded(file: BinaryIO | gzip.GzipFile, name: str, largest: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done = lines = 0
    while True:
        piece = file.read(_PIECE)
        before = done - len(decoder.getstate()[0])
        done += len(piece)
        if done > largest:
            raise FormatError(f"more than {largest // 2**20} MiB of text", where=name, hint="a smaller file")
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            what = f"not UTF-8: byte {before + error.start} is 0x{error.object[error.start]:02x}"
            lines += error.object.count(b"\n", 0, error.start)
            raise FormatError(what, where=f"{name}:{lines + 1}", hint="such a file is UTF-8 text") from None
        lines += text.count("\n")
        yield text
        if not piece:
            return


class JsonWalk:
    """A place in a JSON text."""

    def __init__(self, text: str, name: str, *, pieces: Iterator[str] | None = None):
        self.text, self.name, self.at = text, name, 0  # the text is a window: what is behind is dropped
        self.path: list[str | int] = []
        self._pieces = pieces if pieces is not None else iter(())
        self._dropped = self._dropped_lines = self._dropped_columns = 0
        self._began = self._ended = 0  # the value that was taken last, in characters of the whole text
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode  # no cycle: files close at once
        self._skip_space()

    def members(self) -> Iterator[str]:
        """The keys of the object that stands here."""
        self._expect("{", "an object")
        seen: set[str] = set()
        if self._accept("}"):
            return
        while True:
            if not self.text.startswith('"', self.at):
                self._fail_here("no key in double quotes where one must stand")
            key = self._take()
            if key in seen:
                self.fail(f"the key '{key[:_SHOWN]}' stands twice in one object")
            seen.add(key)
            self._expect(":", "a colon")
            self.path.append(key)
            before = self._dropped + self.at
            yield key
            if self._dropped + self.at == before:
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
            self.path.append(place)
            before = self._dropped + self.at
            yield place
            if self._dropped + self.at == before:
                raise AssertionError(f"rule J1: item {place} was not taken")
            self.path.pop()
            if self._accept("]"):
                return
            self._expect(",", "a comma or the end of an array")
            place += 1

    def values(self) -> Iterator[Any]:
        """The items of the array that stands here, decoded."""
        self._expect("[", "an array")
        if self._accept("]"):
            return
        self.path.append(0)
        place = 0
        while True:  # what `items` does, with less ado: there may be millions
            self.path[-1] = place
            yield self._take()
            if self.text.startswith(",", self.at):
                self.at += 1
                self._skip_space()
                place += 1
            else:
                self._expect("]", "a comma or the end of an array")
                self.path.pop()
                return

    def value(self) -> Any:
        """The value that stands here, decoded."""
        return self._take()

    def skip(self) -> None:
        """Pass over the value that stands here. It must be JSON all the same."""
        if self.starts("["):  # item by item: arrays are what gets long
            for _ in self.values():
                continue
        else:
            self._take()

    def starts(self, opening: str) -> bool:
        """Does the value here begin so? `{` an object, `[` an array."""
        return self.text.startswith(opening, self.at)

    def end(self) -> None:
        """Nothing may follow."""
        if self.at != len(self.text):
            self._fail_here("more text after the end")

    def fail(self, what: str, hint: str | None = None, *, inside: tuple[str | int, ...] = ()) -> NoReturn:
        """Raise FormatError with this place: the value just taken, and the keys to what is wrong in it."""
        taken = self._ended == self._dropped + self.at
        self._raise(what, hint, self._began - self._dropped if taken else self.at, (*self.path, *inside))

    def _fail_here(self, what: str, hint: str | None = None) -> NoReturn:
        self._raise(what, hint, self.at, tuple(self.path))

    def _raise(self, what: str, hint: str | None, at: int, path: tuple[str | int, ...]) -> NoReturn:
        line = self.text.count("\n", 0, at)
        column = at - self.text.rfind("\n", 0, at) + (0 if line else self._dropped_columns)
        keys = ".".join(str(key)[:_SHOWN] for key in path)
        where = f"{self.name}:{self._dropped_lines + line + 1}:{column}" + (f" ({keys})" if keys else "")
        if isinstance(self._pieces, Generator):
            self._pieces.close()  # who keeps the error does not keep the file
        raise FormatError(what, where=where, hint=hint)

    def _take(self) -> Any:
        self._began = self._dropped + self.at
        while True:
            try:
                found, end = self._decode(self.text, self.at)
                length = end - self.at  # reading on moves the window
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self.text) - _CUT or error.msg.startswith("Unterminated")
                length = error.pos - self.at
                if cut and self._read_on():
                    continue
                self.at += length
                self._fail_here(f"not JSON: {error.msg[0].lower()}{error.msg[1:]}")
            except RecursionError:
                self._fail_here("nested too deep")
            except ValueError as error:  # a number of more digits than Python reads, or one that JSON has not
                self._fail_here(f"a number that cannot be read: {error}")
            if end + _GOES_ON < len(self.text) or not self._read_on():
                break
        self.at += length
        self._skip_space()
        self._ended = self._dropped + self.at
        return found

    def _read_on(self) -> bool:
        """Drop what is behind, and read as much again as is left, so that a long value costs no more than its length.
        False at the end of the file."""
        gone = min(self._began - self._dropped, self.at)
        line = self.text.rfind("\n", 0, gone)
        self._dropped_lines += self.text.count("\n", 0, gone)
        self._dropped_columns = gone - line - 1 + (self._dropped_columns if line < 0 else 0)
        self._dropped += gone
        parts, have = [self.text[gone:]], 0
        wanted = max(len(parts[0]), 1)
        self.at -= gone
        if wanted > LARGEST_VALUE:
            self._fail_here(f"a value of more than {LARGEST_VALUE // 2**20} MiB of text")
        while have < wanted and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            have += len(piece)
        self.text = "".join(parts)
        return have > 0

    def _skip_space(self) -> None:
        while True:
            found = _SPACE(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                return
            if not self._read_on():
                return

    def _accept(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += 1
        self._skip_space()
        return True

    def _expect(self, mark: str, what: str) -> None:
        if not self._accept(mark):
            ended = self.at >= len(self.text)
            self._fail_here("the file ends too early" if ended else f"{what} must stand here", "is the file whole?")


class JsonTable:
    """An object that was taken, whose members have types. `path`: the keys to it in the value that was taken."""

    def __init__(self, walk: JsonWalk, raw: Any, path: tuple[str | int, ...] = ()) -> None:
        self.walk, self.path = walk, path
        if not isinstance(raw, dict):
            walk.fail("an object must stand here", inside=path)
        self.raw: dict[str, Any] = raw

    def fail(self, key: str, what: str) -> NoReturn:
        self.walk.fail(what, inside=(*self.path, key))

    def take(self, key: str, good: Callable[[Any], bool], what: str, default: T | None = None) -> Any | T:
        value = self.raw.get(key, default)
        if not good(value) and (default is None or value is not default):
            self.fail(key, f"no {what}, but {repr(value)[:60]}")
        return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")
