"""One node with its own little autograd graph, which holds no memory that is kept elsewhere.

What autograd saves of a node's inputs and output is replaced by a reference by name, looked up when backward runs: the
value may have been freed and made again in between. What it saves besides (indices, masks, statistics) is *hidden*
memory: it belongs to the tape and goes with it.

Rule T1  Inputs enter through a function without data, so that the graph's edges hold no tensor.
Rule T2  A saved tensor that lies in the memory of an input or of the output is a reference, if the plan keeps that
         value for backward; all else is hidden.
Rule T3  A gradient that is a part of another's memory, or does not fill its own, is copied out; one that is all of it
         (a reshape, a plain sum) is an alias. The gradient of an outside value is always its own.
Rule T4  A reference outlives the layout of its value: where the value was made again with other strides, what was saved
         of it is read from a copy with the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from ..ops import Call, Op

Lookup = Callable[[str], Tensor]


class _Enter(Function):
    """A tensor as an input of the tape; the anchor makes autograd record it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


@dataclass(frozen=True, slots=True)
class View:
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
    view: View | None = None  # None: the value itself


@dataclass
class Tape:
    """A node's autograd graph."""

    out: GradientEdge
    inputs: dict[str, GradientEdge]  # value name -> where its gradient comes out
    saved: list[Saved]
    lookup: list[Lookup]  # one entry, set while backward runs

    @property
    def own(self) -> list[Saved]:
        """What autograd saved besides inputs and output."""
        return [s for s in self.saved if not s.name]

    @property
    def hidden(self) -> list[Tensor]:
        return [s.tensor for s in self.own if s.tensor is not None]

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys(s.name for s in self.saved if s.name))

    def backward(self, grad: Tensor, lookup: Lookup) -> dict[str, Tensor]:
        """Gradients of the inputs that get one."""
        self.lookup.append(lookup)
        names = list(self.inputs)
        try:
            found = torch.autograd.grad([self.out], [self.inputs[n] for n in names], [grad], allow_unused=True)
        finally:
            self.lookup.clear()
        return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def run_taped(
    op: Op,
    call: Call,
    tensors: Sequence[Tensor],
    needs: frozenset[str],
    anchor: Tensor,
    seed: int,
    kept: Collection[str] | None = None,
) -> tuple[Tensor, Tape | None]:
    """Run a whole node and record its backward. No tape where no gradient passes. `kept`: inputs and outputs that will
    be there for backward (default: all)."""
    names = call.node.reads
    entered: dict[str, Tensor] = {}
    with torch.enable_grad():
        for name, tensor in zip(names, tensors, strict=True):
            if name in needs and name not in entered and (tensor.is_floating_point() or tensor.is_complex()):
                entered[name] = _Enter.apply(anchor, tensor)  # type: ignore[no-untyped-call]
    saved: list[Saved] = []
    lookup: list[Lookup] = []

    def pack(tensor: Tensor) -> Saved:
        saved.append(Saved(tensor.detach()))
        return saved[-1]

    def unpack(item: Saved) -> Tensor:
        if item.tensor is not None:
            return item.tensor
        value = lookup[0](item.name)
        return value if item.view is None else item.view.of(value)

    with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
        result = op.run_whole(
            call, [entered.get(n, t) for n, t in zip(names, tensors, strict=True)], seed, anchor.device
        )
    edges = {name: get_gradient_edge(tensor) for name, tensor in entered.items()}
    if not result.requires_grad:
        return trimmed(result, tensors), None
    plain = trimmed(result.detach(), tensors)
    values = {**dict(zip(names, tensors, strict=True)), call.node.outputs[0]: plain}
    _refer(saved, {name: value for name, value in values.items() if kept is None or name in kept})
    return plain, Tape(get_gradient_edge(result), edges, saved, lookup)


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
            item.view = View(tuple(tensor.shape), tensor.stride(), start, value.stride())


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
