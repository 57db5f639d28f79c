"""One node with its own little autograd graph, which holds no memory that is kept elsewhere.

What autograd saves of a node's inputs and output is replaced by a reference by name, looked up when backward runs: the
value may have been freed and made again in between. What it saves besides (indices, masks, statistics) is *hidden*
memory: it belongs to the tape and goes with it.

Rule T1  Inputs enter through a function without data, so that the graph's edges hold no tensor.
Rule T2  A saved tensor that lies in the memory of an input or of the output is a reference; all else is hidden.
Rule T3  A gradient that is a part of another's memory, or does not fill its own, is copied out; one that is all of it
         (a reshape, a plain sum) is an alias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


@dataclass
class Saved:
    """What autograd saved: a tensor of its own, or a view of a named value."""

    tensor: Tensor | None
    name: str = ""
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    start: int = 0  # from where the value begins in its memory


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
        found = torch.autograd.grad([self.out], [self.inputs[n] for n in names], [grad], allow_unused=True)
        self.lookup.clear()
        return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def run_taped(
    op: Op,
    call: Call,
    tensors: Sequence[Tensor],
    needs: frozenset[str],
    anchor: Tensor,
    seed: int,
) -> tuple[Tensor, Tape | None]:
    """Run a whole node and record its backward. No tape where no gradient passes."""
    names = call.node.reads
    entered: dict[str, Tensor] = {}
    with torch.enable_grad():
        for name, tensor in zip(names, tensors, strict=True):
            if name in needs and name not in entered and tensor.is_floating_point():
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
        return value.as_strided(item.size, item.stride, value.storage_offset() + item.start)

    with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
        result = op.run_whole(
            call, [entered.get(n, t) for n, t in zip(names, tensors, strict=True)], seed, anchor.device
        )
    edges = {name: get_gradient_edge(tensor) for name, tensor in entered.items()}
    if not result.requires_grad:
        return result, None
    plain = result.detach()
    _refer(saved, {**dict(zip(names, tensors, strict=True)), call.node.outputs[0]: plain})
    return plain, Tape(get_gradient_edge(result), edges, saved, lookup)


def _refer(saved: Sequence[Saved], values: Mapping[str, Tensor]) -> None:
    """Replace what lies in the memory of a value by a reference to it. Of several, the value that is all of it."""
    owners: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in values.items():
        key = memory_of(tensor)
        if key not in owners or tensor.numel() > owners[key][1].numel():
            owners[key] = (name, tensor)
    for item in saved:
        assert item.tensor is not None
        found = owners.get(memory_of(item.tensor))
        if found is not None:
            name, value = found
            item.name, item.size, item.stride = name, tuple(item.tensor.shape), item.tensor.stride()
            item.start = int(item.tensor.storage_offset() - value.storage_offset())
            item.tensor = None


def memory_of(tensor: Tensor) -> int:
    """Which memory a tensor lies in; tells tensors without data apart too."""
    return tensor.untyped_storage()._cdata


def fills(tensor: Tensor) -> bool:
    """Is the tensor all of its memory?"""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
