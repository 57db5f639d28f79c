"""Functions of torch on parts: each is a module of one call, planned like any other.

So a reduction over the image is one over all ranks, a window fetches its halo, and what has no box rule is refused by
its name, on every rank. Plans are kept by function and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import InputError
from .join import device_of, group_of
from .module import DistributedModule, distribute
from .part import Part

# What is done to each element where it lies, and what one rank cannot know of the whole.
_BY_ELEMENT = {"to", "detach", "clone", "contiguous", "float", "double", "half", "bfloat16", "int", "long", "bool"}
_NOT_HERE = {"item", "tolist", "numpy", "bool", "float", "int", "index", "len", "iter"}


def run_function(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Of whole arrays, where some are parts."""
    name = getattr(func, "__name__", str(func))
    first = args[0] if args else None
    if isinstance(first, Part) and name in _BY_ELEMENT:
        return _by_element(first, getattr(first.to_local(), name)(*args[1:], **kwargs))
    _check_function(name)
    mesh = first.device_mesh if isinstance(first, Part) else next(_meshes((*args, *kwargs.values())))
    try:
        return _module(mesh, func)(*args, **kwargs)
    except InputError as error:
        what = f"'{name.strip('_')}' of parts: {error.what}"
        raise type(error)(what, where=error.where, hint=error.hint or "part.whole() gathers what is small") from error


def _by_element(source: Part, made: Any) -> Part:
    if made.device.type != source.device.type:
        raise InputError(f"a part cannot leave its mesh for {made.device}", hint="part.local, or part.whole()")
    return replace(source, _local=made)


def _check_function(name: str) -> None:
    """Refuse what means nothing for a box of an array."""
    if name.strip("_") in _NOT_HERE and name not in _BY_ELEMENT:
        what = f"'{name.strip('_')}' of a part: this rank has only a box of it"
        raise InputError(what, hint="part.local for the box, part.whole() for all of it, part.mean() for a number")
    if name == "backward":
        raise InputError("a part is not a loss", hint="part.sum().backward(), or any other function to one number")
    if name == "grad":
        raise InputError("torch.autograd.grad for a part", hint="torch.autograd.grad(loss, part.to_local())")
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        raise InputError(f"'{name}' writes to a part in place", hint="what returns a new one: x = x.relu()")


def _meshes(items: Sequence[Any]) -> Any:
    """The meshes of the parts among arguments, which may be in lists."""
    for item in items:
        if isinstance(item, Part):
            yield item.device_mesh
        elif isinstance(item, list | tuple):
            yield from _meshes(item)


class _Function(nn.Module):
    """A call of a function."""

    def __init__(self, function: Callable[..., Any], device: torch.device):
        super().__init__()
        self.function = function
        self.here = nn.Parameter(torch.empty(0, device=device), requires_grad=False)  # a module runs where these are

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def _get_name(self) -> str:
        return getattr(self.function, "__name__", str(self.function))


_made: dict[tuple[DeviceMesh, Callable[..., Any]], DistributedModule] = {}


def _module(mesh: DeviceMesh, func: Callable[..., Any]) -> DistributedModule:
    found = _made.get((mesh, func))
    if found is None or found._state.group is not group_of(mesh):  # the mesh was closed, and made anew
        found = _made[mesh, func] = distribute(_Function(func, device_of(mesh)), mesh)
    return found
