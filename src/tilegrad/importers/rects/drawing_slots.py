"""Dims and rects of a scanned drawing: each is printed several times over, and the copies vote.

Which dims and rects must be equal is not listed here: the step is built for several sizes and workers, and slots that
are equal in all of them are copies of one number. What a copy says is taken where most agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from typing import Any

from ...errors import FormatError
from ...ir import Graph, Node
from ...rects import KINDS, training_step
from ...rects.step import arrays, dists_of, held_of, listed, outputs_of, result_dim, show
from ...rects.system import Gain
from ...region import Box
from .drawing_text import DIM_KEYS, TextField

Slot = tuple[str, str]  # node, key
Note = Callable[[int, str, str, str], None]  # line, read, taken for, why
_MOST_SIDE_BY_SIDE = 6


@lru_cache(maxsize=8)
def template(layers: int, gain: Gain = "a*(x+b)") -> Graph:
    """A step with so many layers: the nodes and ports that a drawing must have; sizes are of no importance."""
    return _probes(layers, gain)[0]


@lru_cache(maxsize=8)
def _probes(layers: int, gain: Gain = "a*(x+b)") -> tuple[Graph, ...]:
    found: list[Graph] = []
    for batch, extra, classes, workers in ((5, 37, 101, (3, 2)), (7, 53, 211, (2, 3))):
        stack = [((2 + at % 3, 3 + at % 4), 11 + 6 * at + batch) for at in range(layers)]
        image = (extra + sum(k[0] for k, _ in stack), 2 * extra + 3 + sum(k[1] for k, _ in stack))
        found += training_step(
            batch=batch, image=image, channels=batch - 2, layers=stack, classes=classes, gain=gain, workers=workers
        )
    return tuple(found)


def names_of(graph: Graph) -> tuple[str, ...]:
    """Of all that a drawing shows: arrays and operators."""
    return (*(array.name for array in arrays(graph)), *graph.node)


def keys_of(node: Node) -> tuple[str, ...]:
    """What a drawing prints of an operator."""
    if node.op == "source":
        return ("result_dim", "dist_result")
    if node.op == "set_zero":
        return ()
    return (*(() if node.op in ("linear", "linear_grad") else ("result_dim",)), *KINDS[node.op].dists)


def slots_of(graph: Graph) -> Iterator[Slot]:
    for array in arrays(graph):
        yield from ((array.name, key) for key in ("dim", "read_rect", "write_rect"))
    for node in graph.nodes:
        yield from ((node.name, key) for key in keys_of(node))


@lru_cache(maxsize=8)
def copies(layers: int) -> dict[Slot, int]:
    """For every slot the number of its class: slots of one class are always equal."""
    numbers: dict[Any, int] = {}
    probes = _probes(layers)
    found = {}
    for slot in slots_of(probes[0]):
        values = tuple(_value(graph, slot) for graph in probes)
        found[slot] = numbers.setdefault((slot[1] in DIM_KEYS, values), len(numbers))
    return found


def _value(graph: Graph, slot: Slot) -> Any:
    name, key = slot
    if (array := graph.value.get(name)) is not None:
        held = held_of(array)
        return array.type.shape if key == "dim" else held.read if key == "read_rect" else held.write
    node = graph.node[name]
    if node.op == "source" and key == "dist_result":  # the same as its array's, which is why the graph has it once
        return held_of(outputs_of(graph, node)["raw_data"]).write
    return result_dim(graph, node) if key == "result_dim" else dists_of(node)[key]


@dataclass
class Band:
    """Nodes and fields between two rows of labels, in the order of the text."""

    nodes: list[str] = field(default_factory=list)
    fields: list[TextField] = field(default_factory=list)


def place_fields(bands: Sequence[Band], graph: Graph, kinds: dict[Slot, int], file: str) -> dict[Slot, TextField]:
    """Which node each field belongs to: first by the order of the text, then by what copies elsewhere say."""
    wanted = set(slots_of(graph))
    placed: dict[Slot, TextField] = {}
    for _ in range(2):
        votes: dict[int, Counter[Any]] = {}
        for slot, read in placed.items():
            if read.end:
                votes.setdefault(kinds[slot], Counter())[read.begin, read.end] += 1
        believed = {kind: "".join(map(str, count.most_common(1)[0][0][1])) for kind, count in votes.items()}
        again: dict[Slot, TextField] = {}
        for band in bands:
            for key in dict.fromkeys(f.key for f in band.fields):
                fields = [f for f in band.fields if f.key == key]
                nodes = [name for name in band.nodes if (name, key) in wanted]
                if len(fields) > len(nodes):
                    what = f"{len(fields)} times '{key}', but {len(nodes)} nodes here that have it"
                    raise FormatError(what, where=f"{file}:{fields[-1].line}", hint="a name that cannot be read?")
                goal = [believed.get(kinds[name, key]) for name in nodes]
                first = [again.get((name, "dim")) or again.get((name, "result_dim")) for name in nodes]
                for node, found in zip(nodes, _order(fields, goal, first), strict=True):
                    if found is not None:
                        again[node, key] = found
        placed = again
    return placed


def _order(fields: list[TextField], goal: list[str | None], first: list[TextField | None]) -> list[TextField | None]:
    """Fields in the order of the nodes, which is that of the text unless another fits better."""
    padded: list[TextField | None] = [*fields, *([None] * (len(goal) - len(fields)))]
    if len(goal) > _MOST_SIDE_BY_SIDE:
        return padded

    def score(order: Iterable[TextField | None]) -> int:
        points = 0
        for found, digits, size in zip(order, goal, first, strict=True):
            if found is not None:
                points += 2 * (digits == found.digits)
                points += size is not None and size.digits == found.digits
        return points

    return list(max(permutations(padded), key=score))  # the first of the best


@dataclass
class Ballot:
    """Fields in their slots, and the copies among them."""

    placed: dict[Slot, TextField]
    graph: Graph
    kinds: dict[Slot, int]
    lines: dict[str, int]  # of every node that is found
    file: str

    def resolve(self, note: Note) -> dict[Slot, Any]:
        """The value of every slot: dims as tuples, rects as boxes."""
        values: dict[Slot, Any] = {}
        for dims in (False, True):  # rects tell the ranks of dims
            found: dict[int, Any] = {}
            for slot in slots_of(self.graph):
                if (slot[1] in DIM_KEYS) is dims:
                    kind = self.kinds[slot]
                    if kind not in found:
                        same = [other for other in self.kinds if self.kinds[other] == kind]
                        found[kind] = self.dim(slot, same, values) if dims else self.rect(slot, same)
                    values[slot] = found[kind]
        for slot, value in values.items():
            self.report(slot, value, note)
        return values

    def error(self, slot: Slot, what: str, hint: str | None = None) -> FormatError:
        return FormatError(f"{slot[1]} of {slot[0]} {what}", where=f"{self.file}:{self.lines[slot[0]]}", hint=hint)

    def rect(self, slot: Slot, same: list[Slot]) -> Box | None:
        none = _value(self.graph, slot) is None
        votes: Counter[Any] = Counter()
        for other in same:
            if (found := self.placed.get(other)) is None:
                continue
            if none != (found.end is None):
                what = f"'{found.raw[:60]}': {other[0]} must {'not ' if none else ''}have a {other[1]}"
                raise FormatError(what, where=f"{self.file}:{found.line}")
            if found.begin and found.end and len(found.begin) == len(found.end):
                votes[found.begin, found.end] += 1
        return None if none else Box(zip(*self.winner(votes, slot), strict=True))

    def dim(self, slot: Slot, same: list[Slot], values: dict[Slot, Any]) -> Any:
        rects = [values.get((name, key)) for name, _ in same for key in ("read_rect", "write_rect")]
        ends = [tuple(side.hi for side in rect) for rect in rects if rect is not None]
        votes: Counter[Any] = Counter()
        for found in (self.placed[other] for other in same if other in self.placed):
            if not found.end:
                continue
            by_digits = next((end for end in ends if "".join(map(str, end)) == found.digits), None)
            if not ends or len(found.end) in map(len, ends):
                votes[found.end] += 1
            elif by_digits is not None:  # spaces are lost, but the digits are those of a rect
                votes[by_digits] += 1
        if not votes and ends:
            votes[max(ends)] += 1
        return self.winner(votes, slot)

    def winner(self, votes: Counter[Any], slot: Slot) -> Any:
        """What most copies say. A copy that says something quite different is no slip of the scanner."""
        if not votes:
            raise self.error(slot, "cannot be read, nor any copy of it", "scan it again")
        (best, most), *others = votes.most_common()
        for other, times in others:
            if times == most or _differ(best, other) > 1:
                raise self.error(slot, f"is {_flat(best)} and also {_flat(other)}")
        return best

    def report(self, slot: Slot, value: Any, note: Note) -> None:
        name, key = slot
        if value is None:
            return
        rect, found = listed(value) if isinstance(value, Box) else None, self.placed.get(slot)
        shown = f"{key}={show(value) if rect is None else ' to '.join(map(show, rect))}"
        if found is None:
            note(self.lines[name], "", shown, f"{name}: not found; taken from its copies and rects")
            return
        value, read = (
            (list(value), list(found.end or ())) if rect is None else map(_flat, (rect, (found.begin, found.end)))
        )
        if value != read:
            alike = "".join(map(str, value)) == "".join(map(str, read))
            why = "spaces are lost: the digits are those of its rects" if alike else "its copies and rects say so"
            note(found.line, found.raw, shown, f"{name}: {why}")
        elif found.letters:
            note(found.line, found.raw, shown, f"{name}: letters among digits")


def _flat(value: Any) -> list[int]:
    return list(value) if isinstance(value[0], int) else [*value[0], *value[1]]


def _differ(one: Any, other: Any) -> int:
    a, b = _flat(one), _flat(other)
    return sum(x != y for x, y in zip(a, b, strict=True)) if len(a) == len(b) else max(len(a), len(b))
