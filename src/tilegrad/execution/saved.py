"""What autograd saves of an island, and who holds it.

A record that refers holds no memory that is kept elsewhere: what autograd saves of stored values is replaced by a
reference by name, looked up when backward runs; the value may have been freed and made again in between. What it saves
besides (indices, masks, statistics) is the record's own.

Rule T1  Values enter through a function without data, so that the edges of autograd's graph hold no tensor.
Rule T2  A saved tensor that lies in the memory of a value that the plan has there for backward is a reference; all else
         is the record's own.
Rule T3  A gradient that is a part of another's memory, or does not fill its own, is copied out; one that is all of it
         (a reshape, a plain sum) is an alias.
Rule T4  A reference outlives the layout of its value: where the value was made again with other strides, what was saved
         of it is read from a copy with the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks


class Enter(Function):
    """Rule T1. A tensor as an input of a record; the anchor makes autograd record it, `arrive` gets its gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor, arrive: Callable[[Tensor], None]) -> Tensor:
        ctx.arrive = arrive
        ctx.set_materialize_grads(False)
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, None, None]:
        if grad is not None:
            ctx.arrive(grad)
        return None, None, None


@dataclass(frozen=True, slots=True)
class SavedView:
    """A tensor in the memory of a value, and the strides that the value had."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # from where the value begins in its memory
    value_stride: tuple[int, ...]

    def of(self, value: Tensor) -> Tensor:
        laid = zip(value.shape, value.stride(), self.value_stride, strict=True)
        if any(n > 1 and now != then for n, now, then in laid):
            value = _relaid(value, self.value_stride)
        return value.as_strided(self.size, self.stride, value.storage_offset() + self.start)


@dataclass
class Saved:
    """What autograd saved: a tensor of its own, or a named value, or a view of one."""

    tensor: Tensor | None
    name: str = ""
    view: SavedView | None = None  # None: the value itself


class References:
    """What autograd saves, by name where it lies in the memory of a named value."""

    def __init__(self, lookup: Callable[[str], Tensor]):
        self.saved: list[Saved] = []
        self.lookup = lookup

    def hooks(self) -> Any:
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Saved:
        self.saved.append(Saved(tensor.detach()))
        return self.saved[-1]

    def _unpack(self, item: Saved) -> Tensor:
        if item.tensor is not None:
            return item.tensor
        value = self.lookup(item.name)
        return value if item.view is None else item.view.of(value)

    def refer(self, values: Mapping[str, Tensor]) -> None:
        _refer(self.saved, values)

    @property
    def own(self) -> list[Saved]:
        """What autograd saved besides values."""
        return [item for item in self.saved if not item.name]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(item.name for item in self.saved if item.name))


class Holdings:
    """What autograd saves as it is, and where that lies. Hooks that do nothing else keep those of the caller (a
    checkpoint's) from what is not theirs."""

    def __init__(self) -> None:
        self.memories: set[int] = set()

    def hooks(self) -> Any:
        return saved_tensors_hooks(self._pack, _as_it_is)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.memories.add(memory_of(tensor))
        return tensor.detach()  # an output knows the node that saves it


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class Adoptions:
    """What autograd saves, behind handles: when a tensor is copied into a held box, the copy is saved instead."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], list[_Handle]] = {}
        self.memories: set[int] = set()

    def hooks(self) -> Any:
        return saved_tensors_hooks(self._pack, lambda handle: handle.tensor)

    def _pack(self, tensor: Tensor) -> _Handle:
        handle, memory = _Handle(tensor.detach()), memory_of(tensor)
        self.memories.add(memory)
        if tensor.numel():
            self.pending.setdefault((memory, int(tensor.storage_offset())), []).append(handle)
        return handle

    def adopt(self, own: Tensor, copy: Tensor) -> None:
        for handle in self.pending.pop(_memory(own), ()) if own.numel() else ():
            if _look(handle.tensor) == _look(own):  # not a permuted view of the same memory
                handle.tensor = copy


class _Handle:
    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def _look(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor looks at its memory."""
    return tensor.shape, tensor.stride(), tensor.dtype


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Which memory a tensor begins in; tells tensors without data apart too."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _refer(saved: Sequence[Saved], values: Mapping[str, Tensor]) -> None:
    """Replace what lies in the memory of a value by a reference to it: to that very value, or to the largest that
    covers it."""
    owners: dict[int, list[tuple[str, Tensor]]] = {}
    for name, value in sorted(values.items(), key=lambda item: -item[1].numel()):
        owners.setdefault(memory_of(value), []).append((name, value))
    for item in saved:
        tensor = item.tensor
        assert tensor is not None
        found = [(name, v) for name, v in owners.get(memory_of(tensor), ()) if _covers(v, tensor)]
        if not found:
            continue
        name, value = next((pair for pair in found if _same(pair[1], tensor)), found[0])
        item.name, item.tensor = name, None
        if not _same(value, tensor):
            start = int(tensor.storage_offset() - value.storage_offset())
            item.view = SavedView(tuple(tensor.shape), tensor.stride(), start, value.stride())


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())


def _covers(value: Tensor, part: Tensor) -> bool:
    """Can a tensor in a value's memory be taken from the value?"""
    if (value.dtype, value.is_conj(), value.is_neg()) != (part.dtype, part.is_conj(), part.is_neg()):
        return False
    start = part.storage_offset() - value.storage_offset()
    return start >= 0 and start + _extent(part) <= _extent(value)


def _extent(tensor: Tensor) -> int:
    """Elements of memory from a tensor's first to its last."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _relaid(value: Tensor, stride: Sequence[int]) -> Tensor:
    """The same content with other strides (0: the same element all along)."""
    value = value[tuple(slice(None) if step else slice(1) for step in stride)]
    return torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device).copy_(value)


def trimmed(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """A node's result without memory around it that only it holds: some reduced losses lie in memory for all that they
    reduce."""
    spare = result.untyped_storage().nbytes() > result.numel() * result.element_size()
    return result.clone() if spare and all(memory_of(result) != memory_of(t) for t in inputs) else result


def memory_of(tensor: Tensor) -> int:
    """Which memory a tensor lies in; tells tensors without data apart too."""
    return tensor.untyped_storage()._cdata


def fills(tensor: Tensor) -> bool:
    """Is the tensor all of its memory?"""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
