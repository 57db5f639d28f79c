"""Read the slices of a Chainer GetItem: `(slice(None, None, None), Ellipsis, slice(4, -4, None))`, without eval."""

from __future__ import annotations

import re
from collections.abc import Sequence

_END = r"(None|-?[0-9]{1,18})"
_ITEM = re.compile(rf"slice\({_END}, {_END}, {_END}\)|(Ellipsis)", re.ASCII)
_COMMA = re.compile(r", *")

Cut = tuple[int | None, int | None]  # start, stop
Cuts = tuple[Cut | None, ...]  # None stands for the dimensions that an Ellipsis leaves whole


def parse_slices(text: str) -> Cuts | None:
    """What is cut from each dimension. None if it is more than a crop: steps, single indices, new axes, arrays."""
    text = text.strip()
    bare = _ITEM.fullmatch(text) is not None
    inner = text if bare else text.removeprefix("(").removesuffix(")")
    if not bare and len(inner) != len(text) - 2:
        return None
    found: list[Cut | None] = []
    at = 0
    while at < len(inner):
        if (match := _ITEM.match(inner, at)) is None or match[3] not in ("None", "1", None):
            return None
        found.append(None if match[4] else (_end(match[1]), _end(match[2])))
        at = match.end()
        if (comma := _COMMA.match(inner, at)) is None and at < len(inner):
            return None
        at = comma.end() if comma else at
    return tuple(found) if found.count(None) <= 1 else None


def spread_slices(cuts: Cuts, rank: int) -> Sequence[Cut]:
    """One cut for each of `rank` dimensions; what is not mentioned stays whole."""
    given = [cut for cut in cuts if cut is not None]
    front = cuts.index(None) if None in cuts else len(cuts)
    whole: list[Cut] = [(None, None)] * (rank - len(given))
    return [*given[:front], *whole, *given[front:]]


def _end(text: str) -> int | None:
    return None if text == "None" else int(text)
