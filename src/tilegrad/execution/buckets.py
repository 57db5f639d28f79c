"""Gradients that ranks share, added up many at a time.

Values whose gradients are added up over the same ranks enter a pass together, shortly before the first of them is used.
So autograd has all of their gradients when it comes back to that place: they are laid end to end and added up while
backward goes on. What only the tail reads has its gradients on the first rank alone, which tells the others:
see `tail`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..schedule import Sum
from .executor import Executor
from .messages import Peers, Pending
from .saved import fills

BYTES = 1 << 20  # from which on more at a time is no faster


@dataclass
class Arrivals:
    """The gradients of a pass. Autograd will know this, and must not know the pass."""

    peers: Peers
    anchor: Tensor
    reached: frozenset[str] = frozenset()
    found: dict[str, Tensor] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)

    def wait(self) -> dict[str, Tensor]:
        """All of them, which nobody else holds from here on: autograd makes a copy of what others hold."""
        for pending in self.pending:
            pending.wait()
        found, self.found, self.pending = self.found, {}, []
        return found


@dataclass(frozen=True)
class Bucket:
    """`alone`: its only value's gradient is made where nobody else reads it, and can be added up as it lies. `first`:
    the first rank has all of the gradients, and tells them; `mute`: this is another one."""

    names: tuple[str, ...]
    axes: frozenset[str]
    alone: bool
    first: bool = False
    mute: bool = False

    def enter(self, arrivals: Arrivals, tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
        """The values; before those whose gradients are told, an end for backward to begin at."""
        here = [t.detach().to(device, non_blocking=True) for t in tensors]
        found: tuple[Tensor, ...] = _Entrance.apply(arrivals.anchor, self, arrivals, here)  # type: ignore[no-untyped-call]
        return found

    def add_up(
        self, arrivals: Arrivals, grads: Sequence[Tensor | None], like: Sequence[torch.Size], dtype: torch.dtype
    ) -> None:
        there = [at for at, name in enumerate(self.names) if name in arrivals.reached]
        if not there:
            return
        flat, pieces = self._laid([grads[at] for at in there], [like[at] for at in there], dtype, arrivals)
        arrivals.found |= {self.names[at]: piece for at, piece in zip(there, pieces, strict=True)}
        what = f"the gradient of '{self.names[there[0]]}'" + (f" and {len(there) - 1} more" if len(there) > 1 else "")
        tell = arrivals.peers.broadcast if self.first else arrivals.peers.sum
        arrivals.pending.append(tell(what, flat, self.axes))

    def _laid(
        self, grads: Sequence[Tensor | None], sizes: Sequence[torch.Size], dtype: torch.dtype, arrivals: Arrivals
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """All end to end, and where each lies in it."""
        only, device, lengths = grads[0], arrivals.anchor.device, [prod(size) for size in sizes]
        room = None if self.mute else arrivals.peers.room(sum(lengths), dtype, self.axes)
        if room is None and self.alone and only is not None and only.is_contiguous() and fills(only):
            return only, [only]
        if self.mute:
            flat = torch.empty(sum(lengths), dtype=dtype, device=device)
        else:
            flat = torch.cat(
                [torch.zeros(length, dtype=dtype, device=device) if grad is None else grad.reshape(-1)
                 for grad, length in zip(grads, lengths, strict=True)], out=room
            )  # fmt: skip
        pieces = flat.split_with_sizes(lengths)
        return flat, [piece.view(size) for piece, size in zip(pieces, sizes, strict=True)]


class _Entrance(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, bucket: Bucket, arrivals: Arrivals, tensors: list[Tensor]) -> Any:
        ctx.set_materialize_grads(False)
        ctx.known = bucket, arrivals, [t.shape for t in tensors], tensors[0].dtype
        here = tuple(t.detach() for t in tensors)
        if not bucket.first:
            return here
        if bucket.mute:
            ctx.mark_non_differentiable(*here)
        return anchor.clone(), *here

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None, None]:
        bucket, arrivals, shapes, dtype = ctx.known
        bucket.add_up(arrivals, grads[1:] if bucket.first else grads, shapes, dtype)
        return None, None, None, None


def in_buckets(executor: Executor, sums: Sequence[Sum], needs: frozenset[str], mute: bool) -> Iterator[Bucket]:
    """In the order of backward, as much together as is worth it. `mute`: this rank makes no gradients of the tail."""
    types, names, size = executor.graph.value, list[str](), 0
    known: tuple[frozenset[str], bool, str] | None = None
    for step in (step for step in sums if step.value in needs):
        kind = step.axes, step.first, types[step.value].type.dtype
        nbytes = executor.owned[step.value].volume * types[step.value].type.item_bytes
        if known is not None and (kind != known or size + nbytes > BYTES):
            yield _bucket(executor, names, *known[:2], mute)
            names, size = [], 0
        known, size = kind, size + nbytes
        names.append(step.value)
    if known is not None and names:
        yield _bucket(executor, names, *known[:2], mute)


def _bucket(executor: Executor, names: Sequence[str], axes: frozenset[str], first: bool, mute: bool) -> Bucket:
    readers = executor.graph.consumers[names[0]]
    fresh = all(executor.ops[node.name].dense and node.reads[0] != names[0] for node in readers)
    alone = len(names) == 1 and len(readers) == 1 and fresh
    return Bucket(tuple(reversed(names)), axes, alone, first, first and mute)
