"""Arguments and results of any Python structure, taken apart into tensors and the rest.

Lists, tuples, dicts and their kin, dataclasses and plain objects are looked into; a subtree without tensors stays the
object that it is. One tensor in two places is one leaf.
"""

from __future__ import annotations

import copy
import enum
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

_VALUES = (int, float, complex, str, bytes, bool, type(None), range, slice, torch.dtype, torch.device, torch.Size)


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
    keys, values, build = parts
    children = tuple(take(v, tensors, f"{name}_{k}", names, kinds) for k, v in zip(keys, values, strict=True))
    if not any(isinstance(child, Leaf | Branch) for child in children):
        return item
    return Branch(children, type(item), tuple(keys), build)


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
    if isinstance(tree, _VALUES) and not isinstance(tree, enum.Enum):
        return type(tree), repr(tree)
    if isinstance(tree, np.ndarray | np.generic):
        return type(tree), tree.shape, str(tree.dtype), tree.tobytes()
    if isinstance(tree, set | frozenset):
        return type(tree), frozenset(map(key_of, tree))
    parts = _parts(tree)
    if parts is not None:
        keys, values, _ = parts
        return type(tree), tuple(map(key_of, keys)), tuple(map(key_of, values))
    return Same(tree)


def _parts(item: Any) -> tuple[Sequence[Any], Sequence[Any], Callable[[Sequence[Any]], Any]] | None:
    """Keys, children and how to put them together, of what is looked into."""
    if isinstance(item, dict):
        keys, shell = list(item), _emptied(item)
        return keys, list(item.values()), lambda values: _filled(shell, dict(zip(keys, values, strict=True)))
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        kind = type(item)
        return item._fields, list(item), lambda values: kind(*values)
    if type(item) in (list, tuple):
        return range(len(item)), item, type(item)
    if type(item) in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)
        unflatten = pytree.SUPPORTED_NODES[type(item)].unflatten_fn
        return range(len(children)), children, lambda values: unflatten(list(values), context)
    if isinstance(item, (nn.Module, type, types.FunctionType, types.ModuleType, torch.Generator, enum.Enum)):
        return None
    if not getattr(item, "__dict__", None) or isinstance(item, type):
        return None
    names, shell = list(vars(item)), _emptied(item)
    values = [vars(item)[n] for n in names]
    return names, values, lambda values: _filled(shell, dict(zip(names, values, strict=True)))


def _emptied(item: Any) -> Any:
    """A copy of a dict or object without its content: what it takes to make it again, and no tensor."""
    if type(item) is dict:
        return {}
    made = copy.copy(item)
    (made if isinstance(made, dict) else vars(made)).clear()
    return made


def _filled(shell: Any, content: dict[Any, Any]) -> Any:
    made = copy.copy(shell)
    (made if isinstance(made, dict) else vars(made)).update(content)
    return made
