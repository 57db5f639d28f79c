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
from typing import Any, Literal

from ...errors import FormatError
from ...ir import Graph, Node
from ...rects import KINDS, Gain, arrays, dists_of, held_of, outputs_of, result_dim, training_step
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
        kind: Literal["dim", "rect"] = "dim" if slot[1] in DIM_KEYS else "rect"
        found[slot] = numbers.setdefault((kind, values), len(numbers))
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
        believed = {kind: votes.most_common(1)[0][0] for kind, votes in _votes(placed, kinds).items()}
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


def _order(fields: list[TextField], goal: list[Any], first: list[TextField | None]) -> list[TextField | None]:
    """Fields in the order of the nodes, which is that of the text unless another fits better."""
    padded: list[TextField | None] = [*fields, *([None] * (len(goal) - len(fields)))]
    if len(goal) > _MOST_SIDE_BY_SIDE:
        return padded

    def score(order: Iterable[TextField | None]) -> int:
        points = 0
        for found, value, size in zip(order, goal, first, strict=True):
            if found is not None:
                points += 2 * (value is not None and _digits(value) == found.digits)
                points += size is not None and size.digits == found.digits
        return points

    return list(max(permutations(padded), key=score))  # the first of the best


def _digits(value: Any) -> str:
    return "".join(map(str, value[-1] if isinstance(value[0], tuple) else value))


def _votes(placed: dict[Slot, TextField], kinds: dict[Slot, int]) -> dict[int, Counter[Any]]:
    votes: dict[int, Counter[Any]] = {}
    for slot, found in placed.items():
        if found.end:
            value = found.end if found.begin is None else (found.begin, found.end)
            votes.setdefault(kinds[slot], Counter())[value] += 1
    return votes


def resolve(
    placed: dict[Slot, TextField],
    graph: Graph,
    kinds: dict[Slot, int],
    lines: dict[str, int],
    file: str,
    note: Note,
) -> dict[Slot, Any]:
    """The value of every slot: dims as tuples, rects as boxes."""
    rects: dict[int, Box | None] = {}
    for slot in slots_of(graph):
        if slot[1] not in DIM_KEYS and kinds[slot] not in rects:
            rects[kinds[slot]] = _vote_rect(slot, placed, kinds, graph, lines, file)
    values: dict[Slot, Any] = {slot: rects[kinds[slot]] for slot in slots_of(graph) if slot[1] not in DIM_KEYS}
    dims: dict[int, tuple[int, ...]] = {}
    for slot in slots_of(graph):
        if slot[1] in DIM_KEYS and kinds[slot] not in dims:
            dims[kinds[slot]] = _vote_dim(slot, placed, kinds, values, lines, file)
    values |= {slot: dims[kinds[slot]] for slot in slots_of(graph) if slot[1] in DIM_KEYS}
    for slot, value in values.items():
        _report(slot, value, placed.get(slot), lines, note)
    return values


def _vote_rect(
    slot: Slot,
    placed: dict[Slot, TextField],
    kinds: dict[Slot, int],
    graph: Graph,
    lines: dict[str, int],
    file: str,
) -> Box | None:
    same = [other for other in kinds if kinds[other] == kinds[slot] and other in placed]
    where = f"{file}:{lines[slot[0]]}"
    none = _value(graph, slot) is None
    votes: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for other in same:
        found = placed[other]
        if none != (found.end is None):
            what = f"'{found.raw[:60]}': {other[0]} must {'not ' if none else ''}have a {other[1]}"
            raise FormatError(what, where=f"{file}:{found.line}")
        if found.begin and found.end and len(found.begin) == len(found.end):
            votes[found.begin, found.end] += 1
    if none:
        return None
    begin, end = _winner(votes, slot, where)
    if any(lo > hi for lo, hi in zip(begin, end, strict=True)):
        raise FormatError(f"{slot[1]} of {slot[0]} runs backward", where=where)
    return Box(zip(begin, end, strict=True))


def _winner(votes: Counter[Any], slot: Slot, where: str) -> Any:
    """What most copies say. A copy that says something quite different is no slip of the scanner."""
    ranked = votes.most_common()
    if not ranked:
        raise FormatError(
            f"{slot[1]} of {slot[0]} cannot be read, nor any copy of it", where=where, hint="scan it again"
        )
    best = ranked[0][0]
    for other, times in ranked[1:]:
        if times == ranked[0][1] or _differ(best, other) > 1:
            raise FormatError(f"{slot[1]} of {slot[0]} is {_flat(best)} and also {_flat(other)}", where=where)
    return best


def _flat(value: Any) -> list[int]:
    return [*value[0], *value[1]] if isinstance(value[0], tuple) else list(value)


def _differ(one: Any, other: Any) -> int:
    a, b = _flat(one), _flat(other)
    return sum(x != y for x, y in zip(a, b, strict=True)) if len(a) == len(b) else max(len(a), len(b))


def _vote_dim(
    slot: Slot,
    placed: dict[Slot, TextField],
    kinds: dict[Slot, int],
    values: dict[Slot, Any],
    lines: dict[str, int],
    file: str,
) -> tuple[int, ...]:
    same = [other for other in kinds if kinds[other] == kinds[slot]]
    ends = [tuple(side.hi for side in rect) for name, _ in same for rect in _rects(name, values)]
    ranks = {len(end) for end in ends}
    votes: Counter[tuple[int, ...]] = Counter()
    for other in same:
        found = placed.get(other)
        if found is None or not found.end:
            continue
        by_digits = next((end for end in ends if "".join(map(str, end)) == found.digits), None)
        if not ranks or len(found.end) in ranks:
            votes[found.end] += 1
        elif by_digits is not None:  # spaces are lost, but the digits are those of a rect
            votes[by_digits] += 1
    where = f"{file}:{lines[slot[0]]}"
    if not votes and ends:
        votes[max(ends)] += 1
    dim: tuple[int, ...] = _winner(votes, slot, where)
    for end in ends:
        if len(end) != len(dim) or any(hi > n for hi, n in zip(end, dim, strict=True)):
            raise FormatError(
                f"{slot[1]} of {slot[0]} is {list(dim)}, but a rect of it ends at {list(end)}", where=where
            )
    return dim


def _rects(name: str, values: dict[Slot, Any]) -> Iterator[Box]:
    """The rects of an array, which tell its rank."""
    for key in ("read_rect", "write_rect"):
        if (rect := values.get((name, key))) is not None:
            yield rect


def _report(slot: Slot, value: Any, found: TextField | None, lines: dict[str, int], note: Note) -> None:
    if value is None:
        return
    shown = f"{slot[1]}={show(value)}"
    if found is None:
        note(lines[slot[0]], "", shown, f"{slot[0]}: not found; taken from its copies and rects")
        return
    read: Any = found.end
    if isinstance(value, Box):
        value, read = _flat((tuple(s.lo for s in value), tuple(s.hi for s in value))), _flat((found.begin, found.end))
    if list(value) != list(read):
        alike = "".join(map(str, value)) == "".join(map(str, read))
        why = "spaces are lost: the digits are those of its rects" if alike else "its copies and rects say so"
        note(found.line, found.raw, shown, f"{slot[0]}: {why}")
    elif found.letters:
        note(found.line, found.raw, shown, f"{slot[0]}: letters among digits")


def show(value: Any) -> str:
    if isinstance(value, Box):
        return f"[{' '.join(str(s.lo) for s in value)}] to [{' '.join(str(s.hi) for s in value)}]"
    return f"[{' '.join(map(str, value))}]"
