"""A schedule as text, every step of it, and back. A line is a step; the steps of an island are indented.

    schedule stream, halos on device
    island 0:0 whole weight,bias
      load x 0:1,0:3,0:9,0:16
      compute conv2d 0:1,0:8,0:8,0:16 reads 0:1,0:3,-1:9,-1:17 0:8,0:3,0:3,0:3 0:8
      join conv2d own 0:1,0:8,0:8,0:16 held 0:1,0:8,0:8,0:16 gives 0 2 0:1,0:8,6:8,0:16 0:1
      store conv2d 0:1,0:8,0:8,0:16
    run 0:0 keep
    turn
    backward 0:0

Rule N1  What `format_schedule` writes, `parse_schedule` reads as a schedule with equal islands and steps.
Rule N2  What is read is checked like what is planned: unknown steps, stores, islands and names are said by line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise

from ..errors import FormatError
from ..ir import Graph
from ..region import Box
from .island import Island
from .phase import TilePhase
from .rules import check_schedule
from .schedule import Islands, Schedule, Seat, Storage
from .steps import (
    Backward,
    Compute,
    Exchange,
    Finish,
    Fold,
    Free,
    Halo,
    IslandStep,
    Join,
    Load,
    Move,
    Run,
    ScheduleStep,
    Store,
    Strip,
    Sum,
    Turn,
)

# -- writing -----------------------------------------------------------------------------------------------------------


def format_schedule(schedule: Schedule, known: Container[str] = ()) -> str:
    """Islands before their first use, without those that the reader has anyway."""
    lines = [_line("schedule", schedule.mode, "halos", str(schedule.storage))]
    lines += _format_seat(schedule.seat) if schedule.seat is not None else []
    told = set[str]()
    for step in schedule.steps:
        if isinstance(step, Run | Backward) and step.island not in told and step.island not in known:
            told.add(step.island)
            lines += _format_island(schedule.islands[step.island])
        lines.append(_format_step(step))
    return "\n".join(lines) + "\n"


def _line(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words if word)


def _names(names: Iterable[str]) -> str:
    return ",".join(names)


def _format_seat(seat: Seat) -> list[str]:
    named = (("mute", seat.mute), ("tail", seat.tail), ("shared", seat.shared), ("along", seat.axes))
    words = [word for kind, names in named if names for word in (kind, _names(sorted(names)))]
    lines = [_line("rank", str(seat.rank), *words, "is", *map(str, seat.place))]
    lines += [_line("owns", name, box.text, "holds", seat.regions[name].text) for name, box in seat.owned.items()]
    return lines


def _format_island(island: Island) -> list[str]:
    words = ["island", island.name, "whole", _names(sorted(island.whole)) or "-"]
    if island.refers is not None:
        words += ["refers", _names(sorted(island.refers)) or "-"]
    return [_line(*words), *(f"  {_format_island_step(step)}" for step in island.steps)]


def _format_island_step(step: IslandStep) -> str:
    match step:
        case Load(value=value, box=box, share=share):
            return _line("load", value, box.text, *(["share", share.text] if share is not None else []))
        case Compute(node=node, out=out, reads=reads, answers=answers):
            more = ["answers", *(box.text for box in answers)] if answers is not None else []
            return _line("compute", node, out.text, "reads", *(box.text for box in reads), *more)
        case Join(value=value, own=own, held=held, receives=receives, gives=gives):
            halos = [word for kind, each in (("takes", receives), ("gives", gives)) for h in each for word in
                     (kind, str(h.axis), str(h.dim), h.box.text, h.peer)]  # fmt: skip
            return _line("join", value, "own", own.text, "held", held.text, *halos)
        case Store(value=value, box=box):
            return _line("store", value, box.text)
        case Fold(node=node, box=box):
            return _line("fold", node, box.text)
        case Free(value=value):
            return _line("free", value)


def _format_step(step: ScheduleStep) -> str:
    match step:
        case Run(island=name, keep=keep):
            return _line("run", name, "keep" if keep else "")
        case Backward(island=name):
            return _line("backward", name)
        case Finish(node=name, axes=axes, parts=parts):
            ranks = ["axes", _names(sorted(axes)) or "-", "parts", *(box.text for box in parts)] if parts else []
            return _line("finish", name, *ranks)
        case Turn():
            return "turn"
        case Free(value=value):
            return _line("free", value)
        case Move(value=value, store=store):
            return _line("move", value, str(store))
        case Exchange(values=values, gives=gives, takes=takes, gradient=gradient):
            strips = [word for kind, each in (("gives", gives), ("takes", takes)) for s in each for word in
                      (kind, s.value, s.box.text, str(s.rank))]  # fmt: skip
            return _line("exchange", _names(values), *strips, "gradient" if gradient else "")
        case Sum(value=value, axes=axes, later=later, first=first):
            when, whose = "later" if later else "", "first" if first else ""
            return _line("sum", value, _names(sorted(axes)) or "-", when, whose)


# -- reading -----------------------------------------------------------------------------------------------------------


class _Words:
    """The words of one line, taken one by one."""

    def __init__(self, words: Sequence[str], where: str):
        self.words, self.where = list(words), where

    def fail(self, what: str) -> FormatError:
        return FormatError(what, where=self.where, hint="a schedule as format_schedule writes it")

    def take(self, what: str) -> str:
        if not self.words:
            raise self.fail(f"{what} is missing")
        return self.words.pop(0)

    def word(self, *allowed: str) -> str:
        found = self.take(" or ".join(allowed))
        if found not in allowed:
            raise self.fail(f"'{found}' where {' or '.join(allowed)} was due")
        return found

    def next_is(self, word: str) -> bool:
        if self.words[:1] == [word]:
            self.words.pop(0)
            return True
        return False

    def number(self, what: str) -> int:
        found = self.take(what)
        if not found.isdecimal() or len(found) > 18:
            raise self.fail(f"'{found}' is no number")
        return int(found)

    def box(self) -> Box:
        found = self.take("a box")
        try:
            return Box.parse(found)
        except ValueError:
            raise self.fail(f"'{found}' is no box") from None

    def boxes(self) -> tuple[Box, ...]:
        found = []
        while self.words and (self.words[0] == "-" or ":" in self.words[0]):
            found.append(self.box())
        return tuple(found)

    def names(self) -> tuple[str, ...]:
        found = self.take("names")
        return () if found == "-" else tuple(found.split(","))

    def end(self) -> None:
        if self.words:
            raise self.fail(f"'{self.words[0]}' is too much")


def parse_schedule(
    text: str, graph: Graph, stores: Sequence[str] = Storage.ALL, phases: tuple[TilePhase, ...] = ()
) -> Schedule:
    """Read and check: a `FormatError` names the line, an `InternalError` the rule that is broken. `phases`: whose
    islands the text does not tell."""
    lines = [(at, line) for at, line in enumerate(text.splitlines(), start=1) if line.strip()]
    mode, storage, seat, islands = "", Storage.DEVICE, _SeatLines(), dict[str, Island]()
    steps: list[ScheduleStep] = []
    inside: list[IslandStep] = []
    for (at, line), (_, following) in pairwise([*lines, (0, "")]):
        words = _split(line, at)
        if line.startswith(" "):
            inside.append(_island_step(words, graph))
        else:
            match words.word("schedule", "rank", "owns", "island", *_STEPS):
                case "schedule":
                    mode, _ = words.take("a mode"), words.word("halos")
                    storage = words.word(*stores)
                case "rank" | "owns" as kind:
                    seat.read(kind, words)
                case "island":
                    name, whole, refers = _island_head(words)
                    inside = []
                    islands[name] = Island(name, (), whole, refers)
                case kind:
                    steps.append(_STEPS[kind](words))
                    if isinstance(steps[-1], Move) and steps[-1].store not in stores:
                        raise words.fail(f"there is no store '{steps[-1].store}'")
        words.end()
        if line.startswith((" ", "island")) and not following.startswith(" ") and islands:
            last = next(reversed(islands))
            islands[last] = Island(last, tuple(inside), islands[last].whole, islands[last].refers)
    if not mode:
        raise FormatError("this is no schedule", where="line 1", hint="its first line says: schedule MODE halos STORE")
    tiles = Islands(phases)
    found = Schedule(
        graph,
        mode,
        phases,
        storage,
        steps=tuple(steps),
        islands={**tiles, **islands} if islands else tiles,
        seat=seat.seat(),
    )
    check_schedule(found)
    return found


def _split(line: str, at: int) -> _Words:
    try:
        return _Words(shlex.split(line), f"line {at}: {line.strip()[:80]}")
    except ValueError as error:
        raise FormatError(f"cannot be read: {error}", where=f"line {at}") from None


class _SeatLines:
    def __init__(self) -> None:
        self.rank: int | None = None
        self.mute = self.tail = self.shared = self.along = frozenset[str]()
        self.place = 0, 1
        self.owned: dict[str, Box] = {}
        self.regions: dict[str, Box] = {}

    def read(self, kind: str, words: _Words) -> None:
        if kind == "rank":
            self.rank = words.number("a rank")
            kinds = ("mute", "tail", "shared", "along")
            found = (frozenset(words.names() if words.next_is(kind) else ()) for kind in kinds)
            self.mute, self.tail, self.shared, self.along = found
            self.place = (words.number("a place"), words.number("a count")) if words.next_is("is") else (0, 1)
            return
        name = words.take("a value")
        self.owned[name], _, self.regions[name] = words.box(), words.word("holds"), words.box()

    def seat(self) -> Seat | None:
        if self.rank is None:
            return None
        return Seat(
            self.rank, self.owned, self.regions, self.mute, self.tail, self.shared, self.along, self.place
        )  # fmt: skip


def _island_head(words: _Words) -> tuple[str, frozenset[str], frozenset[str] | None]:
    name, _ = words.take("a name"), words.word("whole")
    whole = frozenset(words.names())
    return name, whole, frozenset(words.names()) if words.next_is("refers") else None


def _island_step(words: _Words, graph: Graph) -> IslandStep:
    kind = words.word("load", "compute", "join", "store", "fold", "free")
    name = words.take("a name")
    known = graph.node if kind in ("compute", "fold") else graph.value
    if name not in known:
        raise words.fail(f"the graph has no '{name}'")
    match kind:
        case "load":
            return Load(name, words.box(), words.box() if words.next_is("share") else None)
        case "compute":
            out, _ = words.box(), words.word("reads")
            reads = words.boxes()
            if len(reads) != len(graph.node[name].reads):
                raise words.fail(f"'{name}' reads {len(graph.node[name].reads)} values")
            return Compute(name, out, reads, words.boxes() if words.next_is("answers") else None)
        case "join":
            return _join(name, words)
        case "store":
            return Store(name, words.box())
        case "fold":
            return Fold(name, words.box())
    return Free(name)


def _join(value: str, words: _Words) -> Join:
    words.word("own")
    own, _, held = words.box(), words.word("held"), words.box()
    halos: dict[str, list[Halo]] = {"takes": [], "gives": []}
    while words.words:
        kind = words.word("takes", "gives")
        axis, dim, box, peer = words.number("an axis"), words.number("a dimension"), words.box(), words.take("a peer")
        halos[kind].append(Halo(axis, dim, box, peer))
    return Join(value, own, held, tuple(halos["takes"]), tuple(halos["gives"]))


def _finish(words: _Words) -> Finish:
    name = words.take("a node")
    if not words.next_is("axes"):
        return Finish(name)
    axes, _ = frozenset(words.names()), words.word("parts")
    return Finish(name, axes, words.boxes())


def _exchange(words: _Words) -> Exchange:
    values, strips = words.names(), {"gives": list[Strip](), "takes": list[Strip]()}
    while words.words and words.words[0] != "gradient":
        kind = words.word("gives", "takes")
        strips[kind].append(Strip(words.take("a value"), words.box(), words.number("a rank")))
    return Exchange(values, tuple(strips["gives"]), tuple(strips["takes"]), words.next_is("gradient"))


_STEPS: dict[str, Callable[[_Words], ScheduleStep]] = {
    "run": lambda words: Run(words.take("an island"), words.next_is("keep")),
    "backward": lambda words: Backward(words.take("an island")),
    "finish": _finish,
    "turn": lambda words: Turn(),
    "free": lambda words: Free(words.take("a value")),
    "move": lambda words: Move(words.take("a value"), words.take("a store")),
    "exchange": _exchange,
    "sum": lambda words: Sum(
        words.take("a value"), frozenset(words.names()), words.next_is("later"), words.next_is("first")
    ),
}
