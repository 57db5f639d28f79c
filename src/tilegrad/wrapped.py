"""A module that stands for another, and is it in all but how it runs.

Both share one `__dict__`: parameters, buffers, children, hooks, the training flag and plain attributes are the same
objects under the same names, whichever of the two is written to. What the wrapper knows besides is kept in slots.
Methods that the wrapped class has of its own (`train`, `state_dict` with extra state, properties) are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from .errors import InputError, RunError

# What a class may define in its own way, and its parents call on it.
_ITS_OWN = (
    "train", "eval", "requires_grad_", "zero_grad", "state_dict", "load_state_dict", "_save_to_state_dict",
    "_load_from_state_dict", "_apply", "apply", "to", "to_empty", "cuda", "cpu", "float", "double", "half", "bfloat16",
    "type", "share_memory", "get_submodule", "get_parameter", "get_buffer",
)  # fmt: skip


class Wrapped(nn.Module):
    """Base of modules that run another one's computation in their own way."""

    __slots__ = ("_tilegrad_module", "_tilegrad_state")
    _tilegrad_module: nn.Module
    _tilegrad_state: Any

    def __init__(self, module: nn.Module, state: Any):
        if isinstance(module, Wrapped):
            raise InputError("this module is tiled already", hint="tilegrad.tile(model.module, …)")
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

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """Ours, even where someone has put another `forward` into the module's attributes."""
        return self._run

    def __getattr__(self, name: str) -> Any:
        """Anything the wrapped module has, such as `model.features`."""
        return getattr(self._tilegrad_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tilegrad_module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._tilegrad_module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._tilegrad_module)})

    def _get_name(self) -> str:
        return f"{type(self).__name__}({type(self._tilegrad_module).__name__})"

    def _replicate_for_data_parallel(self) -> Any:
        raise RunError(
            "a tiled module cannot be copied to several devices by DataParallel",
            hint="DistributedDataParallel, or a mesh: tilegrad.tile(model, mesh=…)",
        )


def _delegate(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(nn.Module, name))
    def method(self: Wrapped, *args: Any, **kwargs: Any) -> Any:
        found = getattr(self.module, name)(*args, **kwargs)
        return self if found is self.module else found

    return method


for _name in _ITS_OWN:
    setattr(Wrapped, _name, _delegate(_name))
