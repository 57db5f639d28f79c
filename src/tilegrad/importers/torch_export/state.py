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
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import InternalError
from .reach import Container, Reach, Variable, contents

Type = tuple[Any, ...]


def _types(tensors: Sequence[Tensor]) -> list[Type]:
    return [(t.shape, t.dtype, t.device, t.requires_grad) for t in tensors]


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
        tensors_now = contents(reach.tensors)
        self._types, self._shared = _types(tensors_now), _shared(tensors_now)
        self._names = [c.name for c in plain]

    def holds(self) -> bool:
        """Is everything as it was?"""
        return self.difference(name=False) is None

    def difference(self, *, name: bool = True) -> str | None:
        """None where nothing differs, else what does."""
        try:
            if any(self._empty):
                return next(c.name for c in self.reach.containers if not c.content and c.live) if name else ""
            if self._live != self._then:  # compares by identity first, then by value
                return self._first_changed() if name else ""
            for live, then, tensors in self._mixed:
                if _without(live, live, tensors) != then:
                    return "attributes beside tensors"
            for variable in self.reach.variables:
                if variable.differs():
                    return variable.name
            now = contents(self.reach.tensors)
            if _types(now) != self._types or _shared(now) != self._shared:
                return "the type of a tensor, or which tensors are shared"
            if any(not np.array_equal(a, b) for a, b in self.reach.arrays):
                return "the content of a NumPy array"
        except (AttributeError, KeyError, IndexError, ValueError, RuntimeError, TypeError) as error:
            return f"an attribute ({type(error).__name__})"  # a slot is gone, or values that cannot be compared
        return None

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
        return None if torch.equal(torch.get_rng_state(), self._torch) else "a seed of its own (torch.manual_seed)"


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
