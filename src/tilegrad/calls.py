"""Calls of a module, and what was made for them: a plan is used only for what it was made for.

A call is its arguments' structure (names, order, nesting), the types of its tensors and all its other values, what
needs a gradient, and torch's modes. Beside the call the module's own state counts (`Snapshot`), since a capture bakes
it in. What was made longest ago and not used since goes when there are too many.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from .errors import RunError
from .importers import Captured, autocast_dtype, device_of, is_shape, strides_of

T = TypeVar("T")
MOST = 32  # plans that are kept
OFTEN = 4  # captures of one call, from which on the log says why
_log = logging.getLogger("tilegrad")


@dataclass(frozen=True)
class Call:
    """One call of a module: its arguments, keywords in the order of its signature, and what plans are kept under."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    flat: Sequence[Any] = field(repr=False)
    key: Any = field(repr=False)

    @classmethod
    def of(
        cls,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        describe: Callable[[Any], str] = repr,
    ) -> Call:
        """`describe`: what counts of an argument that is no tensor."""
        _check_modes()
        kwargs = _ordered(module, kwargs)
        flat, spec = pytree.tree_flatten((tuple(args), kwargs), is_leaf=is_shape)
        dtype = next((p.dtype for p in module.parameters()), torch.get_default_dtype())
        first: dict[int, int] = {}
        leaves = tuple(
            (*_tensor_key(x), first.setdefault(id(x), at)) if isinstance(x, Tensor) else _other_key(x, dtype, describe)
            for at, x in enumerate(flat)
        )
        key = repr(spec), leaves, torch.is_grad_enabled(), autocast_dtype(device_of(module))
        return cls(tuple(args), kwargs, flat, key)


def _check_modes() -> None:
    if torch._C._are_functorch_transforms_active():
        raise RunError(
            "a tiled module cannot run inside torch.func transforms (grad, vmap, jvp, …)",
            hint="loss.backward() or torch.autograd.grad, or the module without tilegrad.tile",
        )


def _ordered(module: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the signature has them: f(a=1, b=2) is f(b=2, a=1)."""
    if len(kwargs) < 2:
        return dict(kwargs)
    try:
        order = {name: at for at, name in enumerate(inspect.signature(module.forward).parameters)}
    except (TypeError, ValueError):  # a forward that hides its signature
        order = {}
    return dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))


def _tensor_key(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad, strides_of(tensor)


def _other_key(item: Any, dtype: torch.dtype, describe: Callable[[Any], str]) -> tuple[Any, ...]:
    if is_shape(item):  # stands for a tensor
        return _tensor_key(torch.empty(item, dtype=dtype, device="meta"))
    return type(item), describe(item)


class Calls(Generic[T]):
    """What was made for calls, the least recently used first."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[Any, Captured, T]] = OrderedDict()
        self._count: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def find(self, call: Call) -> T | None:
        for number in reversed(self._made):
            key, captured, made = self._made[number]
            if key == call.key and captured.start is not None and captured.start.holds():
                self._made.move_to_end(number)
                return made
        return None

    def add(self, call: Call, made: T, captured: Captured) -> None:
        self._warn(call, captured)
        self._made[max(self._made, default=0) + 1] = (call.key, captured, made)
        while len(self._made) > MOST:
            self._made.popitem(last=False)

    def _warn(self, call: Call, captured: Captured) -> None:
        """Say once what makes the same call be captured again and again."""
        self._count[call.key] = self._count.get(call.key, 0) + 1
        if self._count[call.key] != OFTEN:
            return
        earlier = [c.start for key, c, _ in self._made.values() if key == call.key and c.start is not None]
        found = [what for start in earlier[-1:] if (what := start.difference()) is not None]
        _log.warning(
            "the same call is captured for the %dth time, because %s changes from call to call; a buffer "
            "(register_buffer) or an input would not have to be captured again",
            OFTEN,
            f"'{found[0]}'" if found else "the module's state",
        )
