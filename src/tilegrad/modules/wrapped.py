"""A module that stands for another, and is it in all but how it runs.

Both share one `__dict__`: parameters, buffers, children, hooks, the training flag and plain attributes are the same
objects under the same names, whichever of the two is written to. What the wrapper knows besides is kept in slots.
Methods that the wrapped class has of its own (`train`, `state_dict` with extra state, properties) are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from ..errors import InputError, RunError
from ..torch_private import exporting

# What a class may define in its own way, and its parents call on it.
_ITS_OWN = (
    "train", "eval", "requires_grad_", "zero_grad", "state_dict", "load_state_dict", "_save_to_state_dict",
    "_load_from_state_dict", "_apply", "apply", "to", "to_empty", "cuda", "cpu", "float", "double", "half", "bfloat16",
    "type", "share_memory", "get_submodule", "get_parameter", "get_buffer",
)  # fmt: skip


class _first:
    """A method that is found before an attribute of the same name."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self.function if owner is None else functools.partial(self.function, owner)

    def __set__(self, owner: Any, value: Any) -> None:
        setattr(owner.module, self.function.__name__, value)


class Wrapped(nn.Module):
    """Base of modules that run another one's computation in their own way."""

    __slots__ = ("_tilegrad_module", "_tilegrad_state")
    _tilegrad_module: nn.Module
    _tilegrad_state: Any
    _opaque: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, module: nn.Module, state: Any):
        if not isinstance(module, nn.Module):
            raise InputError(f"{type(module).__name__} is not an nn.Module", hint="tilegrad.tile(model, …)")
        if isinstance(module, Wrapped):
            raise InputError("this module is tiled already", hint="tilegrad.tile(model.module, …)")
        if Wrapped._opaque is None:  # not before, since it loads all of torch's compiler, as does a capture
            opaque = torch.compiler.disable(_run, reason="a tiled module is one call")  # type: ignore[no-untyped-call]
            Wrapped._opaque = staticmethod(opaque)
        object.__setattr__(self, "_tilegrad_module", module)
        object.__setattr__(self, "_tilegrad_state", state)
        object.__setattr__(self, "__dict__", module.__dict__)

    @property
    def module(self) -> nn.Module:
        """The module as it was given."""
        return self._tilegrad_module

    @property
    def _state(self) -> Any:
        return self._tilegrad_state

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError  # pragma: no cover - every wrapper has its own

    @_first
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs in its own way, even where someone has put another `forward` into the module's attributes. What
        `torch.compile` makes of code around it ends before it and begins anew behind it."""
        assert Wrapped._opaque is not None
        return (_run if exporting() else Wrapped._opaque)(self, *args, **kwargs)

    @property
    def _compiled_call_impl(self) -> None:  # type: ignore[override]
        """What `module.compile()` has put into the attributes would run the module itself."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: see `forward`."""

    def __getattr__(self, name: str) -> Any:
        """Anything the wrapped module has, such as `model.features`."""
        return getattr(self._tilegrad_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":  # `fully_shard` makes a class of its own for what it is called on
            object.__setattr__(self, name, value)
        else:
            setattr(self._tilegrad_module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._tilegrad_module, name)

    def __len__(self) -> int:
        return len(self._any)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._any)

    def __getitem__(self, key: Any) -> Any:
        return self._any[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._any[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._any[key]

    def __contains__(self, item: Any) -> bool:
        return item in self._any

    @property
    def _any(self) -> Any:
        """The module, where it is a sequence or a dict of modules."""
        return self._tilegrad_module

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._tilegrad_module)})

    def _get_name(self) -> str:
        return f"{type(self).__name__}({type(self._tilegrad_module).__name__})"

    def _replicate_for_data_parallel(self) -> Any:
        raise RunError(
            "a tiled module cannot be copied to several devices by DataParallel",
            hint="DistributedDataParallel, or a mesh: tilegrad.tile(model, mesh=…)",
        )


def _run(module: Wrapped, *args: Any, **kwargs: Any) -> Any:
    return module._run(*args, **kwargs)


def _delegate(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(nn.Module, name))
    def method(self: Wrapped, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self.module, name)(*args, **kwargs)
        return self if found is self.module else found

    return method


for _name in _ITS_OWN:
    setattr(Wrapped, _name, _delegate(_name))
