"""Messages between ranks: their buffers are made once, and filled again in every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from ..schedule import Exchange, Strip


class Pending(Protocol):
    """A call on its way."""

    @property
    def wait(self) -> Callable[[], None]: ...


class Peers(Protocol):
    """The other ranks. Calls are made by all of them, in the same order."""

    def post(self, messages: Messages) -> Pending:
        """Begin to send a tensor to each rank, and to receive one from each."""

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Tensor:
        """The tensors of all ranks that differ along `axes`, in order, one above the other."""

    def room(self, count: int, dtype: torch.dtype, axes: frozenset[str]) -> Tensor | None:
        """Where what is added up or told is best laid, if that matters."""

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to add up a tensor over the ranks that differ along `axes`, in place."""

    def spread(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to give all ranks that differ along `axes` the pieces of a tensor, of which each rank has its own, in
        order; in place."""

    def broadcast(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to give the first's tensor to all ranks that differ along `axes`, in place."""


Place = tuple[Strip, Tensor]  # and where it lies in a message


class Messages:
    """One to each peer, and one from each. `gives` and `takes`: strips, and where they lie in messages."""

    def __init__(self, what: str, sends: dict[int, Tensor], receives: dict[int, Tensor]):
        self.what, self.sends, self.receives = what, sends, receives
        self.peers = tuple(sorted({*sends, *receives}))
        self.sent_bytes, self.received_bytes = (sum(t.nbytes for t in each.values()) for each in (sends, receives))
        self.gives: list[Place] = []
        self.takes: list[Place] = []

    def divided(self, ranks: Collection[int]) -> tuple[Messages, Messages]:
        """Those to and from these ranks, and those to and from others. What is in which is the same on both sides."""

        def some(inside: bool) -> Messages:
            each = ({r: t for r, t in to.items() if (r in ranks) is inside} for to in (self.sends, self.receives))
            return Messages(self.what, *each)

        return some(True), some(False)

    @staticmethod
    def of(step: Exchange, dtypes: Mapping[str, torch.dtype], device: torch.device) -> Messages:
        """Of one exchange. The strips of a message lie one after another, those of the widest type first, so that each
        begins where its type may."""
        kind = "gradients of halos" if step.gradient else "halos"
        (sends, gives), (receives, takes) = (_laid(strips, dtypes, device) for strips in (step.gives, step.takes))
        found = Messages(f"{kind} of {', '.join(step.values)}", sends, receives)
        found.gives, found.takes = gives, takes
        return found


def _laid(
    strips: Sequence[Strip], dtypes: Mapping[str, torch.dtype], device: torch.device
) -> tuple[dict[int, Tensor], list[Place]]:
    """A buffer for each peer, and the strips in them."""
    buffers, places = dict[int, Tensor](), list[Place]()
    for rank in sorted({strip.rank for strip in strips}):
        mine = sorted((s for s in strips if s.rank == rank), key=lambda s: -dtypes[s.value].itemsize)
        layout = [(s.box.shape, dtypes[s.value]) for s in mine]
        size = sum(s.box.volume * dtypes[s.value].itemsize for s in mine)
        buffers[rank] = torch.empty(size, dtype=torch.uint8, device=device)
        places += zip(mine, unpack(buffers[rank], layout), strict=True)
    return buffers, places


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors, one after another."""
    return torch.cat([t.contiguous().view(-1).view(torch.uint8) for t in tensors])


class Row:
    """Tensors one after another: as they are where all have one type; else their bytes, of the widest type first."""

    def __init__(self, like: Sequence[Tensor]):
        dtypes = [t.dtype for t in like]
        self._bytewise = len(set(dtypes)) > 1
        self._order = sorted(range(len(like)), key=lambda at: -dtypes[at].itemsize) if self._bytewise else None
        self._pieces = list[tuple[int, int, torch.dtype, tuple[int, ...]]]()
        at = 0
        for k in self._order or range(len(like)):
            size = like[k].nbytes if self._bytewise else like[k].numel()
            self._pieces.append((at, at + size, dtypes[k], tuple(like[k].shape)))
            at += size

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        if self._order is not None:
            return pack([tensors[at] for at in self._order])
        return torch.cat([t.reshape(-1) for t in tensors])

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """What several ranks packed, each in a row: for every tensor those of all ranks, one above the other."""
        count = rows.shape[0]
        if self._order is None:
            return [rows[:, lo:hi].view(count, *shape) for lo, hi, _, shape in self._pieces]
        pieces = [rows[:, lo:hi].contiguous().view(dtype).view(count, *shape) for lo, hi, dtype, shape in self._pieces]
        return [pieces[self._order.index(at)] for at in range(len(pieces))]


def unpack(payload: Tensor, layout: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[Tensor]:
    """Where tensors of these shapes lie in a payload."""
    found, at = list[Tensor](), 0
    for shape, dtype in layout:
        size = dtype.itemsize * prod(shape)
        found.append(payload[at : at + size].view(dtype).view(tuple(shape)))
        at += size
    return found


def named_dtypes(types: Mapping[str, Any]) -> dict[str, torch.dtype]:
    return {name: getattr(torch, value.type.dtype) for name, value in types.items()}
