"""Pages of the documentation: their fenced blocks, and what they show held against what is printed.

Shown must be what is printed, bytes and counts included. Times, and ratios of them in brackets, depend on the machine
and are left out, and so are differences of the size of rounding (1e-12 and less).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$(?=\n*([^\n]*))", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave this as `(\S+)`:\n*\Z")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?: ?(?:B|[KMGT]i?B)\b)?")
TIME = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:s|ms|us|µs)\b|\d+(?:\.\d+)?e-(?:1[2-9]|[2-9]\d)|\(\d+\.\d\d x\)")
LEFT_OUT = "…"


class Command(NamedTuple):
    words: list[str]
    shown: list[str]  # lines below it
    file: str  # where its output goes, if anywhere


@dataclass(frozen=True)
class Block:
    """A fenced block: what follows the fence, where its text begins, the text, the line after it, and the name of the
    file that the page says to save it as."""

    info: str
    start: int
    line: int
    text: str
    after: str
    saved: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    def commands(self) -> Iterator[Command]:
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            words = shlex.split(command, comments=True)
            file = words[words.index(">") + 1] if ">" in words else ""
            yield Command(words[: words.index(">")] if file else words, shown, file)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        saved = SAVED.search(text, 0, found.start())
        name = saved[1] if saved else ""
        yield Block(found[1].strip(), found.start(2), text.count("\n", 0, found.start()) + 2, found[2], found[3], name)


def lines_of(text: str) -> list[str]:
    return [TIME.sub("#", line).rstrip() for line in text.strip("\n").splitlines()]


def missing(shown: Sequence[str], printed: str) -> list[str]:
    """Lines that are not printed, in this order. A line that is cut off is as far as it goes."""
    rest, found = iter(lines_of(printed)), []
    for line in lines_of("\n".join(shown)):
        if line.strip() == LEFT_OUT:
            continue
        if not any(line == other for other in rest):
            found.append(line)
            rest = iter(())
    return found


def as_printed(shown: Sequence[str], printed: str) -> list[str]:
    """What is shown, as it is printed now: between lines that are left out, from the first to the last whose words are
    the same. What has no such lines stays as it is."""

    def words(line: str) -> str:
        return " ".join(NUMBER.sub("#", re.sub(r"[─━═]+", "─", line)).split())

    lines, at, found = [line.rstrip() for line in printed.splitlines()], 0, list[str]()
    spoken = [words(line) for line in lines]
    for left_out, piece in groupby(shown, lambda line: line.strip() == LEFT_OUT):
        part = list(piece)
        first = next((k for k in range(at, len(lines)) if spoken[k] == words(part[0])), None)
        if not left_out and first is not None and words(part[-1]) in spoken[first + len(part) - 1 :]:
            at = spoken.index(words(part[-1]), first + len(part) - 1) + 1
            part = lines[first:at]
        found += part
    return found
