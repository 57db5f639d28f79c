"""Read a Chainer dump line by line: tensors with their bytes, functions with their tensors and attributes.

    108 120                     how many tensors, how many functions
    47 2304 /conv_d0a_b/W       id, bytes, name: `_` computed, `/…` a parameter, a number an input
    forward
    3 1                         how many inputs and outputs
    53 _                        id and role: `_`, or in backward gradient, input or output
    …
    Convolution2DFunction
    {"sy": 1, …}

Whatever is wrong raises one `FormatError` that names the line. Nothing is allocated by a count, only by lines present.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from gzip import GzipFile
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import FormatError
from ..head import open_content

_COUNTS = re.compile(rb"-?\d+ +-?\d+ *\r?(\n|$)")
_TENSOR = re.compile(rb"[^\n]*\n\d+ \d+ (_|\d+|/[^\n ]+)\r?(\n|$)")

LONGEST_LINE, MOST_LINES, LARGEST_FILE = 1 << 20, 1_000_000, 1 << 27  # a dump of a hundred functions has 30 KB
LONGEST_NAME = 500  # of tensors and functions: nodes are named after them, many times
_LARGEST = (1 << 63) - 1  # of ids, bytes and counts; of attributes:
_LARGEST_ATTR = (1 << 31) - 1
_DEEPEST = 16  # nesting of attributes
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_TENSOR_NAME = re.compile(r"_|[0-9]{1,9}|/.+", re.ASCII)
_ROLES = {"forward": ("_",), "backward": ("gradient", "input", "output")}


@dataclass(frozen=True, slots=True)
class Tensor:
    id: int
    bytes: int
    name: str
    line: int

    @property
    def parameter(self) -> str | None:
        """`conv/W` for `/conv/W`; None if it is no parameter."""
        return self.name[1:] if self.name.startswith("/") else None


@dataclass(frozen=True, slots=True)
class ChainerFunction:
    label: str
    inputs: tuple[int, ...]
    roles: tuple[str, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    file: str
    line: int  # where it begins; its attributes are at `attrs_line`
    attrs_line: int

    def error(self, what: str, hint: str | None = None) -> FormatError:
        return FormatError(f"{quote(self.label)}: {what}", where=f"{self.file}:{self.line}", hint=hint)

    def attr_error(self, key: str, wanted: str) -> FormatError:
        found = quote(json.dumps(self.attrs[key])) if key in self.attrs else "missing"
        what = f"{quote(self.label)}: attribute '{key}' must be {wanted}, but is {found}"
        return FormatError(what, where=f"{self.file}:{self.attrs_line}")

    def integer(self, key: str, least: int, default: int | None = None) -> int:
        found = self.attrs.get(key, default)
        if not _is_integer(found, least):
            raise self.attr_error(key, f"a whole number from {least} to {_LARGEST_ATTR}")
        return int(found)

    def number(self, key: str, default: float | None = None) -> float:
        found = self.attrs.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
            raise self.attr_error(key, "a number")
        return float(found)

    def flag(self, key: str, default: bool) -> bool:
        found = self.attrs.get(key, default)
        if not isinstance(found, bool):
            raise self.attr_error(key, "true or false")
        return found

    def text(self, key: str) -> str:
        if not isinstance(found := self.attrs.get(key), str):
            raise self.attr_error(key, "a string")
        return found

    def retained(self, key: str, count: int) -> tuple[int, ...]:
        """Which of its `count` inputs or outputs stay for backward."""
        if (found := self.attrs.get(key, False)) is None:
            return ()
        wanted = f"null or a list of different indexes below {count}"
        indexes = isinstance(found, list) and all(_is_integer(i, 0) and i < count for i in found)
        if not indexes or len(set(found)) != len(found):
            raise self.attr_error(key, wanted)
        return tuple(found)


@dataclass(frozen=True)
class ChainerDump:
    file: str
    tensors: Mapping[int, Tensor]
    forward: tuple[ChainerFunction, ...]
    backward: tuple[ChainerFunction, ...]

    def tensor_error(self, id: int, what: str, hint: str | None = None) -> FormatError:
        return FormatError(f"tensor {id} {what}", where=f"{self.file}:{self.tensors[id].line}", hint=hint)


def load_dump(path: Path) -> ChainerDump:
    """Read the file once, from front to back."""
    with open_content(path) as (_, content):
        return _Reader(content, path.name).dump()


def sniff_chainer(head: bytes) -> bool:
    """Two counts and then a tensor; one of the two lines may be broken, and is then quoted in the error."""
    return bool(_COUNTS.match(head) or _TENSOR.match(head))


def quote(text: str) -> str:
    """What a message shows of a line."""
    return text if len(text) <= 60 else text[:60] + "…"


class _Reader:
    """One line after another, each checked before it is kept."""

    def __init__(self, file: BinaryIO | GzipFile, name: str):
        self.file, self.name = file, name
        self.number = self.bytes = 0  # of the line read last, and of all lines so far
        self.tensors: dict[int, Tensor] = {}

    def dump(self) -> ChainerDump:
        announced = self.numbers(2, "the numbers of tensors and functions, such as '108 120'")
        for _ in counted(announced[0]):
            self.tensor(announced[0])
        functions: dict[str, list[ChainerFunction]] = {"forward": [], "backward": []}
        for _ in counted(announced[1]):
            phase, function = self.function(announced[1])
            functions[phase].append(function)
        while (line := self.read()) is not None:
            if line.strip():
                what = f"the file goes on after {announced[1]} functions: '{quote(line)}'"
                raise self.error(what, "line 1 says how many tensors and functions there are")
        return ChainerDump(self.name, self.tensors, tuple(functions["forward"]), tuple(functions["backward"]))

    def tensor(self, announced: int) -> None:
        line = self.line(f"a tensor ({len(self.tensors)} of {announced} read)")
        fields = line.split(" ")
        if len(fields) != 3 or not all(map(_NUMBER.fullmatch, fields[:2])) or not _TENSOR_NAME.fullmatch(fields[2]):
            raise self.error(
                f"expected a tensor 'id bytes name', found '{quote(line)}'",
                f"line 1 announces {announced} tensors; a name is _, a number, or /path/of/parameter",
            )
        id, size = (self.bounded(int(field)) for field in fields[:2])
        if not size:
            raise self.error(f"tensor {id} has no bytes")
        if len(fields[2]) > LONGEST_NAME:
            raise self.error(f"tensor {id} has a name of {len(fields[2])} characters")
        if id in self.tensors:
            raise self.error(f"tensor {id} is here twice: first at line {self.tensors[id].line}")
        self.tensors[id] = Tensor(id, size, fields[2], self.number)

    def function(self, announced: int) -> tuple[str, ChainerFunction]:
        phase = self.line(f"'forward' or 'backward' ({announced} functions are announced)")
        if phase not in _ROLES:
            raise self.error(f"expected 'forward' or 'backward', found '{quote(phase)}'")
        begin = self.number
        n_inputs, n_outputs = self.numbers(2, "the numbers of inputs and outputs, such as '3 1'")
        pairs = [self.input(_ROLES[phase]) for _ in counted(n_inputs)]
        outputs = tuple(self.output() for _ in counted(n_outputs))
        label = self.line("the name of a function").strip()
        if not label or len(label) > LONGEST_NAME:
            raise self.error(f"expected the name of a function, found '{quote(label)}'")
        attrs = self.attributes()
        ids, roles = tuple(id for id, _ in pairs), tuple(role for _, role in pairs)
        function = ChainerFunction(label, ids, roles, outputs, attrs, self.name, begin, self.number)
        if not outputs:
            raise function.error("a function without outputs")
        return phase, function

    def input(self, roles: tuple[str, ...]) -> tuple[int, str]:
        line = self.line("an input of a function")
        id, _, role = line.partition(" ")
        if not _NUMBER.fullmatch(id) or not role:
            raise self.error(f"expected an input 'id role', found '{quote(line)}'")
        if role not in roles:
            raise self.error(f"role '{quote(role)}' is not one of {', '.join(roles)}")
        return self.known(int(id)), role

    def output(self) -> int:
        line = self.line("an output of a function")
        if not _NUMBER.fullmatch(line):
            raise self.error(f"expected the id of an output, found '{quote(line)}'")
        return self.known(int(line))

    def known(self, id: int) -> int:
        if id not in self.tensors:
            raise self.error(f"tensor {id} is not in the table of tensors")
        return id

    def attributes(self) -> dict[str, Any]:
        line = self.line("the attributes of a function")
        try:
            attrs = json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_unique)
            if not isinstance(attrs, dict):
                raise ValueError("not an object")
            _check_depth(attrs, _DEEPEST)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
            raise self.error(f"attributes that are not a JSON object: {quote(reason)}") from None
        return attrs

    def numbers(self, count: int, what: str) -> list[int]:
        line = self.line(what)
        fields = line.split(" ")
        if len(fields) != count or not all(map(_NUMBER.fullmatch, fields)):
            raise self.error(f"expected {what}, found '{quote(line)}'")
        return [self.bounded(int(field)) for field in fields]

    def bounded(self, number: int) -> int:
        if number > _LARGEST:
            raise self.error(f"{number} is too large a number")
        return number

    def line(self, what: str) -> str:
        if (line := self.read()) is None:
            self.number += 1
            raise self.error(f"the file ends where {what} should be", "the file is cut off: dump it again")
        return line

    def read(self) -> str | None:
        """The next line without its end; None after the last."""
        raw = self.file.readline(LONGEST_LINE + 1)
        if not raw:
            return None
        self.number += 1
        if len(raw) > LONGEST_LINE:
            raise self.error(f"a line longer than {LONGEST_LINE} bytes")
        self.bytes += len(raw)
        if self.number > MOST_LINES or self.bytes > LARGEST_FILE:
            raise self.error(f"more than {MOST_LINES} lines or {LARGEST_FILE} bytes")
        try:
            return raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise self.error(f"bytes that are not UTF-8: {error.reason}") from None

    def error(self, what: str, hint: str | None = None) -> FormatError:
        return FormatError(what, where=f"{self.name}:{self.number}", hint=hint)


def counted(number: int) -> Iterator[int]:
    """`range` for numbers that a file announces: they may not fit into one."""
    at = 0
    while at < number:
        yield at
        at += 1


def _is_integer(found: object, least: int) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and least <= found <= _LARGEST_ATTR


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _check_depth(item: Any, left: int) -> None:
    if isinstance(item, dict | list):
        if not left:
            raise ValueError("nested too deep")
        for each in item.values() if isinstance(item, dict) else item:
            _check_depth(each, left - 1)
