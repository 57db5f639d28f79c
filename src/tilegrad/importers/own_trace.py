"""Chrome traces that `report.chrome_trace` wrote: the whole profile again, exact to the last bit.

The file has a member "tilegrad" with the schema, what is true of the whole profile, and how many operators, idle ones,
blocks and ticks there are. Events carry records under "tilegrad" in their arguments: `{"operator": {...}}`,
`{"idle": {...}}`, `{"block": {...}}` and `{"clock": {...}}`; all else is there for viewers and is not read.

Rule O1  Each record says its place ("at"), and every place is there once: a file that was cut is an error, one whose
         events or members were put in another order is not.
Rule O2  Schemas that are not known here are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..ir import Phase
from ..profile import Block, BlockKind, Operator, Profile, Span, check_profile
from ..profile.model import Shape
from .json_walk import JsonTable, JsonWalk, Progress, open_json

SCHEMA = 1
_MOST = 10**8  # of anything, so that a count is no memory


def load_own_trace(path: str | Path, progress: Progress | None = None) -> Profile:
    """The profile that was written. Raises `FormatError` where it cannot be read."""
    told, counts = _read_head(open_json(path))
    walk = open_json(path, progress)
    records = _Records(walk)
    for key in walk.members():
        if key == "traceEvents":
            for event in walk.values():
                records.read(event)
        else:
            walk.skip()
    walk.end()
    profile = Profile(
        operators=records.whole("operator", counts["operators"]),
        blocks=records.whole("block", counts["blocks"]),
        clock=_join_clock(records, counts["ticks"], walk),
        idle=records.whole("idle", counts["idle"]),
        **told,
    )
    check_profile(profile)
    return profile


def _read_head(walk: JsonWalk) -> tuple[dict[str, Any], dict[str, int]]:
    """What is true of the whole profile, and how many of everything there are."""
    for key in walk.members():
        if key == "tilegrad":
            break
        walk.skip()
    else:
        walk.fail("no 'tilegrad': this is no trace of ours")
    form = _Form(walk, walk.value(), ())
    schema = form.raw.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        hint = "a newer tilegrad" if type(schema) is int and schema > SCHEMA else None
        walk.fail(f"a trace of ours in schema {str(schema)[:40]}; this version reads {SCHEMA}", hint)
    told = {"name": form.text("name"), "format": form.text("format"), "one_clock": form.truth("one_clock")}
    told |= {"notes": tuple(form.texts("notes")), "facts": form.table("facts")}
    return told, {key: form.count(key) for key in ("operators", "idle", "blocks", "ticks")}


class _Records:
    """The records of the events, each in its place."""

    def __init__(self, walk: JsonWalk) -> None:
        self.walk = walk
        self.found: dict[str, dict[int, Any]] = {"operator": {}, "idle": {}, "block": {}, "clock": {}}

    def read(self, event: Any) -> None:
        args = event.get("args") if isinstance(event, dict) else None
        ours = args.get("tilegrad") if isinstance(args, dict) else None
        if not isinstance(ours, dict):
            return
        for kind, read in _READ.items():
            if kind in ours:
                form = _Form(self.walk, ours[kind], ("args", "tilegrad", kind))
                place = form.count("at")
                if place in self.found[kind]:
                    form.fail("at", f"two of the place {place}")
                self.found[kind][place] = read(form)

    def whole(self, kind: str, count: int) -> tuple[Any, ...]:
        found = self.found[kind]
        if len(found) != count or (found and max(found) != count - 1):
            what = f"{len(found)} records '{kind}' where there should be {count}, one for each place"
            raise FormatError(what, where=self.walk.name, hint="is the file whole?")
        return tuple(found[place] for place in range(count))


class _Form(JsonTable):
    def text(self, key: str, default: str | None = None) -> str:
        return self.take(key, lambda v: isinstance(v, str), "text", default)

    def truth(self, key: str, default: bool | None = None) -> bool:
        return self.take(key, lambda v: isinstance(v, bool), "true or false", default)

    def count(self, key: str) -> int:
        return self.take(key, lambda v: type(v) is int and 0 <= v < _MOST, f"number from 0 to {_MOST}")

    def whole(self, key: str) -> int:
        return self.take(key, lambda v: type(v) is int, "whole number")

    def maybe_whole(self, key: str) -> int | None:
        return self.take(key, lambda v: v is None or type(v) is int, "whole number")

    def texts(self, key: str) -> list[str]:
        return self.take(key, lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v), "list of texts", [])

    def numbers(self, key: str) -> list[float]:
        def good(value: Any) -> bool:
            return isinstance(value, list) and all(type(number) in (int, float) for number in value)

        return [_seconds(number) for number in self.take(key, good, "list of numbers", [])]

    def table(self, key: str) -> dict[str, Any]:
        return self.take(key, lambda v: isinstance(v, dict), "object", {})

    def span(self, key: str) -> Span | None:
        if self.raw.get(key) is None:
            return None
        moments = self.numbers(key)
        if len(moments) not in (2, 3):
            self.fail(key, f"no start, end and perhaps begin of the kernel, but {len(moments)} numbers")
        return Span(*moments)

    def shapes(self, key: str) -> tuple[Shape, ...]:
        def good(value: Any) -> bool:
            return isinstance(value, list) and all(
                isinstance(s, list) and all(type(n) is int for n in s) for s in value
            )

        return tuple(map(tuple, self.take(key, good, "list of shapes", [])))


def _seconds(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf")  # which check_profile refuses


def _read_operator(form: _Form) -> Operator:
    phase = form.raw.get("phase")
    if phase is not None and phase not in tuple(Phase):
        form.fail("phase", f"no phase is called {repr(phase)[:60]}")
    return Operator(
        id=form.text("id"),
        name=form.text("name"),
        type=form.text("type"),
        host=form.span("host"),
        thread=form.text("thread", ""),
        device=form.span("device"),
        stream=form.text("stream", ""),
        flops=form.maybe_whole("flops"),
        bytes=form.maybe_whole("bytes"),
        in_shapes=form.shapes("in_shapes"),
        out_shapes=form.shapes("out_shapes"),
        reads=tuple(form.texts("reads")),
        writes=tuple(form.texts("writes")),
        attrs=form.table("attrs"),
        module=form.text("module", ""),
        phase=None if phase is None else Phase(phase),
        kernel=form.text("kernel", ""),
        source=form.text("source", ""),
    )


def _read_block(form: _Form) -> Block:
    kind = form.raw.get("kind", "unknown")
    if kind not in tuple(BlockKind):
        form.fail("kind", f"no kind of memory is called {repr(kind)[:60]}")
    return Block(
        name=form.text("name"),
        bytes=form.whole("bytes"),
        start=form.whole("start"),
        stop=form.whole("stop"),
        kind=BlockKind(kind),
        address=form.maybe_whole("address"),
        device=form.text("device", ""),
        maker=form.maybe_whole("maker"),
        owned=form.truth("owned", True),
    )


def _join_clock(records: _Records, ticks: int, walk: JsonWalk) -> tuple[float, ...]:
    parts = sorted(records.found["clock"].items())
    clock: list[float] = []
    for first, seconds in parts:
        if first != len(clock):
            raise FormatError(f"no times from tick {len(clock)} on", where=walk.name, hint="is the file whole?")
        clock += seconds
    if len(clock) != ticks:
        what = f"times of {len(clock)} ticks where there should be {ticks}"
        raise FormatError(what, where=walk.name, hint="is the file whole?")
    return tuple(clock)


_READ: dict[str, Callable[[_Form], Any]] = {
    "operator": _read_operator,
    "idle": _read_operator,
    "block": _read_block,
    "clock": lambda form: form.numbers("seconds"),
}
