"""A user's own `torch.autograd.Function`: one opaque node, whose backward is the user's.

It runs whole, or tile by tile where its author says which box it reads:

    @tilegrad.ops.local                     # element by element
    class Round(torch.autograd.Function): ...

    @tilegrad.ops.local(reads=rule)         # `rule(call)` as `Op.reads`; points only, since a function is not told
    class Mix(torch.autograd.Function): ... # where its tile lies

A graph is plain data: its node names the function and a number, under which the class and its other arguments are
kept as long as a capture uses them. Several differentiable outputs are one value, stacked or laid end to end, so that
backward is called once with all their gradients, as autograd does. Inputs that the function writes to are copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.autograd import Function

from ..errors import InputError, InternalError
from ..region import POINT
from ..torch_private import pytree
from .base import Call, Op, Place, Reads, Sample, pointwise
from .registry import op
from .seeded import seeded

Rule = Callable[[Call], Reads]
F = TypeVar("F", bound=type[Function])
_RULE = "_tilegrad_reads"
_library: Any = torch.library.Library("tilegrad", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("custom_function(Tensor[] tensors, str name, int token) -> Tensor")
_library.define("random_custom_function(Tensor[] tensors, str name, int token) -> Tensor")
_known: dict[int, Invocation] = {}
_tokens = itertools.count(1)


@overload
def local(function: F) -> F: ...


@overload
def local(*, reads: Rule) -> Callable[[F], F]: ...


def local(function: Any = None, *, reads: Rule | None = None) -> Any:
    """Declare that an `autograd.Function` may run on tiles: element by element, or by a rule of its own."""

    def declare(cls: type[Function]) -> type[Function]:
        if not (isinstance(cls, type) and issubclass(cls, Function)):
            raise InputError(f"{cls!r} is not a torch.autograd.Function", hint="@tilegrad.ops.local above its class")
        setattr(cls, _RULE, reads or _by_element)
        return cls

    return declare if function is None else declare(function)


def _by_element(call: Call) -> Reads:
    shape = call.out.shape
    # several outputs are stacked along a new first dimension, which nothing drives
    return tuple(pointwise(t.shape, shape) for t in call.inputs)


@dataclass(frozen=True)
class Output:
    """One result of a function: its type, whether gradients pass, and which argument it is, if it is one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    argument: int | None = None


@dataclass(frozen=True)
class Invocation:
    """A function with its arguments but for the tensors."""

    function: type[Function]
    leaves: tuple[Any, ...]  # of its arguments; None where a tensor goes
    tensors: tuple[int, ...]  # the positions of those
    spec: Any
    written: tuple[int, ...]  # tensors that it writes to
    outputs: tuple[Output, ...]
    pick: int | None = None  # this output alone; None: all that are differentiable, as one value

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def chosen(self) -> list[Output]:
        return [self.outputs[self.pick]] if self.pick is not None else [o for o in self.outputs if o.differentiable]

    @property
    def stacked(self) -> bool:
        return len({o.shape for o in self.chosen}) == 1

    @property
    def dtype(self) -> torch.dtype:
        found = self.chosen[0].dtype
        for each in self.chosen[1:]:
            found = torch.promote_types(found, each.dtype)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        if len(self.chosen) == 1:
            return self.chosen[0].shape
        if self.stacked:
            return (len(self.chosen), *self.chosen[0].shape)
        return (sum(torch.Size(o.shape).numel() for o in self.chosen),)

    def run(self, tensors: Sequence[Tensor]) -> Tensor:
        leaves = list(self.leaves)
        for at, (position, tensor) in enumerate(zip(self.tensors, tensors, strict=True)):
            leaves[position] = tensor.clone() if at in self.written else tensor
        apply: Any = self.function.apply
        found = apply(*pytree.tree_unflatten(leaves, self.spec))
        results = [t for t in (found if isinstance(found, tuple) else (found,)) if isinstance(t, Tensor)]
        if self.pick is not None:
            return results[self.pick].detach()
        parts = [t.to(self.dtype) for t, o in zip(results, self.outputs, strict=True) if o.differentiable]
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts) if self.stacked else torch.cat([t.reshape(-1) for t in parts])

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """The differentiable outputs from their one value."""
        if len(self.chosen) == 1:
            return [packed]
        if self.stacked:
            return [packed.select(0, k).to(o.dtype) for k, o in enumerate(self.chosen)]
        found, at = [], 0
        for each in self.chosen:
            size = torch.Size(each.shape).numel()
            found.append(packed.narrow(0, at, size).view(each.shape).to(each.dtype))
            at += size
        return found


def remember(invocation: Invocation) -> int:
    """Keep an invocation under a number of its own."""
    token = next(_tokens)
    _known[token] = invocation
    return token


def forget(tokens: Sequence[int]) -> None:
    for token in tokens:
        _known.pop(token, None)


def _recall(call: Call) -> Invocation:
    found = _known.get(call.attr("token"))
    if found is None:
        what = f"the function '{call.attr('name')}' belongs to a capture that is gone"
        raise InternalError(what, where=call.node.describe())
    return found


def _blank(tensors: list[Tensor], name: str, token: int) -> Tensor:
    invocation = _known[token]
    device = tensors[0].device if tensors else torch.device("cpu")
    return torch.empty(invocation.shape, dtype=invocation.dtype, device=device)


def _run(tensors: list[Tensor], name: str, token: int) -> Tensor:
    return _known[token].run(tensors)


for _name in ("custom_function", "random_custom_function"):
    torch.library.register_fake(f"tilegrad::{_name}", _blank, lib=_library)
    for _kind in ("CPU", "CUDA"):
        _library.impl(_name, _run, _kind)


@op("custom_function")
class CustomFunction(Op):
    native = False
    opaque = True
    repeats = False

    def reads(self, call: Call) -> Reads | None:
        found = _known.get(call.attr("token"))
        rule: Rule | None = getattr(found.function, _RULE, None) if found is not None else None
        if found is None or rule is None or not (len(found.chosen) == 1 or found.stacked):
            return None
        reads = rule(call)
        if any(read.dim is not None and read.window != POINT for dims in reads for read in dims):
            what = f"the rule of '{found.name}' reads more than a point, and a function is not told where its tile lies"
            raise InputError(what, where=call.node.describe(), hint="a convolution or pool around it, or an operator")
        return reads

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        if place.device is not None and place.device.type == "meta":
            return _like(call, tiles, place)
        return _recall(call).run(tiles)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: _Twice.apply(x), ((1, 2, 5, 6),))  # type: ignore[no-untyped-call]


@op("random_custom_function")
class RandomFunction(CustomFunction):
    """One that draws: whole, and the same again when it is run again."""

    random = True

    def reads(self, call: Call) -> Reads | None:
        return None

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        with seeded(place.seed, place.device):
            return super().run(call, tiles, place)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # times zero: what is drawn differs from plain PyTorch's
        yield Sample(lambda x: x + 0 * _Noise.apply(x), ((1, 2, 5, 6),))  # type: ignore[no-untyped-call]


def _like(call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
    """Without data: a result that depends on all inputs, which stand for what the function keeps for backward."""
    out = torch.empty(place.out.shape, dtype=getattr(torch, call.out.dtype), device="meta")
    for tile in tiles:
        if tile.is_floating_point() and out.is_floating_point():
            out = out + tile.sum().to(out.dtype)
    return out


class _Twice(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class _Noise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.randn_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


local(_Twice)
