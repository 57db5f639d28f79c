"""A function through `torch.compile`: one compilation for all functions that are alike.

Rule Z1  Functions are alike if they call the same operators of ATen on tensors that lie alike in memory, forward and
         backward. So all tensors are arguments, weights as well, and where a tile lies does not count by itself.
Rule Z2  What cannot be compiled runs as if nobody had asked for it; the log says why, once.
Rule Z3  While somebody watches every operator (a profile, a count of bytes) nothing compiled runs.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from textwrap import shorten
from types import FunctionType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from ..torch_private import TorchDispatchMode, operators_are_watched, pytree

Tensors = Sequence[Tensor]
_log = logging.getLogger("tilegrad")


class Compilation:
    """A compiled function. `what`: what the user is told of it."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], what: str):
        self.what, self.options = what, options
        self._function: Any = torch.compile(_apart(function), dynamic=False, fullgraph=True, **options)
        self._works: bool | None = None  # None: not tried yet

    def attempt(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        """Did it run, and what did it give? It runs either as a whole or not at all."""
        if self._works is False or operators_are_watched():
            return False, None
        if self._works:
            return True, self._function(*args, **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a compiler's, of code that nobody here wrote
            try:
                found = self._function(*args, **kwargs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever compilers can say
                self._works = False
                say_why_not(self.what, error)
                return False, None
        self._works = True
        return True, found


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """With code of its own: torch counts how often a piece of code is compiled, and gives up."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


def say_why_not(what: str, error: Exception) -> None:
    """The log gets the first lines of an error; behind them compilers quote code."""
    lines = [line for line in str(error).splitlines() if line.strip()][:2] or [type(error).__name__]
    reason = shorten(" ".join(lines if lines[0].endswith(":") else lines[:1]), 200)
    if reason not in _said:
        _said.add(reason)
        _log.warning("%s cannot be compiled and runs as it is: %s", what, reason)


_said: set[str] = set()


# -- functions that are alike ------------------------------------------------------------------------------------------

compilations: WeakValueDictionary[Hashable, Compilation] = WeakValueDictionary()


def compilation_of(
    function: Callable[[Tensors], Tensors], tensors: Tensors, options: Mapping[str, Any], what: str
) -> Compilation | None:
    """One that was made for a function like this one, or a new one. None: this one does not run without data."""
    try:
        calls = _digest(function, tensors)
    except Exception as error:  # rule Z2
        say_why_not(what, error)
        return None
    key = calls, tensors[0].device, repr(sorted(options.items()))
    found = compilations.get(key)
    if found is None:
        # Dynamo does not look into it; autograd does, and so do the compilers behind it.
        opaque = torch.compiler.allow_in_graph(lambda *given: tuple(function(given)))  # type: ignore[no-untyped-call]
        found = compilations[key] = Compilation(opaque, options, what)
    return found


def _digest(function: Callable[[Tensors], Tensors], tensors: Tensors) -> str:
    """Rule Z1."""
    blanks = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta").requires_grad_(t.requires_grad)
        for t in tensors
    ]
    leaves = [blank for blank in blanks if blank.requires_grad]
    with _Calls() as calls, _Constants(calls), saved_tensors_hooks(_as_it_is, _as_it_is):
        calls.note("arguments", [(blank, blank.requires_grad) for blank in blanks])
        made = function(blanks)
        calls.note("results", [(tensor, tensor.requires_grad) for tensor in made])
        graded = [tensor for tensor in made if tensor.requires_grad]
        if graded:
            seeds = [torch.empty_like(tensor) for tensor in graded]
            calls.note("gradients", torch.autograd.grad(graded, leaves, seeds, allow_unused=True))
    return calls.digest.hexdigest()


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """All calls of ATen, with tensors by the order in which their memory is met."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.digest = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._alive: list[Tensor] = []  # so that no memory is met twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note(func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, *items: Any) -> None:
        self.digest.update(repr(pytree.tree_map_only(Tensor, self._name, items)).encode())

    def _name(self, tensor: Tensor) -> tuple[Any, ...]:
        self._alive.append(tensor)
        memory, content = tensor.untyped_storage()._cdata, None
        if memory not in self._met and tensor.device.type != "meta":
            content = tensor.tolist()
        number = self._met.setdefault(memory, len(self._met))
        return number, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, content


class _Constants(TorchFunctionMode):
    """Numbers that become tensors: where there is no data, no operator sees them."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FROM_DATA:
            self.calls.note(func, args, kwargs)
        return func(*args, **(kwargs or {}))


_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, Tensor.new_tensor})
