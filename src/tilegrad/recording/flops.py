"""Flops of one run of an operator; a multiplication and an addition are two.

Convolutions by our own rule: torch's counts too much for the weight gradient of grouped ones. Others by torch's
registry; where that has no rule, nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
UNKNOWN_FLOPS = -1
Formula = Callable[[Sequence[Any], Any], int]


def knows_flops(func: Any) -> bool:
    return _packet(func) in _OURS or _packet(func) in flop_registry


def count_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    packet = _packet(func)
    try:
        if packet in _OURS:
            return _OURS[packet](args, out)
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    except (ArithmeticError, AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return UNKNOWN_FLOPS  # called in a way that the rule does not foresee


def _packet(func: Any) -> Any:
    return getattr(func, "overloadpacket", func)


def _products(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """Every element of the weight meets every place of the output (of the input, where transposed) once per image."""
    rank = weight.ndim - 2
    places = (x if transposed else out).shape
    return 2 * weight.numel() * prod(places[: -rank - 1]) * prod(places[-rank:])


def _direct(args: Sequence[Any], out: Any, transposed: bool = False) -> int:
    return _products(args[0], args[1], out, transposed)


def _convolution_backward(args: Sequence[Any], out: Any) -> int:
    grad, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    return (bool(wanted[0]) + bool(wanted[1])) * _products(x, weight, grad, transposed)


def _matmul(args: Sequence[Any], out: Any) -> int:
    return 2 * out.numel() * args[0].shape[-1]


_OURS: Final[dict[Any, Formula]] = {
    aten.convolution: lambda args, out: _direct(args, out, args[6]),
    aten.convolution_backward: _convolution_backward,
    # In inference mode torch does not take these apart before we see them.
    **dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d), _direct),
    **dict.fromkeys(
        (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d), partial(_direct, transposed=True)
    ),
    aten.linear: _matmul,
    aten.matmul: _matmul,
}
