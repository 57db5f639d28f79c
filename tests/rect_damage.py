"""Drawings for tests: any graph in the form of the scanned one, and damage as scanners do it; and which are alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tilegrad.ir import Graph, Node, Value
from tilegrad.rects.step import arrays, dists_of, held_of, inputs_of, outputs_of, result_dim
from tilegrad.region import Box

_ALIKE = ("0O", "1lI", "5S", "8B")
_OTHERS = {c: [other for other in group if other != c] for group in _ALIKE for c in group}


def content(graph: Graph) -> tuple[Any, ...]:
    """What makes graphs the same step: values and nodes, in whatever order, under whatever name and however known."""
    nodes = {
        n.name: (n.op, n.inputs, n.outputs, n.phase, {k: v for k, v in n.attrs.items() if k != "evidence"})
        for n in graph.nodes
    }
    return graph.value, nodes, set(graph.outputs), set(graph.updates)


def draw(graph: Graph) -> str:
    """A clean drawing: bands of arrays and of operators, with rows of labels between."""
    return "\n".join(_draw(graph)) + "\n"


def _draw(graph: Graph) -> Iterator[str]:
    drawn: set[str] = set()
    for node in graph.nodes:
        if node.op == "set_zero":
            continue
        reads, writes = inputs_of(graph, node), outputs_of(graph, node)
        for array in (array for array in reads.values() if array.name not in drawn):
            drawn.add(array.name)
            yield from _array(array)
        if reads:
            yield " ".join(f"->{port}" for port in reads)
        yield from _operator(node, graph)
        if writes:
            yield " ".join(f"{port}->" for port in writes)
    for array in arrays(graph):
        if array.name not in drawn:
            yield from _array(array)
    for node in graph.nodes:
        if node.op == "set_zero":
            yield node.name


def _array(array: Value) -> Iterator[str]:
    held = held_of(array)
    yield array.name
    yield f"dim={_dim(array.type.shape)}"
    yield f"read_rect={_rect(held.read)}"
    yield f"write_rect={None if held.write is None else _rect(held.write)}"


def _operator(node: Node, graph: Graph) -> Iterator[str]:
    yield node.name
    if node.op not in ("linear", "linear_grad"):
        yield f"result_dim={_dim(result_dim(graph, node))}"
    for key, rect in dists_of(node).items():
        yield f"{key}={_rect(rect)}"
    if node.op == "source":
        yield f"dist_result={_rect(held_of(outputs_of(graph, node)['raw_data']).write or Box(()))}"


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
