"""All that a page shows, as plain data: columns of whole numbers, every text once.

Of a hundred thousand operators some ten megabytes remain. Times count in a unit of the profile from its first moment;
where host and device have clocks of their own, each from its own. Addresses are those of a *squeezed* space: far gaps
between arenas are cut to a sliver, so that 64-bit addresses can be drawn and stay whole numbers of a script.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..analysis.addresses import join_spans
from ..analysis.live import find_live
from ..profile import Block, BlockKind, Operator, Profile, Span
from .html_text import clean_text
from .page import Bars, Drawn, Page, Scatter, Table, TileMap

AGAIN, FETCHED = "made again", "back from the host"
CLASSES = (*(str(kind) for kind in BlockKind), AGAIN, FETCHED)  # of blocks, lowest in the stack first
SHORT = 120  # characters of what is shown beside a name
GAPS = 0.3  # of the used addresses: as much is drawn of the gaps between them
SLIVER = 0.02  # of the used addresses: a gap that is cut


def page_data(page: Page) -> dict[str, Any]:
    """The page's texts are clean, its numbers finite."""
    texts = _Texts()
    first, notes = page.profiles[0] if page.profiles else None, list(page.notes)
    whole = None if first is None else _profile(first, texts)
    unit, timed = (1.0, True) if whole is None else (whole["unit_s"], whole["timed"])
    others = [drawn for drawn in page.profiles[1:] if drawn.timed is timed]
    notes += [
        f"The memory of '{drawn.label}' is not drawn: seconds and steps do not go on one axis."
        for drawn in page.profiles[1:]
        if drawn.timed is not timed
    ]
    return {
        "schema": 1,
        "title": clean_text(page.title),
        "summary": clean_text(page.summary, 2000),
        "facts": [[clean_text(part) for part in fact] for fact in page.facts],
        "notes": [clean_text(note, 2000) for note in notes],
        "decimal": page.decimal,
        "budget_bytes": page.budget_bytes,
        "tables": [_table(table) for table in page.tables],
        "scatter": None if page.scatter is None else _scatter(page.scatter),
        "tiles": None if page.tiles is None else _tiles(page.tiles),
        "bars": [_bars(bars) for bars in page.bars],
        "profile": whole,
        "others": [_curve(drawn, unit) for drawn in others],
        "classes": CLASSES,
        "texts": list(texts.places),
    }


class _Texts:
    """Clean texts and their places."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.known: dict[tuple[str, int], int] = {}

    def place(self, text: str, most: int = 500) -> int:
        found = self.known.get((text, most))
        if found is None:
            found = self.known[text, most] = self.places.setdefault(clean_text(text, most), len(self.places))
        return found


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": clean_text(table.title),
        "caption": clean_text(table.caption, 2000),
        "columns": [[clean_text(column.name), column.unit] for column in table.columns],
        "rows": [[_cell(cell) for cell in row] for row in table.rows],
        "marked": sorted(table.marked),
        "mark": clean_text(table.mark),
    }


def _scatter(scatter: Scatter) -> dict[str, Any]:
    points = [p for p in scatter.points if math.isfinite(p.seconds)]
    return {
        "caption": clean_text(scatter.caption, 2000),
        "points": [[p.bytes, p.seconds, clean_text(p.text), clean_text(p.chosen), p.front] for p in points],
        "budgets": list(scatter.budgets),
        "memory": scatter.memory,
        "times": scatter.times,
        "plain_s": _cell(scatter.plain_s),
    }


def _tiles(tiles: TileMap) -> dict[str, Any]:
    values = [asdict(value) for value in tiles.values]
    texts = [{key: clean_text(value[key], SHORT) for key in ("name", "what")} for value in values]
    return {key: getattr(tiles, key) for key in ("mode", "tiled", "grid", "drawn")} | {
        "values": [value | text for value, text in zip(values, texts, strict=True)]
    }


def _bars(bars: Bars) -> dict[str, Any]:
    rows = [(clean_text(row.name, SHORT), _cell(row.before), _cell(row.after)) for row in bars.rows]
    return {"title": clean_text(bars.title), "unit": bars.unit, "rows": rows, "caption": clean_text(bars.caption)}


def _cell(cell: str | int | float | bool | None) -> str | int | float | bool | None:
    if isinstance(cell, str):
        return clean_text(cell)
    return None if cell is None or not math.isfinite(cell) else cell


# -- times -------------------------------------------------------------------------------------------------------------


class _Times(NamedTuple):
    """Seconds to whole units from zero; host, device and memory may have different zeros."""

    unit_s: float
    host: float
    device: float
    clock: float
    length_s: float  # of all that is drawn
    side: str  # whose zero the memory's clock has: "host", "device" or "both"

    def whole(self, second: float, zero: float) -> int:
        return round((second - zero) / self.unit_s)


def _times(profile: Profile, timed: bool) -> _Times:
    host = [op.host for op in profile.operators if op.host is not None]
    device = [op.device for op in profile.operators if op.device is not None]
    zeros = {name: min(span.start_s for span in spans) for name, spans in (("host", host), ("device", device)) if spans}
    moments = [*zeros.values(), *profile.clock[:1]]
    if profile.one_clock or len(zeros) < 2:
        zeros, side = dict.fromkeys(("host", "device", "clock"), min(moments, default=0.0)), "both"
    else:  # nobody says whose clock the memory has: the one that began at about the same number
        start = profile.clock[0] if profile.clock else zeros["device"]
        side = min(("device", "host"), key=lambda name: abs(zeros[name] - start))
        zeros["clock"] = min(zeros[side], start)
        zeros[side] = zeros["clock"]
    lengths = [
        max((span.end_s for span in spans), default=zeros[name]) - zeros[name]
        for name, spans in (("host", host), ("device", device))
    ]
    length = max(*lengths, profile.clock[-1] - zeros["clock"] if profile.clock else 0.0)
    unit = _unit(length) if timed else 1.0
    return _Times(unit, zeros["host"], zeros["device"], zeros["clock"], length, side)


def drawn_seconds(profile: Profile) -> float:
    """How long the chart of a profile is: what a page says of its time."""
    return _times(profile, True).length_s


def _unit(length_s: float) -> float:
    """Nanoseconds, or finer where all is over in less than a millisecond."""
    if length_s >= 1e-3 or length_s <= 1e-100:
        return 1e-9
    return float(10.0 ** (math.floor(math.log10(length_s)) - 6))


# -- profiles ----------------------------------------------------------------------------------------------------------


def _profile(drawn: Drawn, texts: _Texts) -> dict[str, Any]:
    profile, timed = drawn.profile, drawn.timed
    times = _times(profile, timed)
    clock = [times.whole(second, times.clock) for second in profile.clock]
    spans, lanes = _spans(profile.operators, times)
    ends = [start + length for start, length in zip(spans["start"], spans["length"], strict=True)]
    last = max((*ends, *clock[-1:]), default=0)
    if timed and clock and not last:  # all is over in no time: what memory did is still seen step by step
        timed, clock, lanes = False, list(range(profile.ticks)), []
        spans = {key: [] for key in spans}
    if clock and not timed:
        last = max(last, clock[-1] + 1)
    return {
        "label": clean_text(drawn.label),
        "name": clean_text(profile.name),
        "format": clean_text(profile.format),
        "timed": timed,
        "predicted": profile.predicted,
        "unit_s": times.unit_s if timed else 1.0,
        "one_clock": times.side == "both",
        "clock_side": times.side,
        "end": last,
        "idle": len(profile.idle),
        "operators": _operators(profile.operators, texts),
        "spans": spans | {key: _changes(spans[key]) for key in ("op", "start")},
        "lanes": [[clean_text(name, SHORT), side] for name, side in lanes],
        "clock": _changes(clock),
        "devices": [clean_text(device, SHORT) for device in profile.devices],
        **_blocks(profile, texts),
    }


def _changes(numbers: Sequence[int]) -> list[int]:
    """Each less the one before it: shorter to write."""
    return [number - before for before, number in pairwise((0, *numbers))]


def _operators(operators: Sequence[Operator], texts: _Texts) -> dict[str, Any]:
    """Columns; one of which nothing is known is null."""

    def texts_of(found: Iterable[str], most: int = 500) -> list[int] | None:
        places = [texts.place(text, most) for text in found]
        empty = texts.known.get(("", most))
        return None if all(place == empty for place in places) else places

    def numbers(found: Iterable[int | None]) -> list[int | None] | None:
        listed = list(found)
        return None if all(number is None for number in listed) else listed

    return {
        "name": [texts.place(op.name) for op in operators],
        "type": [texts.place(op.type, SHORT) for op in operators],
        "module": texts_of(op.module for op in operators),
        "kernel": texts_of(op.kernel for op in operators),
        "source": texts_of((op.source for op in operators), SHORT),
        "shapes": texts_of((_shapes(op) for op in operators), SHORT),
        "phase": texts_of((_phase(op) for op in operators), SHORT),
        "flops": numbers(op.flops for op in operators),
        "bytes": numbers(op.bytes for op in operators),
    }


def _phase(op: Operator) -> str:
    return "runs again" if op.attrs.get("again") else "" if op.phase is None else str(op.phase)


def _shapes(op: Operator) -> str:
    sides = [", ".join("×".join(map(str, shape)) or "()" for shape in side) for side in (op.in_shapes, op.out_shapes)]
    return " → ".join(side for side in sides if side)


def _spans(operators: Sequence[Operator], times: _Times) -> tuple[dict[str, list[int]], list[tuple[str, str]]]:
    """Every span of every operator, and the lanes: threads of the host, then streams of the device."""
    found: dict[str, list[int]] = {key: [] for key in ("op", "lane", "start", "length", "wait")}
    lanes: dict[tuple[str, str], int] = {}

    def add(at: int, span: Span, lane: tuple[str, str], zero: float) -> None:
        start, end = times.whole(span.start_s, zero), times.whole(span.end_s, zero)
        begun = start if span.kern_s is None else times.whole(span.kern_s, zero)
        row = (at, lanes.setdefault(lane, len(lanes)), start, end - start, begun - start)
        for column, number in zip(found.values(), row, strict=True):
            column.append(number)

    for at, op in enumerate(operators):
        if op.host is not None:
            add(at, op.host, (op.thread, "host"), times.host)
    for at, op in enumerate(operators):
        if op.device is not None:
            add(at, op.device, (op.stream, "device"), times.device)
    return found, list(lanes)


# -- memory ------------------------------------------------------------------------------------------------------------


def _blocks(profile: Profile, texts: _Texts) -> dict[str, Any]:
    places = {device: i for i, device in enumerate(profile.devices)}
    squeezed = {device: squeeze([b for b in profile.blocks if b.device == device]) for device in places}
    return {
        "blocks": {
            "name": [texts.place(b.name) for b in profile.blocks],
            "bytes": [b.bytes for b in profile.blocks],
            "start": [b.start for b in profile.blocks],
            "stop": [b.stop for b in profile.blocks],
            "class": [CLASSES.index(_class(b, profile.operators)) for b in profile.blocks],
            "device": [places[b.device] for b in profile.blocks],
            "at": [squeezed[b.device].place(b) for b in profile.blocks],
            "maker": [-1 if b.maker is None else b.maker for b in profile.blocks],
            "outside": [i for i, b in enumerate(profile.blocks) if not b.owned],
        },
        "arenas": [squeezed[device].rows() for device in profile.devices],
    }


def _class(block: Block, operators: Sequence[Operator]) -> str:
    attrs = operators[block.maker].attrs if block.maker is not None else {}
    return AGAIN if attrs.get("again") else FETCHED if attrs.get("fetched") else str(block.kind)


class Squeezed(NamedTuple):
    """Arenas in order of address: where each begins, how long it is, and where it is drawn."""

    bases: list[int]
    sizes: list[int]
    drawn: list[int]

    def place(self, block: Block) -> int:
        """Where a block is drawn; -1: nowhere."""
        if block.address is None or not block.bytes:
            return -1
        arena = bisect_right(self.bases, block.address) - 1
        return self.drawn[arena] + block.address - self.bases[arena]

    def rows(self) -> list[list[int | str]]:
        return [[at, size, hex(base)] for at, size, base in zip(self.drawn, self.sizes, self.bases, strict=True)]


def squeeze(blocks: Sequence[Block]) -> Squeezed:
    """Short gaps stay, the longest are cut to a sliver: what is used fills most of the drawing."""
    spans = sorted((b.address, b.address + b.bytes) for b in blocks if b.address is not None and b.bytes)
    used = join_spans(spans)
    total = sum(segment.bytes for segment in used)
    gaps = [after[0] - before[1] for before, after in pairwise(used)]
    ranked = sorted(range(len(gaps)), key=gaps.__getitem__)
    kept = set(ranked[: bisect_right(list(accumulate(gaps[i] for i in ranked)), GAPS * total)])
    sliver = max(1, int(total * min(SLIVER, GAPS / max(1, len(gaps) - len(kept)))))
    arenas: list[tuple[int, int]] = []
    for i, (low, high) in enumerate(used):
        if i and i - 1 in kept:
            arenas[-1] = (arenas[-1][0], high)
        else:
            arenas.append((low, high))
    sizes = [high - low for low, high in arenas]
    drawn = list(accumulate((size + sliver for size in sizes[:-1]), initial=0))
    return Squeezed([low for low, _ in arenas], sizes, drawn[: len(arenas)])


def _curve(drawn: Drawn, unit_s: float) -> dict[str, Any]:
    """Bytes over time on each device, where they change."""
    profile = drawn.profile
    zero = profile.clock[0] if profile.clock else 0.0
    spans = [span for op in profile.operators if (span := op.span) is not None]
    if profile.one_clock and spans:
        zero = min(zero, min(span.start_s for span in spans)) if profile.clock else 0.0
    ends = [*(span.end_s for span in spans if profile.one_clock), *(t + (not drawn.timed) for t in profile.clock[-1:])]
    curves = {}
    for device in profile.devices:
        totals = memory_curve(profile, device)
        changes = [i for i, total in enumerate(totals) if not i or total != totals[i - 1]]
        curves[clean_text(device, SHORT)] = {
            "start": [round((profile.clock[i] - zero) / unit_s) for i in changes],
            "bytes": [totals[i] for i in changes],
        }
    end = round((max(ends, default=zero) - zero) / unit_s)
    return {"label": clean_text(drawn.label), "end": end, "curves": curves}


def memory_curve(profile: Profile, device: str) -> list[int]:
    """Bytes on a device in every tick."""
    return list(find_live((b for b in profile.blocks if b.device == device), profile.ticks).curve)


def drawn_bytes(profile: Profile, device: str | None = None) -> int:
    """The highest point of the chart, of one device or of all: what a page says of its peak."""
    devices = profile.devices if device is None else (device,)
    return max((count for each in devices for count in memory_curve(profile, each)), default=0)
