"""What makes a graph a legal step in rects, one rule each, beside those of every graph.

Rule T1  Names are unique, over arrays and operators together.
Rule T2  The kind of every operator is known; it has the ports of its kind, and the rects.
Rule T3  Dims are 1 or more; a rect of an operator lies inside the array it is a part of.
Rule T4  Params are updated in place, by one operator, and have no box that is written; everything else has one.
         Gradients are set to zero and then added to, by `*.delta` ports; nothing else is.
Rule T5  A gradient is called `x.grad`, where x is an array, and has the dim of x.
Rule T6  Dims fit: those of filters to input and output (valid, stride 1), elementwise ones are equal, and so on.
Rule T7  An operator's rects are those of its arrays: what it writes is the box that is written, what it reads is inside
         the box that is read; the params, the gradient and the update of the params have one rect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..ir import Graph, Kind, Role, check_graph
from ..ir.check import Problem, Rules
from .kinds import KINDS
from .step import arrays, dists_of, held_of, inputs_of, outputs_of, part_of, show

MOST_ELEMENTS = 2**62


def check_rects(graph: Graph) -> None:
    """Raise `FormatError` naming the first broken rule."""
    check_graph(graph, RULES)


def _unique(graph: Graph) -> Iterator[Problem]:
    for name, times in Counter([*(a.name for a in arrays(graph)), *graph.node]).items():
        if times > 1:
            yield name, f"{times} arrays or operators are called so"
        if not name:
            yield "''", "a name without a letter"


def _ports(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        if (kind := KINDS.get(node.op)) is None:
            yield node.name, f"the kind '{node.op[:80]}' is not known"
            continue
        have = Counter(i.arg for i in node.inputs if i.role is not Role.SUM)
        for port in (*kind.inputs, *kind.outputs):
            if port not in have and port not in outputs_of(graph, node) and port not in kind.optional:
                yield node.name, f"a {node.op} has a port '{port}', this has not"
        for port, times in have.items():
            if port not in kind.inputs or times > 1:
                yield node.name, f"a {node.op} has no port '{port[:80]}', or one"
        if len(node.outputs) > (most := len(kind.outputs) + (node.op == "update")):
            yield node.name, f"a {node.op} has {most} outputs, this has {len(node.outputs)}"
        for key in dists_of(node):
            if key not in kind.dists:
                yield node.name, f"a {node.op} has no '{key[:80]}'"


def _rects(graph: Graph) -> Iterator[Problem]:
    for array in arrays(graph):
        dim = array.type.shape
        if not dim or min(dim) < 1 or array.type.size > MOST_ELEMENTS:
            yield array.name, f"dim {show(dim)}"
    for node in graph.nodes:
        for key, rect in dists_of(node).items():
            part, _ = part_of(graph, node, key)
            if not rect.inside(part.type.shape):
                yield node.name, f"{key} {rect} is not inside dim {show(part.type.shape)} of '{part.name}'"


def _written(graph: Graph) -> Iterator[Problem]:
    updates = []
    for node in graph.nodes:
        sums = {i.arg: graph.value[i.value].alias or i.value for i in node.inputs if i.role is Role.SUM}
        ports = outputs_of(graph, node)
        memory = [sums.get(port) for port in ports]
        if node.op == "update":
            memory = [inputs_of(graph, node)["params"].name]
            updates += [(memory[0], out) for out in node.outputs]
        adds = {port for port in ports if port.endswith(".delta")}
        if adds != set(sums) or memory != [graph.value[out].alias for out in node.outputs]:
            yield node.name, "it must add to what its ports called '.delta' lead to, and to nothing else"
    if sorted(updates) != sorted(graph.updates):
        yield "updates", "a param is updated in place by an update, and nothing else is"
    times = Counter(old for old, _ in updates)
    for array in arrays(graph):
        param, grad = array.kind is Kind.PARAMETER, array.kind is Kind.GRADIENT
        if (held_of(array).write is None) != param:
            yield array.name, f"a {array.kind} with{'' if param else 'out'} a write_rect"
        if (not param and graph.producer[array.name].op == "set_zero") != grad:
            yield array.name, f"a {array.kind} that is {'not ' if grad else ''}set to zero"
        if times[array.name] != param:
            yield array.name, f"a {array.kind} with {times[array.name]} updates"


def _gradients(graph: Graph) -> Iterator[Problem]:
    for array in arrays(graph):
        if array.kind is Kind.GRADIENT:
            of = graph.value.get(array.name.removesuffix(".grad")) if array.name.endswith(".grad") else None
            if of is None:
                yield array.name, "a gradient, but of no array"
            elif of.type != array.type:
                yield array.name, f"dim {show(array.type.shape)}, and that of '{of.name}' is {show(of.type.shape)}"


def _dims(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        kind = node.op.removesuffix("_grad")
        letters = dict(rule.split(": ") for rule in KINDS[kind].dims)
        sizes: dict[str, Any] = {"1": 1}
        fits = True
        ports = {**outputs_of(graph, node), **inputs_of(graph, node)}
        for port, array in ports.items():
            names, dim = letters.get(port.removesuffix(".delta")), array.type.shape
            if names == "*":
                fits = fits and sizes.setdefault("*", dim) == dim
            elif names is not None:
                fits = fits and len(names) == len(dim)
                fits = fits and all(sizes.setdefault(name, n) == n for name, n in zip(names, dim, strict=True))
        for whole, part, kernel in ("Iiu", "Jjv") if fits and kind == "locally_connected" else ():
            fits = fits and sizes[whole] == sizes[part] + sizes[kernel] - 1
        if not fits:
            shown = ", ".join(f"{port} {show(array.type.shape)}" for port, array in ports.items())
            yield node.name, f"dims that do not fit a {kind}: {shown}"


def _agree(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        for key, rect in dists_of(node).items():
            part, any_part = part_of(graph, node, key)
            held = held_of(part)
            if not held.read.holds(rect) if any_part else rect != (held.write or held.read):
                yield node.name, f"{key} {rect}, but '{part.name}' has {held.read} and {held.write}"
        if node.op == "update":
            params, gradient = (held_of(array).read for array in inputs_of(graph, node).values())
            if params != gradient:
                yield node.name, f"the params' rect is {params}, their gradient's {gradient}"


RULES: Rules = {
    "T1": _unique,
    "T2": _ports,
    "T3": _rects,
    "T4": _written,
    "T5": _gradients,
    "T6": _dims,
    "T7": _agree,
}
