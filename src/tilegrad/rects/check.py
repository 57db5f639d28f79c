"""What makes a graph of rects legal, one rule each.

Rule T1  Names are unique, over arrays and operators together.
Rule T2  The kind of every operator is known; it has the ports of its kind, and each leads to an array.
Rule T3  Dims are 1 or more; a rect has the rank of its dim, does not run backward and lies inside.
Rule T4  Params are written by none, updated in place by one, and have no write_rect; everything else has one. An
         activation, input, loss or metric has one writer. A gradient has one set_zero; only gradients have one.
Rule T5  A gradient is called `x.grad`, where x is an array, and has the dim of x.
Rule T6  No operator waits for itself: there is no cycle. (Updates in place and sums are no arrows back.)
Rule T7  Dims fit: those of filters to input and output (valid, stride 1), elementwise ones are equal, and so on; an
         operator's result_dim is the dim of what it makes.
Rule T8  An operator's rects are those of its arrays: what it writes is the write_rect, what it reads is inside the
         read_rect; the params, the gradient and the update of the params have one rect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ..errors import FormatError
from ..region import Box
from .kinds import KINDS
from .model import Array, Dim, RectGraph, RectOperator, RectRole

Problem = tuple[str, str]  # where, what

MOST_ELEMENTS = 2**62


def check_rect_graph(graph: RectGraph) -> None:
    """Raise `FormatError` naming the first broken rule."""
    for rule, find in RULES.items():
        for where, what in find(graph):
            raise FormatError(f"rule {rule}: {what}", where=f"{graph.name[:80]}: {where[:80]}")


def _unique(graph: RectGraph) -> Iterator[Problem]:
    for name, times in Counter([*(a.name for a in graph.arrays), *(op.name for op in graph.operators)]).items():
        if times > 1:
            yield name, f"{times} arrays or operators are called so"
        if not name:
            yield "''", "a name without a letter"


def _ports(graph: RectGraph) -> Iterator[Problem]:
    for op in graph.operators:
        if (kind := KINDS.get(op.kind)) is None:
            yield op.name, f"the kind '{op.kind[:80]}' is not known"
            continue
        for have, wanted in ((op.inputs, kind.inputs), (op.outputs, kind.outputs)):
            for port in wanted:
                if port not in have and port not in kind.optional:
                    yield op.name, f"a {op.kind} has a port '{port}', this has not"
            for port, array in have.items():
                if port not in wanted:
                    yield op.name, f"a {op.kind} has no port '{port[:80]}'"
                if array not in graph.array:
                    yield op.name, f"its port '{port}' leads to '{array[:80]}', which is no array"
        for key in op.dists:
            if key not in kind.dists:
                yield op.name, f"a {op.kind} has no '{key[:80]}'"


def _rects(graph: RectGraph) -> Iterator[Problem]:
    for array in graph.arrays:
        if not array.dim or min(array.dim) < 1 or Box.full(array.dim).volume > MOST_ELEMENTS:
            yield array.name, f"dim {_show(array.dim)}"
            continue
        for key, rect in (("read_rect", array.read_rect), ("write_rect", array.write_rect)):
            if rect is not None and not _fits(rect, array.dim):
                yield array.name, f"{key} {rect} is not inside dim {_show(array.dim)}"
    for op in graph.operators:
        for key, rect in op.dists.items():
            if not _fits(rect, (part := _part_of(graph, op, key)).dim):
                yield op.name, f"{key} {rect} is not inside dim {_show(part.dim)} of '{part.name}'"


def _fits(rect: Box, dim: Dim) -> bool:
    return len(rect) == len(dim) and all(0 <= s.lo <= s.hi <= n for s, n in zip(rect, dim, strict=True))


def _show(dim: Dim) -> str:
    return "[" + " ".join(map(str, dim[:16])) + "]"


def _written(graph: RectGraph) -> Iterator[Problem]:
    for array in graph.arrays:
        kinds = Counter("set_zero" if op.kind == "set_zero" else "other" for op, _ in graph.writers[array.name])
        updates = sum(op.kind == "update" and port == "params" for op, port in graph.readers[array.name])
        param, grad = array.role is RectRole.PARAM, array.role is RectRole.GRAD
        if (array.write_rect is None) != param:
            yield array.name, f"a {array.role} with{'out' if array.write_rect is None else ''} a write_rect"
        if kinds["set_zero"] != (1 if grad else 0):
            yield array.name, f"a {array.role} with {kinds['set_zero']} set_zero"
        if not grad and kinds["other"] != (0 if param else 1):
            yield array.name, f"a {array.role} with {kinds['other']} writers"
        if updates != (1 if param else 0):
            yield array.name, f"a {array.role} with {updates} updates"


def _gradients(graph: RectGraph) -> Iterator[Problem]:
    for array in graph.arrays:
        if array.role is RectRole.GRAD:
            of = graph.array.get(array.name.removesuffix(".grad")) if array.name.endswith(".grad") else None
            if of is None:
                yield array.name, "a gradient, but of no array"
            elif of.dim != array.dim:
                yield array.name, f"dim {_show(array.dim)}, and that of '{of.name}' is {_show(of.dim)}"


def _acyclic(graph: RectGraph) -> Iterator[Problem]:
    waits = {op.name: sum(len(graph.writers[name]) for name in op.inputs.values()) for op in graph.operators}
    ready = [op for op in graph.operators if not waits[op.name]]
    done = 0
    while ready:
        op = ready.pop()
        done += 1
        for name in op.outputs.values():
            for reader, _ in graph.readers[name]:
                waits[reader.name] -= 1
                if not waits[reader.name]:
                    ready.append(reader)
    if done < len(graph.operators):
        stuck = next(name for name, count in waits.items() if count)
        yield stuck, "it waits for what it makes itself"


def _dims(graph: RectGraph) -> Iterator[Problem]:
    for op in graph.operators:
        dim = {port: graph.array[name].dim for port, name in {**op.outputs, **op.inputs}.items()}
        if (what := _misfit(op.kind.removesuffix("_grad"), dim)) is not None:
            yield op.name, what
        made = graph.array[_made(op)].dim if _made(op) else (1,)
        if op.result_dim is not None and op.result_dim != made:
            yield op.name, f"result_dim {_show(op.result_dim)}, but it makes {_show(made)}"
        for port, given in dim.items():  # x and x.delta are one size
            if dim.get(f"{port}.delta", given) != given:
                yield op.name, f"'{port}' is {_show(given)}, its delta is {_show(dim[port + '.delta'])}"


def _misfit(kind: str, dim: dict[str, Dim]) -> str | None:
    x, y = dim.get("input", ()), dim.get("output", dim.get("output.delta", ()))
    logits, labels = dim.get("probability", ()), dim.get("labels", ())
    fits = True
    if kind == "locally_connected":
        w = dim["filters"]
        fits = len(x) == len(y) == 4 and len(w) == 8 and y[0] == x[0]
        fits = fits and w == (y[1], 1, 1, x[1], x[2] - y[2] + 1, x[3] - y[3] + 1, *y[2:])
    elif kind == "scalar_affine":
        bias = dim.get("b", dim.get("b.delta"))
        fits = len(x) == 4 and x == y and dim["a"] == (1,) and bias == (1, *x[1:])
    elif kind == "nonlinearity":
        fits = x == y
    elif kind == "linear":
        w = dim["weights"]
        fits = len(x) == 4 and w[1:] == x[1:] and y == (x[0], w[0], 1, 1)
    elif kind in ("softmax_cross_entropy", "evaluate"):
        fits = len(logits) == 4 and labels == (logits[0], 1, 1, 1)
        fits = fits and (kind == "evaluate" or y == (1, 1, 1, 1)) and dim.get("input", logits) == logits
    elif kind == "update":
        fits = dim["params"] == dim["gradient"]
    elif kind == "source":
        fits = len(dim["raw_data"]) == 4 and dim["labels"] == (dim["raw_data"][0], 1, 1, 1)
    shown = ", ".join(f"{port} {_show(given)}" for port, given in dim.items())
    return None if fits else f"dims that do not fit a {kind}: {shown}"


def _made(op: RectOperator) -> str:
    """The array that an operator's result_dim speaks of."""
    if op.kind == "update":
        return op.inputs["params"]
    if op.kind.endswith("_grad"):
        return op.inputs["output.delta"]
    return op.outputs.get("output") or op.outputs.get("raw_data") or ""


def _part_of(graph: RectGraph, op: RectOperator, key: str) -> Array:
    """The array that one of an operator's rects is a part of."""
    backward = op.kind.endswith("_grad")
    if key == "dist_result":
        softmax = op.kind == "softmax_cross_entropy_grad"
        return graph.array[op.outputs["input.delta"] if softmax else _made(op)]
    if key == "read_rect":
        return graph.array[op.inputs["output.delta" if backward else "input"]]
    if key == "write_rect":
        return graph.array[op.outputs["input.delta" if backward else "output"]]
    return graph.array[op.inputs[key.removeprefix("dist_")]]


def _agree(graph: RectGraph) -> Iterator[Problem]:
    for op in graph.operators:
        for key, rect in op.dists.items():
            part = _part_of(graph, op, key)
            reads = key in ("dist_input", "read_rect") or (op.kind.endswith("_grad") and key == "dist_result")
            if op.kind == "softmax_cross_entropy_grad" or key == "dist_filters" or op.kind == "update":
                fits = rect in (part.read_rect, part.write_rect)
            else:
                fits = part.read_rect.holds(rect) if reads else rect == part.write_rect
            if not fits:
                yield op.name, f"{key} {rect}, but '{part.name}' has {part.read_rect} and {part.write_rect}"
        if op.kind == "update":
            params, gradient = (graph.array[op.inputs[port]].read_rect for port in ("params", "gradient"))
            if params != gradient:
                yield op.name, f"the params' rect is {params}, their gradient's {gradient}"


RULES: dict[str, Callable[[RectGraph], Iterator[Problem]]] = {
    "T1": _unique,
    "T2": _ports,
    "T3": _rects,
    "T4": _written,
    "T5": _gradients,
    "T6": _acyclic,
    "T7": _dims,
    "T8": _agree,
}
