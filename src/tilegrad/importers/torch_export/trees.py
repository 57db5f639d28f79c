"""Arguments and results of any Python structure, taken apart into tensors and the rest.

Lists, tuples, dicts and their kin, dataclasses and plain objects are looked into; a subtree without tensors stays the
object that it is. One tensor in two places is one leaf.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...errors import InputError
from ...torch_private import pytree
from .reach import PLAIN, is_library


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, by its number."""

    index: int


@dataclass(frozen=True, slots=True)
class Branch:
    """Something with tensors in it, by its children and how it is put together again."""

    children: tuple[Any, ...]
    kind: Any
    keys: tuple[Any, ...]
    build: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Same:
    """An object that is equal to nothing but itself."""

    item: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.item is other.item

    def __hash__(self) -> int:
        return id(self.item)


def take(
    item: Any,
    tensors: list[Any],
    name: str = "",
    names: list[str] | None = None,
    kinds: tuple[type, ...] = (Tensor,),
) -> Any:
    """`item` with its tensors put into the list, and leaves in their places. `names`: where each of them was."""
    if isinstance(item, kinds):
        for at, known in enumerate(tensors):
            if known is item:
                return Leaf(at)
        tensors.append(item)
        if names is not None:
            names.append(name)
        return Leaf(len(tensors) - 1)
    parts = _parts(item)
    if parts is None:
        return item
    keys, values = parts
    children = tuple(take(v, tensors, f"{name}_{k}", names, kinds) for k, v in zip(keys, values, strict=True))
    if not any(isinstance(child, Leaf | Branch) for child in children):
        return item
    return Branch(children, _kind(item), tuple(keys), _builder(item, keys))


def fill(tree: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of `take`, with these tensors."""
    if isinstance(tree, Leaf):
        return tensors[tree.index]
    if isinstance(tree, Branch):
        return tree.build([fill(child, tensors) for child in tree.children])
    return tree


def leaves(tree: Any) -> Iterator[Any]:
    """Leaves and everything else that is not looked into."""
    if isinstance(tree, Branch):
        for child in tree.children:
            yield from leaves(child)
    else:
        yield tree


def key_of(tree: Any) -> Any:
    """What makes two trees alike: their structure, where tensors stand, and the value of all else."""
    if isinstance(tree, Leaf):
        return tree
    if isinstance(tree, Branch):
        return tree.kind, tree.keys, tuple(map(key_of, tree.children))
    if isinstance(tree, PLAIN) and not isinstance(tree, enum.Enum):
        return type(tree), repr(tree)
    if isinstance(tree, np.ndarray | np.generic):
        return type(tree), tree.shape, str(tree.dtype), tree.tobytes()
    if isinstance(tree, set | frozenset):
        return type(tree), frozenset(map(key_of, tree))
    parts = _parts(tree)
    if parts is not None:
        keys, values = parts
        return _kind(tree), tuple(map(key_of, keys)), tuple(map(key_of, values))
    return Same(tree)


def _parts(item: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Keys and children of what is looked into."""
    if isinstance(item, dict):
        return list(item), list(item.values())
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return item._fields, list(item)
    if type(item) in (list, tuple):
        return range(len(item)), item
    if is_record(item):
        return list(vars(item)), list(vars(item).values())
    if type(item) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)
        return range(len(children)), children
    return None


def _kind(item: Any) -> Any:
    """Its class, and what a class that torch was told of keeps besides its children."""
    if isinstance(item, dict) or is_record(item) or type(item) not in pytree.SUPPORTED_NODES:
        return type(item)
    return type(item), key_of(pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)[1])


def is_record(item: Any) -> bool:
    """An object that is nothing but its attributes: a dataclass, a namespace, one of the user's own classes."""
    if isinstance(item, (nn.Module, type, types.FunctionType, types.ModuleType, enum.Enum, Iterator)):
        return False
    if not hasattr(item, "__dict__") or callable(item):
        return False
    plain = dataclasses.is_dataclass(item) or isinstance(item, types.SimpleNamespace)
    return plain or not is_library(sys.modules.get(type(item).__module__))


def _builder(item: Any, keys: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """How to make another of its kind from children. It holds no tensor."""
    kind = type(item)
    if kind in (list, tuple) or hasattr(kind, "n_sequence_fields"):  # torch.return_types.max takes one sequence
        return kind
    if isinstance(item, tuple):
        return lambda values: kind(*values)
    if not isinstance(item, dict) and not is_record(item) and kind in pytree.SUPPORTED_NODES:
        _, context = pytree.SUPPORTED_NODES[kind].flatten_fn(item)
        unflatten = pytree.SUPPORTED_NODES[kind].unflatten_fn
        return lambda values: unflatten(list(values), context)
    shell = copy.copy(item)
    if shell is item:  # it has but one instance, such as a logger
        raise InputError(f"a {kind.__name__} with tensors in it", where="the arguments", hint="a dict, or a dataclass")
    _content(shell).clear()

    def build(values: Sequence[Any]) -> Any:
        made = copy.copy(shell)
        _content(made).update(zip(keys, values, strict=True))
        return made

    return build


def _content(item: Any) -> dict[Any, Any]:
    return item if isinstance(item, dict) else vars(item)
