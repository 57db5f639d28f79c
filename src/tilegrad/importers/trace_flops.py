"""Flops of an operator in a trace, from the shapes it was called with; a multiplication and an addition are two.

Only what multiplies matrices is counted: convolutions and their gradients, products of matrices, attention. Of all else
nobody says. The rules are those of `recording.flops`, without torch: reading a trace must not load it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..profile.model import Shape
from .torch_events import OpData

Shapes = Sequence[Shape]
Formula = Callable[[Shapes, Sequence[Any]], int]  # of shapes of tensors, and of all arguments


def shape_flops(type: str, data: OpData) -> int | None:
    """None where the shapes do not tell."""
    formula = _FORMULAS.get(type)
    if formula is None or not data.shapes:
        return None
    try:
        return formula(data.shapes, [_argument(text) for text in data.inputs])
    except (IndexError, TypeError, ValueError):  # called in a way that the rule does not foresee
        return None


def _argument(text: str) -> Any:
    """`[1, 1]`, `False`, `1` as torch writes them; other texts stay texts."""
    try:
        return json.loads(text.replace("True", "true").replace("False", "false"))
    except ValueError:
        return text


def _products(weight: Shape, places: Shape) -> int:
    """Every element of the weight meets every place once per image."""
    rank = len(weight) - 2
    if rank < 1 or len(places) not in (rank + 1, rank + 2):
        raise ValueError
    return 2 * prod(weight) * prod(places[: -rank - 1]) * prod(places[-rank:])


def _convolution(at: int, transposed: int | None) -> Formula:
    """`at`: the place of the stride among the arguments; `transposed`: that of the flag, where there is one."""

    def count(shapes: Shapes, given: Sequence[Any]) -> int:
        x, weight = shapes[:2]
        if transposed is not None and given[transposed] is True:
            return _products(weight, x)
        rank = len(weight) - 2
        stride, padding, dilation = (_each(given[at + k], rank) for k in range(3))
        sizes = zip(x[-rank:], weight[2:], stride, padding, dilation, strict=True)
        places = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return _products(weight, (*x[:-rank], *places))

    return count


def _each(given: Any, rank: int) -> list[int]:
    numbers = given if isinstance(given, list) else [given]
    if not all(type(number) is int for number in numbers):
        raise ValueError
    return numbers * rank if len(numbers) == 1 else numbers


def _convolution_backward(shapes: Shapes, given: Sequence[Any]) -> int:
    gradient, x, weight = shapes[:3]
    transposed, wanted = given[7], given[10]
    return (bool(wanted[0]) + bool(wanted[1])) * _products(weight, x if transposed is True else gradient)


def _matmul(shapes: Shapes, given: Sequence[Any]) -> int:
    """Of the last two tensors; the first of three is what is added."""
    left, right = shapes[-2:]
    if left[-1] != (right[-2] if len(right) > 1 else right[-1]):
        raise ValueError
    if len(right) > 2 and len(left) > 2:  # batches are the same, or of one
        batches = prod(max(a, b) for a, b in zip(left[:-2], right[:-2], strict=True))
        return 2 * batches * prod(left[-2:]) * right[-1]
    few, many = sorted((left, right), key=len)  # a batch on one side alone, or on none
    return 2 * prod(many) * (prod(few) // left[-1])


def _linear(shapes: Shapes, given: Sequence[Any]) -> int:
    x, weight = shapes[:2]
    return 2 * prod(x) * weight[0]


def _attention(shapes: Shapes, given: Sequence[Any]) -> int:
    query, key, value = shapes[:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


_FORMULAS: dict[str, Formula] = {
    **{f"aten::conv{rank}d": _convolution(3, None) for rank in (1, 2, 3)},
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), _convolution(3, 6)),
    **{f"aten::conv_transpose{rank}d": lambda shapes, given: _products(shapes[1], shapes[0]) for rank in (1, 2, 3)},
    "aten::convolution_backward": _convolution_backward,
    **dict.fromkeys([f"aten::{name}" for name in ("mm", "bmm", "addmm", "baddbmm", "matmul")], _matmul),
    "aten::linear": _linear,
    "aten::scaled_dot_product_attention": _attention,
}
