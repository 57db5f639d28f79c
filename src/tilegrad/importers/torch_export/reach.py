"""Everything that a module can reach: containers, tensors, and what its code names.

Containers are the attributes of modules and objects, lists, dicts and sets; variables are globals, class attributes and
variables of enclosing functions that the module's code reads.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import sys
import sysconfig
import types
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (int, float, complex, str, bytes, bool, type(None), range, slice, torch.dtype, torch.device, torch.Size)


_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type, types.ModuleType)


_REGISTRIES = ("_parameters", "_buffers", "_modules")


_LIBRARIES = (
    *(sysconfig.get_path(each) + os.sep for each in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parent.parent) + os.sep,
    str(Path(__file__).parents[2]) + os.sep,
)


_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


HIDDEN = "_tilegrad_hidden"  # the child under which tensors that no registry knows are captured


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One entry of a container: `holder[key]`, called `name` in messages."""

    holder: Any
    key: Any
    name: str

    def get(self) -> Any:
        return self.holder.cell_contents if self.key is None else self.holder[self.key]

    def set(self, value: Any) -> None:
        if self.key is None:
            self.holder.cell_contents = value
        elif isinstance(self.holder, type):
            setattr(self.holder, self.key, value)
        elif not isinstance(self.holder, tuple | types.MappingProxyType):
            self.holder[self.key] = value


def contents(slots: Iterable[TensorSlot]) -> list[Any]:
    """What is in them: `get`, in every call of a module, and so without one for each."""
    return [s.holder.cell_contents if s.key is None else s.holder[s.key] for s in slots]


@dataclass(frozen=True, slots=True)
class Container:
    """A dict, list, set or deque that the module can reach, and what was in it."""

    live: Any
    name: str
    content: Any  # a shallow copy

    def restore(self) -> None:
        if isinstance(self.live, list):
            self.live[:] = self.content
        elif isinstance(self.live, deque):
            self.live.clear()
            self.live.extend(self.content)
        else:
            self.live.clear()
            self.live.update(self.content)

    def changed(self) -> bool:
        """Is anything else in it than before, be it equal?"""
        now, then = _items(self.live), _items(self.content)
        return len(now) != len(then) or any(a is not b or k != j for (k, a), (j, b) in zip(now, then, strict=True))


@dataclass(frozen=True, slots=True)
class Variable(TensorSlot):
    """A global, an attribute of a class or a variable of an enclosing function (then without a key) that the model's
    code names, and what it was."""

    content: Any

    def get(self) -> Any:
        if self.key is None:
            return self.holder.cell_contents
        return (vars(self.holder) if isinstance(self.holder, type) else self.holder).get(self.key)

    def restore(self) -> None:
        self.set(self.content)

    def changed(self) -> bool:
        return self.get() is not self.content

    def differs(self) -> bool:
        """Is it another value? Containers and tensors are looked at elsewhere."""
        now, then = self.get(), self.content
        if now is then or (isinstance(now, Tensor) and isinstance(then, Tensor)):
            return False
        return type(now) is not type(then) or not isinstance(then, (*PLAIN, tuple)) or bool(now != then)


def _items(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else [(None, item) for item in container]


class Reach:
    """Walks all containers, tensors and watched values that a module can reach."""

    def __init__(self, module: nn.Module):
        self.containers: list[Container] = []
        self.tensors: list[TensorSlot] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.arrays: list[tuple[Any, Any]] = []  # NumPy arrays, and what was in them
        self.generators: list[tuple[str, Any]] = []  # of random numbers
        self.iterators: list[TensorSlot] = []
        self.variables: list[Variable] = []
        self._seen: set[int] = set()
        self._module(module, "")
        for name in _GLOBAL_HOOKS:
            self._collection(getattr(nn.modules.module, name), name)
        for kind in {type(m) for _, m in self.modules}:
            self._class(kind)

    def _module(self, module: nn.Module, name: str) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        self.modules.append((name, module))
        attributes = module.__dict__
        self.containers.append(Container(attributes, name or type(module).__name__, dict(attributes)))
        for key, value in list(attributes.items()):
            self._value(value, attributes, key, name if key in _REGISTRIES else _dot(name, key))

    def _value(self, value: Any, holder: Any, key: Any, name: str) -> None:
        if isinstance(value, Tensor):
            self.tensors.append(TensorSlot(holder, key, name))
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, (*PLAIN, *_CODE)):
            self._callable(value)
        elif id(value) in self._seen:
            return
        elif isinstance(value, dict | list | set | deque | tuple):
            self._collection(value, name)
        elif isinstance(value, np.ndarray):
            self._seen.add(id(value))
            self.arrays.append((value, value.copy()))
        elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            self.generators.append((name, value))
        elif isinstance(value, Iterator):
            self.iterators.append(TensorSlot(holder, key, name))
        elif self._is_open(value):
            self._seen.add(id(value))
            self.containers.append(Container(vars(value), name, dict(vars(value))))
            for inner, item in list(vars(value).items()):
                self._value(item, vars(value), inner, _dot(name, inner))

    def _collection(self, value: Any, name: str) -> None:
        self._seen.add(id(value))
        if not isinstance(value, tuple):
            self.containers.append(Container(value, name, value.copy()))
        if isinstance(value, set):
            return
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, item in pairs:
            self._value(item, value, key, _dot(name, key) if isinstance(key, str) else f"{name}[{key!r}]")

    def _is_open(self, value: Any) -> bool:
        """Objects whose attributes are the model's business: configurations, and what its author wrote beside it."""
        if not hasattr(value, "__dict__"):
            return False
        own = not is_library(sys.modules.get(type(value).__module__))
        return own or dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace | Namespace)

    # -- code: globals, closures, class attributes ---------------------------------------------------------------------

    def _class(self, kind: type) -> None:
        for each in kind.__mro__:
            if id(each) in self._seen or is_library(sys.modules.get(each.__module__)):
                continue
            self._seen.add(id(each))
            for key, value in list(vars(each).items()):
                function = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
                if isinstance(function, types.FunctionType):
                    self._function(function)
                    self.variables.append(Variable(each, key, f"{each.__name__}.{key}", value))
                elif not key.startswith("__"):
                    self._value(value, vars(each), key, f"{each.__name__}.{key}")
                    self.variables.append(Variable(each, key, f"{each.__name__}.{key}", value))

    def _callable(self, value: Any) -> None:
        if isinstance(value, types.MethodType):
            value = value.__func__
        if isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, types.FunctionType):
            self._function(value)

    def _function(self, function: types.FunctionType) -> None:
        if id(function) in self._seen or _in_library(function.__code__.co_filename):
            return
        self._seen.add(id(function))
        names = dict.fromkeys(_names(function.__code__))
        for name in names:
            if name in function.__globals__:
                self._watch(function.__globals__, name, function.__globals__[name], name)
                self._settings(function.__globals__[name], names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._watch(cell, None, value, name)

    def _settings(self, value: Any, names: Iterable[str]) -> None:
        """A module of the author's own, such as `settings.py`: what his code may read of it."""
        if isinstance(value, types.ModuleType) and not is_library(value):
            for name in names:
                if name in vars(value):
                    self._watch(vars(value), name, vars(value)[name], f"{value.__name__}.{name}")

    def _watch(self, holder: Any, key: Any, value: Any, name: str) -> None:
        if isinstance(value, type):
            self._class(value)
        else:
            self._value(value, holder, key, name)
        self.variables.append(Variable(holder, key, name, value))


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that code reads, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def is_library(module: types.ModuleType | None) -> bool:
    """Is it a library? Its globals are not the model's state."""
    if module is None or module.__name__ == "builtins":
        return True
    return _in_library(getattr(module, "__file__", None) or "")


@functools.cache
def _in_library(file: str) -> bool:
    return file.startswith(_LIBRARIES)


def _dot(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)
