"""What a module remembers in Python, besides its parameters: everything a capture bakes in, and everything a forward
pass may write.

The state of a module is a set of *containers*: the attributes of every module and object that can be reached from it,
lists, dicts and sets among them, and the globals, closures and class attributes that its code reads. A slot of a
container holds a tensor, another container, or a plain value.

Rule M1  Tensors count by type (shape, dtype, device, whether they need a gradient) and by which slots share one; their
         content and identity do not matter, since they are looked up anew for every call.
Rule M2  Everything else counts by value: a graph is used again only where all of it is as it was.
Rule M3  What a forward pass writes while it is traced is undone, whatever happens.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import random
import sys
import sysconfig
import types
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import InternalError

_PLAIN = (int, float, complex, str, bytes, bool, type(None), range, slice, torch.dtype, torch.device, torch.Size)
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
class Slot:
    """One entry of a container: `holder[key]`, called `name` in messages."""

    holder: Any
    key: Any
    name: str

    def get(self) -> Any:
        return self.holder.cell_contents if self.key is None else self.holder[self.key]

    def set(self, value: Any) -> None:
        self.holder[self.key] = value


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
class Variable:
    """A global or a variable of an enclosing function that the model's code names, and what it was."""

    holder: Any  # the globals, a class, or a cell
    key: str | None
    name: str
    content: Any

    def get(self) -> Any:
        if self.key is None:
            return self.holder.cell_contents
        return (vars(self.holder) if isinstance(self.holder, type) else self.holder).get(self.key)

    def restore(self) -> None:
        if self.key is None:
            self.holder.cell_contents = self.content
        elif isinstance(self.holder, type):
            setattr(self.holder, self.key, self.content)
        else:
            self.holder[self.key] = self.content

    def changed(self) -> bool:
        return self.get() is not self.content

    def differs(self) -> bool:
        """Is it another value? Containers and tensors are looked at elsewhere."""
        now, then = self.get(), self.content
        if now is then or (isinstance(now, Tensor) and isinstance(then, Tensor)):
            return False
        return type(now) is not type(then) or not isinstance(then, (*_PLAIN, tuple)) or bool(now != then)


def _items(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else [(None, item) for item in container]


class Reach:
    """Walks all containers, tensors and watched values that a module can reach."""

    def __init__(self, module: nn.Module):
        self.containers: list[Container] = []
        self.tensors: list[Slot] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.arrays: list[tuple[Any, Any]] = []  # NumPy arrays, and what was in them
        self.generators: list[tuple[str, Any]] = []  # of random numbers
        self.iterators: list[tuple[str, Any]] = []
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
            self.tensors.append(Slot(holder, key, name))
        elif isinstance(value, nn.Module):
            self._module(value, name)
        elif isinstance(value, (*_PLAIN, *_CODE)):
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
            self.iterators.append((name, value))
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


Type = tuple[Any, ...]


def tensor_type(tensor: Tensor) -> Type:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


@dataclass
class Snapshot:
    """The state of a module at one moment: answers whether it is the same now (rules M1 and M2)."""

    reach: Reach = field(repr=False)

    @classmethod
    def take(cls, module: nn.Module) -> Snapshot:
        return cls(Reach(module))

    def __post_init__(self) -> None:
        reach = self.reach
        tensors = {(id(slot.holder), slot.key) for slot in reach.tensors}
        holders = {holder for holder, _ in tensors}
        self._empty = [c.live for c in reach.containers if not c.content]
        filled = [c for c in reach.containers if c.content]
        # a container of nothing but plain values is compared at once; one that has tensors too, without them
        plain = [c for c in filled if id(c.live) not in holders]
        self._live, self._then = [c.live for c in plain], [c.content for c in plain]
        self._mixed = [(c.live, _without(c.content, c.live, tensors), tensors) for c in filled if id(c.live) in holders]
        self._types = [tensor_type(slot.get()) for slot in reach.tensors]
        self._shared = _shared([slot.get() for slot in reach.tensors])
        self._names = [c.name for c in plain]

    def holds(self) -> bool:
        """Is everything as it was?"""
        return self.difference(name=False) is None

    def difference(self, *, name: bool = True) -> str | None:
        """None where nothing differs, else what does."""
        try:
            if any(self._empty):
                return self._first_filled() if name else ""
            if self._live != self._then:  # compares by identity first, then by value
                return self._first_changed() if name else ""
            for live, then, tensors in self._mixed:
                if _without(live, live, tensors) != then:
                    return "attributes beside tensors"
            for variable in self.reach.variables:
                if variable.differs():
                    return variable.name
            now = [slot.get() for slot in self.reach.tensors]
            if [tensor_type(t) for t in now] != self._types or _shared(now) != self._shared:
                return "the type of a tensor, or which tensors are shared"
            if any(not np.array_equal(a, b) for a, b in self.reach.arrays):
                return "the content of a NumPy array"
        except (AttributeError, KeyError, IndexError, ValueError, RuntimeError, TypeError) as error:
            return f"an attribute ({type(error).__name__})"  # a slot is gone, or values that cannot be compared
        return None

    def _first_filled(self) -> str:
        return next(c.name for c in self.reach.containers if not c.content and c.live)

    def _first_changed(self) -> str:
        for live, then, name in zip(self._live, self._then, self._names, strict=True):
            if live != then:
                keys = [k for k in {**live, **then} if live.get(k) != then.get(k)] if isinstance(live, dict) else []
                return f"{name}.{keys[0]}" if keys else name
        raise InternalError("a difference that is none")


def _without(content: Any, live: Any, tensors: set[tuple[int, Any]]) -> Any:
    """A container's content but for the slots that hold tensors."""
    if isinstance(content, dict):
        return {k: v for k, v in content.items() if (id(live), k) not in tensors}
    if isinstance(content, list | tuple | deque):
        return [None if (id(live), k) in tensors else v for k, v in enumerate(content)]
    return content


def _shared(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor the number of the first that is the same one."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(t), at) for at, t in enumerate(tensors)])


@dataclass(frozen=True)
class Write:
    """A container that a forward pass leaves with other content: `fill` gives it from what is there now and the
    tensors that were made."""

    container: Container | Variable
    fill: Callable[[Any, Sequence[Tensor]], Any]

    def apply(self, tensors: Sequence[Tensor]) -> None:
        live = self.container.live if isinstance(self.container, Container) else None
        dataclasses.replace(self.container, content=self.fill(live, tensors)).restore()


@dataclass
class Undo:
    """The state of a module before something that may change it; `with` puts it back (rule M3)."""

    module: nn.Module
    reach: Reach = field(init=False, repr=False)

    def __enter__(self) -> Undo:
        self.reach = Reach(self.module)
        self._random = random.getstate()
        self._numpy: Any = np.random.get_state()
        self._own = [_draw_state(g) for _, g in self.reach.generators]
        self._torch = torch.get_rng_state()
        self._steps = [_progress(each) for _, each in self.reach.iterators]
        return self

    def __exit__(self, *_raised: object) -> None:
        self.restore()
        torch.set_rng_state(self._torch)
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        for (_, generator), own in zip(self.reach.generators, self._own, strict=True):
            _set_draw_state(generator, own)

    def restore(self) -> None:
        for container in self.changed():
            container.restore()
        for array, content in self.reach.arrays:
            if array.flags.writeable:
                array[...] = content

    def changed(self) -> list[Container | Variable]:
        every: list[Container | Variable] = [*self.reach.containers, *self.reach.variables]
        return [each for each in every if each.changed()]

    def drawn(self) -> str | None:
        """Which generator of random numbers has moved on, if one has."""
        if random.getstate() != self._random:
            return "Python's random"
        if repr(np.random.get_state()) != repr(self._numpy):
            return "NumPy's random"
        for (name, generator), before in zip(self.reach.generators, self._own, strict=True):
            if repr(_draw_state(generator)) != repr(before):
                return f"the generator '{name}'"
        for (name, iterator), step in zip(self.reach.iterators, self._steps, strict=True):
            if _progress(iterator) != step:
                return f"the iterator '{name}'"
        return None if torch.equal(torch.get_rng_state(), self._torch) else "a seed of its own (torch.manual_seed)"


def _progress(iterator: Any) -> Any:
    """How far an iterator has come, as far as it tells."""
    frame = getattr(iterator, "gi_frame", None)
    hint = operator.length_hint(iterator, -1) if not isinstance(iterator, types.GeneratorType) else -1
    return repr(iterator), hint, frame.f_lasti if frame is not None else None


def _draw_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def _set_draw_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
