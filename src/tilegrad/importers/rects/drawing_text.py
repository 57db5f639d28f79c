"""The text of a scanned drawing, line by line: fields, labels of ports, and words that may be pieces of names.

Whatever scanning did, some things stand out: `key=Rect(array([…]), array([…]))`, `key=[…]`, `key=None`, and arrows.
What is left over are words. Look-alikes are read as one: O as 0, l and I as 1, S as 5, B as 8 (`fold`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache

from ...errors import FormatError
from ...rects import KINDS

DIM_KEYS = ("dim", "result_dim")
RECT_KEYS = ("read_rect", "write_rect", "dist_input", "dist_filters", "dist_result")
PORTS = tuple(sorted({port for kind in KINDS.values() for port in (*kind.inputs, *kind.outputs, *kind.optional)}))
LONGEST_LINE, MOST_FIELDS, MOST_WORDS, MOST_CROWDED = 20_000, 20_000, 3_000, 300
MOST_DIGITS, MOST_RANK = 40, 16  # numbers that lost their spaces are long
_LONGEST_PAIR = 30  # letters of two labels that run into each other
_MOST_ALIKE, _LEAST = 32, 0.49  # texts that are kept as alike, and how alike they must be

_FOLD = str.maketrans("olisb|", "011581")
_DIGITS = str.maketrans("OolI|SB", "0011158")
_KEY = r"((?:(?:re[sS5]u[lI1]t|read|write|di[sS5]t)[_ ]{1,3})?[A-Za-z0-9_]{2,14})\s{0,3}=\s{0,3}"
_RECT = _KEY + (
    r"R\w{1,4}\s{0,3}\(\s{0,3}\w{3,7}\s{0,3}\(\s{0,3}\[([^\[\]]{0,400})\]"
    r"[^\[\]]{3,40}\[([^\[\]]{0,400})\](?:[^\[\]()]{0,24}\){1,2})?"
)
_LIST = _KEY + r"\[([0-9OolI|SB, ]{0,400})\]"
_BARE = _KEY + r"([0-9OolISB]{1,9})(?![A-Za-z0-9\[(])"
_NONE = _KEY + r"(N[o0O]ne)"
_FIELD = re.compile("|".join((_RECT, _LIST, _NONE, _BARE)))
_OUT = re.compile(r"([A-Za-z0-9._]{0,20})[-=~]>")
_IN = re.compile(r"\W{0,3}[A-Z]?[-=~]?>([A-Za-z0-9._]{1,20})")
_IN_FRONT = re.compile(r"\W{0,3}[A-Z]?[-=~]?>")
_LEGIBLE = 0.75  # how alike a label and a port must be
_CUT = "\0"


@lru_cache(maxsize=1 << 12)
def fold(text: str) -> str:
    """Letters and digits alone, look-alikes as one."""
    return "".join(c for c in text.lower().translate(_FOLD) if c.isascii() and c.isalnum())


@dataclass(frozen=True, slots=True)
class TextField:
    """`key=…`: numbers as far as they can be read. A rect has both lists, a dim the second, None neither."""

    line: int
    raw: str
    key: str
    begin: tuple[int, ...] | None = None
    end: tuple[int, ...] | None = None
    letters: bool = False  # among the digits

    @property
    def digits(self) -> str:
        return "".join(map(str, self.end or ()))


@dataclass(frozen=True, slots=True)
class Label:
    """`->port` or `port->`; an arrow alone has no port."""

    line: int
    raw: str
    port: str
    out: bool

    @property
    def shown(self) -> str:
        return f"{self.port}->" if self.out else f"->{self.port}"


@dataclass
class TextLine:
    number: int
    fields: list[TextField] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    runs: list[list[str]] = field(default_factory=list)  # words between fields and labels


def parse_lines(text: str, file: str) -> Iterator[TextLine]:
    """Every line that is not empty."""
    fields = words = crowded = 0
    for number, raw in enumerate(text.splitlines(), 1):
        if len(raw) > LONGEST_LINE:
            raise FormatError(f"a line of {len(raw)} characters", where=f"{file}:{number}")
        if raw.strip():
            line = _parse_line(number, raw, file)
            fields += len(line.fields)
            if line.labels and not line.fields:
                crowded += len(line.runs)
                if crowded > MOST_CROWDED:
                    raise FormatError("too many words among labels", where=f"{file}:{number}")
                _crowded_words(line)
            words += sum(map(len, line.runs))
            if fields > MOST_FIELDS or words > MOST_WORDS:
                raise FormatError("too much for a drawing", where=f"{file}:{number}")
            yield line


def _parse_line(number: int, raw: str, file: str) -> TextLine:
    line = TextLine(number)

    def take(found: re.Match[str]) -> str:
        line.fields.append(_field(number, found, file))
        return f" {_CUT} "

    rest = _FIELD.sub(take, raw.replace(_CUT, " "))
    run: list[str] = []
    line.runs.append(run)
    for word in [part for glued in rest.split() for part in _apart(glued)]:
        label = None if word == _CUT else _label(number, word)
        if label is not None:
            line.labels.append(label)
        if word == _CUT or label is not None:
            run = []
            line.runs.append(run)
        else:
            run.append(word)
    line.runs = [run for run in line.runs if run]
    return line


def _apart(word: str) -> list[str]:
    """Labels that run into each other, ">b->filters", each by itself."""
    if word.count(">") < 2 or not _IN_FRONT.match(word):
        return [word]
    return re.split(r"(?<=[A-Za-z0-9])(?=\W{0,2}[-=~]?>)", word)


def _field(number: int, found: re.Match[str], file: str) -> TextField:
    groups = found.groups()
    shape = next(at for at, group in enumerate((0, 3, 5, 7)) if groups[group] is not None)
    start = (0, 3, 5, 7)[shape]
    known = RECT_KEYS if shape in (0, 2) else DIM_KEYS
    key = nearest(groups[start], known, 0.7)
    where = f"{file}:{number}"
    if key is None:
        raise FormatError(f"'{found[0][:60]}' is nothing that a node has", where=where, hint=f"one of {known}")
    if shape == 2:
        return TextField(number, found[0], key)
    lists = groups[start + 1 : start + (3 if shape == 0 else 2)]
    letters = any(c.isalpha() or c == "|" for part in lists for c in part)
    numbers = [_numbers(part) for part in lists]
    if shape == 0:
        return TextField(number, found[0], key, numbers[0], numbers[1], letters)
    return TextField(number, found[0], key, None, numbers[0], letters)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers in brackets; none where something else is there too."""
    parts = re.split(r"[\s,]+", text.strip().strip(",").strip().translate(_DIGITS))
    if len(parts) > MOST_RANK or not all(p.isascii() and p.isdigit() and len(p) <= MOST_DIGITS for p in parts):
        return ()
    return tuple(map(int, parts))


def _label(number: int, word: str) -> Label | None:
    if found := _OUT.fullmatch(word):
        port = nearest(found[1], PORTS, _LEGIBLE) if found[1] else ""
        return None if port is None else Label(number, word, port, out=True)
    if (found := _IN.fullmatch(word)) and (port := nearest(found[1], PORTS, _LEGIBLE)):
        return Label(number, word, port, out=False)
    return None


def _crowded_words(line: TextLine) -> None:
    """Among labels, words without a whole arrow are labels too, or two that run into each other."""
    left = []
    for run in line.runs:
        text = " ".join(run)
        ports = _ports(fold(text))
        if ports:
            line.labels += [Label(line.number, text, port, out=False) for port in ports]
        else:
            left.append(run)
    line.runs = left


def _ports(text: str) -> list[str]:
    """The port that a text is, or the two that it is made of, whichever reads more of it."""
    options: list[tuple[float, list[str]]] = [(0.0, [])]
    if len(text) > _LONGEST_PAIR:
        return []
    for cut in (0, *range(3, len(text) - 3)):
        parts = [part for part in (text[:cut], text[cut:]) if part]
        ports = [nearest(part, PORTS, _LEGIBLE) for part in parts]
        score = sum(ranked(part, PORTS)[0][0] * len(part) for part, port in zip(parts, ports, strict=True) if port)
        options.append((score if all(ports) else 0.0, [port for port in ports if port is not None]))
    best = max(options, key=lambda option: option[0])
    return best[1] if best[0] else []


def nearest(text: str, among: tuple[str, ...], least: float) -> str | None:
    """The most alike of some texts; None where it is not alike enough, or two are alike to the same degree."""
    found = ranked(fold(text), among)
    if not found or found[0][0] < least or (len(found) > 1 and found[1][0] == found[0][0]):
        return None
    return found[0][1]


@lru_cache(maxsize=1 << 12)
def ranked(text: str, among: tuple[str, ...]) -> tuple[tuple[float, str], ...]:
    """Texts that are somewhat alike, the most alike first. Short ones must be the same."""
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(text)
    found = []
    for one in among:
        folded = fold(one)
        if folded == text:
            found.append((1.0, one))
        elif len(folded) > 2 and len(text) > 1:
            matcher.set_seq1(folded)
            if matcher.real_quick_ratio() >= _LEAST and matcher.quick_ratio() >= _LEAST:
                found.append((matcher.ratio() * 0.999, one))  # never as good as the same
    return tuple(sorted((f for f in found if f[0] >= _LEAST), key=lambda f: -f[0])[:_MOST_ALIKE])
