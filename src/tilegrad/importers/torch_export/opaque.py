"""A user's own `autograd.Function` is one call in the trace, whose backward stays the user's."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import CheckpointFunction

from ...ops.function import Invocation, Output, remember
from ...torch_private import FakeTensorMode, TorchDispatchMode, pytree, without_modes, without_overrides
from .explain import refused
from .session import Session


class _Redirect:
    """The code that `Function.apply` has while tracing. It is put into the very function, since people keep
    `reverse = Reverse.apply` under names of their own."""

    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        __class__  # type: ignore[name-defined] # noqa: B018 - the original has this free variable, so must this
        return _tilegrad_opaque(cls, args, kwargs)  # type: ignore[name-defined] # noqa: F821 - put there below


@contextlib.contextmanager
def opaque_functions(session: Session) -> Iterator[None]:
    """While tracing, `Function.apply` makes opaque calls."""
    apply: Any = Function.apply
    function, code = apply.__func__, apply.__func__.__code__
    original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)

    def opaque(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.get_ident() != session.thread or not session.inside:
            return original(cls, *args, **kwargs)
        if cls is CheckpointFunction:  # plans recompute by themselves
            return args[0](*args[2:])
        return _opaque(session, cls, args, functools.partial(original, cls))

    function.__globals__["_tilegrad_opaque"] = opaque
    function.__code__ = _Redirect.apply.__code__
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__["_tilegrad_opaque"]


def _opaque(session: Session, cls: type[Function], args: tuple[Any, ...], apply: Callable[..., Any]) -> Any:
    leaves, spec = pytree.tree_flatten(args)
    leaves = [session.fake(leaf) for leaf in leaves]
    positions = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    tensors = [leaves[k] for k in positions]
    found, results, random = _rehearse(apply, leaves, positions, spec, cls.__qualname__)
    rest = tuple(None if k in positions else leaf for k, leaf in enumerate(leaves))
    written = tuple(o.argument for o in results if o.argument is not None)
    whole = Invocation(cls, rest, positions, spec, written, tuple(results))
    call = torch.ops.tilegrad.random_custom_function if random else torch.ops.tilegrad.custom_function

    def emit(invocation: Invocation) -> Tensor:
        session.tokens.append(remember(invocation))
        made: Tensor = call(tensors, invocation.name, session.tokens[-1])
        return made

    smooth = iter(whole.unpack(emit(whole)) if any(o.differentiable for o in results) else ())
    made: list[Tensor] = []
    for k, each in enumerate(results):
        tensor = next(smooth) if each.differentiable else emit(replace(whole, pick=k)).detach()
        if each.argument is not None:  # the function wrote to its input and returned it
            tensor = tensors[each.argument].copy_(tensor)
        made.append(tensor)
    outputs = iter(made)
    filled = [
        next(outputs) if isinstance(item, Tensor) else item
        for item in (found if isinstance(found, tuple) else (found,))
    ]
    return tuple(filled) if isinstance(found, tuple) else filled[0]


def _rehearse(
    apply: Callable[..., Any], leaves: Sequence[Any], positions: Sequence[int], spec: Any, name: str
) -> tuple[Any, list[Output], bool]:
    """Run a function on tensors without data, apart from the trace: what it gives, and whether it draws."""
    blanks, draws = list(leaves), _Draws()  # type: ignore[no-untyped-call]
    with (
        without_modes(),
        without_overrides(),
        torch.enable_grad(),
        FakeTensorMode(allow_non_fake_inputs=True),
        draws,
    ):
        for k in positions:
            t = leaves[k]
            made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            needs = made.is_floating_point() or made.is_complex()
            # not a leaf, so that it may be written to
            blanks[k] = made.requires_grad_().clone() if needs else made
        with _asking() as asked:
            found = apply(*pytree.tree_unflatten(blanks, spec))
    inputs = {id(blanks[k]): at for at, k in enumerate(positions)}
    several = found if isinstance(found, tuple) else (found,)
    results = [
        Output(tuple(t.shape), t.dtype, t.requires_grad, inputs.get(id(t))) for t in several if isinstance(t, Tensor)
    ]
    if sum(each.differentiable for each in results) > 1 and asked:
        what = f"'{name}' asks which of its outputs have a gradient (set_materialize_grads)"
        raise refused(what, "a function that takes zeros instead, which is torch's default")
    return found, results, draws.any


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether any operator draws random numbers."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _asking() -> Iterator[list[bool]]:
    """Notes whether a function wants to know which of its outputs have a gradient."""
    original = FunctionCtx.set_materialize_grads
    asked: list[bool] = []

    def note(ctx: Any, value: bool) -> None:
        if not value:
            asked.append(True)
        original(ctx, value)

    setattr(FunctionCtx, "set_materialize_grads", note)  # noqa: B010 - mypy minds methods
    try:
        yield asked
    finally:
        setattr(FunctionCtx, "set_materialize_grads", original)  # noqa: B010
