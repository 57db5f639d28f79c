"""Names in a scanned drawing: which words stand for which arrays and operators.

A net with some number of layers has certain nodes and no others, each drawn once. Words that read like one of their
names, look-alikes aside, are that node. The rest is matched by likeness to the names that are not yet found; where two
are alike (a name that lost its layer), a set_zero is the one whose gradient comes next below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import FormatError
from .drawing_text import TextLine, fold, ranked

MOST_LAYERS = 12
_LAYER = re.compile(r"(?:update_)?[Ll1I]([0-9OolI]{1,3})\.(?:f[il1I]{2}ter|W)")
_LIKELY, _PIECE, _SAME = 0.6, 0.5, 0.01
_LONGEST = 4  # words of one name


@dataclass(frozen=True, slots=True)
class FoundName:
    """Words that are some name, or a piece of one."""

    line: int
    band: int
    order: int
    raw: str


def count_layers(lines: list[TextLine], file: str) -> int:
    """How many layers the names speak of. One odd name does not make a layer."""
    seen: dict[int, int] = {}
    for line in lines:
        for word in (word for run in line.runs for word in run):
            if found := _LAYER.match(word):
                layer = int(found[1].translate(str.maketrans("OolI", "0011")))
                seen[layer] = seen.get(layer, 0) + 1
    layers = {layer for layer, times in seen.items() if times >= 3}
    if not layers:
        raise FormatError("no layer: names such as L0.filter are missing", where=file)
    if len(layers) > MOST_LAYERS:
        raise FormatError(f"more than {MOST_LAYERS} layers", where=file)
    if layers != set(range(len(layers))):
        raise FormatError(f"layers {sorted(layers)[:8]}: some are missing", where=file)
    return len(layers)


def split_run(words: list[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The names among some words, each of one to four words, and the words that are none."""
    exact = {fold(name) for name in names}
    if all(fold(word) in exact for word in words):
        return list(words), []
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the words so far: the score, and how many the last name has
    for end in range(1, len(words) + 1):
        options = [(best[end - 1][0], 0)]
        for size in range(1, min(_LONGEST, end) + 1):
            score = _score(" ".join(words[end - size : end]), names)
            options.append((best[end - size][0] + score, size if score else 0))
        best.append(max(options, key=lambda option: (option[0], -option[1])))
    found: list[str] = []
    rest: list[str] = []
    at = len(words)
    while at:
        size = best[at][1]
        if size:
            found.insert(0, " ".join(words[at - size : at]))
        else:
            rest.insert(0, words[at - 1])
        at -= max(size, 1)
    return found, rest


def _score(text: str, names: tuple[str, ...]) -> float:
    """Letters that are read, less those that are not."""
    folded = fold(text)
    if len(folded) > 80:
        return 0.0
    alike = ranked(folded, names)
    if not alike or (alike[0][0] < 1 and len(folded) < 5):
        return 0.0
    likely = alike[0][0] >= _LIKELY or (alike[0][0] >= _PIECE and "grad5et" in folded)
    read = alike[0][0] * (len(folded) + len(fold(alike[0][1]))) / 2
    return max(0.0, read - (len(folded) - read) / 2) if likely else 0.0


def match_names(
    tokens: list[FoundName], names: tuple[str, ...], file: str
) -> tuple[dict[str, FoundName], list[tuple[FoundName, str | None, str]]]:
    """Every node that is found, and what was not read as it stands: words, name (None: passed over) and reason."""
    nodes: dict[str, FoundName] = {}
    odd: list[tuple[FoundName, str | None, str]] = []
    by_fold = {fold(name): name for name in names}
    rest: list[FoundName] = []
    for token in tokens:
        name = by_fold.get(fold(token.raw))
        if name is None:
            rest.append(token)
        elif name in nodes:
            odd.append((token, None, f"'{name}' stands at line {nodes[name].line}: a piece of another name"))
        else:
            nodes[name] = token
            if token.raw != name:
                odd.append((token, name, "letters and digits that look alike, or lost marks"))
    rest.sort(key=lambda token: (-ranked(fold(token.raw), names)[0][0], token.order))
    for token in rest:
        left = [pair for pair in ranked(fold(token.raw), names) if pair[1] not in nodes]
        name = _choose(token, left, nodes)
        if name is None:
            what = f"'{token.raw[:60]}' is like no name that is not yet found"
            raise FormatError(what, where=f"{file}:{token.line}", hint="scan it again")
        nodes[name] = token
        odd.append((token, name, "the most alike of the names that are not found elsewhere"))
    return nodes, odd


def _choose(token: FoundName, left: list[tuple[float, str]], nodes: dict[str, FoundName]) -> str | None:
    if not left or left[0][0] < _PIECE:
        return None
    alike = [name for ratio, name in left if ratio >= left[0][0] - _SAME]
    if len(alike) == 1 or not alike[0].endswith(".set_zero"):
        return alike[0] if left[0][0] >= _LIKELY else None
    below = []
    for name in alike:
        gradient = nodes.get(name.removesuffix(".set_zero"))
        if gradient is not None and gradient.band >= token.band:
            below.append((gradient.band, gradient.order, name))
    return min(below)[2] if below else alike[0]
