"""The checks an operator must pass, for your own as for ours.

    from tilegrad.ops import Op, op
    from tilegrad.testing import check_operator

    @op("blur3")                        # the base name of torch.ops.mine.blur3
    class Blur(Op): ...

    check_operator(torch.ops.mine.blur3, (1, 2, 9, 8))

The function is captured and lowered. Every node that has a box rule is run on random boxes and compared with the same
box of the whole; then all that its rule does not ask for is poisoned, and the box must not change. At last the
function is trained for a step in every mode, values and gradients against plain torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..bounds import MODES, call_of, label_axes, lower_graph
from ..importers import export_module
from ..ir import Graph
from ..ops import Call, Place, aten, find
from ..region import Box, Interval
from .exact import assert_same_step, integer_tensor, same_entries, size_of


class SampleFunction(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)

    def __deepcopy__(self, memo: dict[int, Any]) -> SampleFunction:
        return SampleFunction(self.function)  # torch's custom operators cannot be copied, and need not be


def check_operator(
    function: Callable[..., Tensor],
    *shapes: Sequence[int],
    classes: Sequence[int] = (),
    count: int = 0,
    tile: int = 3,
    modes: Sequence[str] = MODES,
    exact: bool = False,
    tolerance: float = 1e-10,
    constant: Sequence[int] = (),
    poison: float = math.nan,
) -> None:
    """Raise an AssertionError where boxes, values or gradients of `function` differ from plain torch.

    shapes: of its arguments, filled with small integers in float64; `classes` are the positions of those that are
    class indices instead, `count` how many classes there are. exact: differences of rounding are not allowed either.
    constant: positions of arguments that torch has no gradient for. poison: what the operator must not read; another
    number where it refuses NaN.
    """
    inputs = [
        integer_tensor(shape, 0, count - 1, at).long() if at in classes else integer_tensor(shape, -4, 4, at)
        for at, shape in enumerate(shapes)
    ]
    check_boxes(function, inputs, exact=exact, tolerance=tolerance, poison=poison)
    step = partial(
        assert_same_step, SampleFunction(function), inputs, exact=exact, tolerance=tolerance, constant=constant
    )
    for mode in modes:
        step(tile=tile, mode=mode)


def check_boxes(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    exact: bool = False,
    tolerance: float = 1e-10,
    poison: float = math.nan,
) -> None:
    """Every node of the function on random boxes: the same as in the whole, and deaf to what it did not ask for."""
    captured = export_module(SampleFunction(function), inputs)
    graph = lower_graph(captured.graph)
    values = captured.bind(inputs)
    for node in graph.nodes:
        op, call = find(node), call_of(graph, node)
        given = [values[name] for name in node.reads]
        whole = values[node.outputs[0]] = _whole(call, given)
        for out in _boxes(graph, call):
            needs = op.needs(call, out) or ()
            read = [box.clip(t.shape) for box, t in zip(needs, given, strict=True)]
            part = op.run(call, [t[box.slices] for box, t in zip(read, given, strict=True)], Place(out, needs))
            _compare(part, whole[out.slices], exact, tolerance, f"{node.describe()}, {out}: not as in the whole")
            dirty = [_poisoned(t, box, poison) for box, t in zip(read, given, strict=True)]
            again = _whole(call, dirty)[out.slices]
            _compare(again, whole[out.slices], True, 0.0, f"{node.describe()}, {out}: reads more than it asks for")


def _whole(call: Call, tensors: Sequence[Tensor]) -> Tensor:
    """The node on whole tensors: torch's own operator, or our code for what only we have (pieces, moments)."""
    node, op = call.node, find(call.node)
    if node.target and not {"length", "index"} & node.attrs.keys():
        found: Tensor = aten.call(node, tensors)
        return found
    out = Box.full(call.out.shape)
    needs = op.needs(call, out) or tuple(Box.full(t.shape) for t in tensors)
    return op.run(call, [t[box.slices] for t, box in zip(tensors, needs, strict=True)], Place(out, needs))


def _boxes(graph: Graph, call: Call, count: int = 6) -> Iterator[Box]:
    """Boxes along the dimensions that may be cut: the two corners, then random ones."""
    op, rule = find(call.node), find(call.node).reads(call)
    if rule is None or op.random:
        return
    driven = {read.dim for dims in rule for read in dims} if any(rule) else set(range(len(call.out.shape)))
    dims = [d for d in label_axes(graph).dims[call.node.outputs[0]].values() if d in driven]
    rng = random.Random(call.node.name)
    for k in range(count if dims else 0):
        sides = [Interval(0, n) for n in call.out.shape]
        for d in dims:
            n = call.out.shape[d]
            lo, hi = (0, 1) if k == 0 else (n - 1, n) if k == 1 else sorted(rng.sample(range(n + 1), 2))
            sides[d] = Interval(lo, hi)
        yield Box(sides)


def _poisoned(value: Tensor, keep: Box, poison: float) -> Tensor:
    """Poison everywhere but in `keep`; other integers where there is no NaN."""
    dirty = torch.full_like(value, poison) if value.is_floating_point() else 1 - value.long().clamp(0, 1)
    dirty = dirty.to(value.dtype)
    dirty[keep.slices] = value[keep.slices]
    return dirty


def _compare(found: Tensor, wanted: Tensor, exact: bool, tolerance: float, what: str) -> None:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise AssertionError(f"{what}: {found.dtype} {list(found.shape)} for {wanted.dtype} {list(wanted.shape)}")
    same = same_entries(found, wanted, None if exact else tolerance * max(1.0, size_of(wanted)))
    if not bool(same.all()):
        raise AssertionError(f"{what}: {int((~same).sum())} of {same.numel()} elements")
