"""The ranks of a mesh, talking: boxes from one to another, parts combined, sums. Counts all that is sent.

Every call is made by all ranks of its group in the same order, since all follow the same plan. A rank that does not
answer is named: see `watch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..bounds.mesh import Coords, Mesh
from ..execution.ranks import pack
from .watch import Watch

T = TypeVar("T")


@dataclass
class Traffic:
    """Bytes that a rank sent and received, by kind. Sums and combined parts count what the rank puts in."""

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0  # sent, one to each peer of an exchange
    combined_bytes: int = 0  # parts of reductions
    summed_bytes: int = 0  # gradients that all ranks share

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


class Group:
    """A mesh with its process groups. Made by all ranks of the mesh together."""

    def __init__(self, mesh: Mesh, rank: int, device: torch.device, timeout_s: float):
        self.mesh, self.rank, self.device = mesh, rank, device
        self.coords: Coords = mesh.coords_of(rank)
        self.timeout = timedelta(seconds=timeout_s)
        self.traffic = Traffic()
        everyone = frozenset(mesh.axes)
        self._all = self._new_group(self._ranks(everyone))
        self._groups: dict[frozenset[str], tuple[Any, list[int]]] = {everyone: (self._all, self._ranks(everyone))}
        self.watch = Watch(mesh.ranks, rank, self._tell, timeout_s)

    def among(self, axes: frozenset[str]) -> tuple[Any, list[int]]:
        """The process group of the ranks that differ from this one along `axes` only, and those ranks. All ranks of the
        mesh ask for it at the same time."""
        if axes not in self._groups:
            ranks = self._ranks(axes)
            with self.watch.during("making a group", ranks):
                self._groups[axes] = (self._new_group(ranks), ranks)
        return self._groups[axes]

    def _ranks(self, axes: frozenset[str]) -> list[int]:
        return [self.mesh.rank(c) for c in self.mesh.alike(self.coords, axes)]

    def _new_group(self, ranks: list[int]) -> Any:
        if len(ranks) == 1:
            return None
        return dist.new_group(ranks, timeout=self.timeout, use_local_synchronization=True)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def exchange(
        self, what: str, sends: Mapping[int, Sequence[Tensor]], receives: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Send tensors to ranks, and receive so many bytes from ranks; one message each way between two ranks."""
        payloads = {rank: pack(tensors) for rank, tensors in sends.items()}
        found = {rank: torch.empty(size, dtype=torch.uint8, device=self.device) for rank, size in receives.items()}
        self.traffic.sent_bytes += sum(p.numel() for p in payloads.values())
        self.traffic.received_bytes += sum(receives.values())
        self.traffic.messages += len(payloads)
        peers = sorted({*payloads, *found})
        with self.watch.during(what, peers):
            calls = [dist.P2POp(dist.irecv, found[rank], rank, self._all) for rank in sorted(found)]
            calls += [dist.P2POp(dist.isend, payloads[rank], rank, self._all) for rank in sorted(payloads)]
            for work in dist.batch_isend_irecv(calls) if calls else ():
                work.wait()
        return found

    # -- sums and parts ------------------------------------------------------------------------------------------------

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> list[Tensor]:
        """The tensors of all ranks that differ along `axes`, in order; all have the same shape."""
        group, ranks = self.among(axes)
        if group is None:
            return [tensor]
        self.traffic.combined_bytes += tensor.numel() * tensor.element_size()
        found = [torch.empty_like(tensor) for _ in ranks]
        with self.watch.during(what, ranks):
            dist.all_gather(found, tensor.contiguous(), group)
        return _in_order(found, ranks)

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> PendingMessage:
        """Begin to add up a tensor over the ranks that differ along `axes`, in place."""
        group, ranks = self.among(axes)
        if group is None or not tensor.numel():
            return PendingMessage(lambda: None)
        self.traffic.summed_bytes += tensor.numel() * tensor.element_size()
        with self.watch.during(what, ranks) as call:
            work = dist.all_reduce(tensor, group=group, async_op=True)

        def finish() -> None:
            with self.watch.during(what, ranks, call):
                work.wait()

        return PendingMessage(finish)

    # -- agreement -----------------------------------------------------------------------------------------------------

    def _tell(self, text: bytes) -> list[bytes]:
        """What every rank of the mesh says, in order."""
        size = torch.tensor([len(text)], dtype=torch.int64, device=self.device)
        if self._all is None:
            return [text]
        sizes = [torch.empty_like(size) for _ in self.mesh.ranks]
        dist.all_gather(sizes, size, self._all)
        longest = max(int(s) for s in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.device) if text else mine[:0]
        found = [torch.empty_like(mine) for _ in self.mesh.ranks]
        dist.all_gather(found, mine, self._all)
        said = [bytes(f[: int(s)].cpu().numpy()) for f, s in zip(found, sizes, strict=True)]
        return _in_order(said, self.mesh.ranks)

    def alike(self, what: str, text: str) -> bool:
        """Do all ranks of the mesh say the same?"""
        if self._all is None:
            return True
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(self.device)
        found = torch.empty(len(self.mesh.ranks), len(digest), dtype=torch.uint8, device=self.device)
        with self.watch.during(what, self.mesh.ranks):
            dist.all_gather(list(found.unbind()), mine, self._all)
        return bool((found == mine).all())

    def tell(self, what: str, text: str) -> list[str]:
        """What every rank of the mesh says, in order."""
        with self.watch.during(what, self.mesh.ranks):
            return [found.decode() for found in self._tell(text.encode())]


def _in_order(gathered: list[T], ranks: Sequence[int]) -> list[T]:
    """What a process group gathers comes in the order of ranks; a mesh may have another."""
    by_rank = dict(zip(sorted(ranks), gathered, strict=True))
    return [by_rank[rank] for rank in ranks]


@dataclass
class PendingMessage:
    """A sum on its way."""

    wait: Callable[[], None] = field(repr=False)
