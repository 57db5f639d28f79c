"""Drawings for tests: any graph in the form of the scanned one, and damage as scanners do it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tilegrad.rects import Array, RectGraph, RectOperator
from tilegrad.region import Box

_ALIKE = ("0O", "1lI", "5S", "8B")
_OTHERS = {c: [other for other in group if other != c] for group in _ALIKE for c in group}


def draw(graph: RectGraph) -> str:
    """A clean drawing: bands of arrays and of operators, with rows of labels between."""
    return "\n".join(_draw(graph)) + "\n"


def _draw(graph: RectGraph) -> Iterator[str]:
    drawn: set[str] = set()
    for op in graph.operators:
        if op.kind == "set_zero":
            continue
        for array in (graph.array[name] for name in op.inputs.values() if name not in drawn):
            drawn.add(array.name)
            yield from _array(array)
        if op.inputs:
            yield " ".join(f"->{port}" for port in op.inputs)
        yield from _operator(op, graph)
        if op.outputs:
            yield " ".join(f"{port}->" for port in op.outputs)
    for array in graph.arrays:
        if array.name not in drawn:
            yield from _array(array)
    for op in graph.operators:
        if op.kind == "set_zero":
            yield op.name


def _array(array: Array) -> Iterator[str]:
    yield array.name
    yield f"dim={_dim(array.dim)}"
    yield f"read_rect={_rect(array.read_rect)}"
    yield f"write_rect={None if array.write_rect is None else _rect(array.write_rect)}"


def _operator(op: RectOperator, graph: RectGraph) -> Iterator[str]:
    yield op.name
    if op.result_dim is not None and op.kind != "linear":
        yield f"result_dim={_dim(op.result_dim)}"
    for key, rect in op.dists.items():
        yield f"{key}={_rect(rect)}"
    if op.kind == "source":
        yield f"dist_result={_rect(graph.array[op.outputs['raw_data']].write_rect or Box(()))}"


def _dim(dim: tuple[int, ...]) -> str:
    return "[" + " ".join(map(str, dim)) + "]"


def _rect(rect: Box) -> str:
    begin, end = ([side[at] for side in rect] for at in (0, 1))
    return f"Rect(array({begin}, dtype=int32), array({end}, dtype=int32))"


def damage(text: str, rate: float, seed: int) -> str:
    """Look-alikes for each other anywhere, and lost or doubled spaces inside brackets."""
    rng = random.Random(seed)
    out = []
    inside = False
    for c in text:
        inside = c == "[" or (inside and c not in "]\n")
        if c in _OTHERS and rng.random() < rate:
            c = rng.choice(_OTHERS[c])
        elif c == " " and inside and rng.random() < rate:
            c = rng.choice(("", "  "))
        out.append(c)
    return "".join(out)
