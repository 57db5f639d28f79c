"""The ranks of a mesh, talking: boxes from one to another, parts combined, sums. Counts all that is sent.

Every call is made by all ranks of its group in the same order, since all follow the same plan. A rank that does not
answer is named: see `watch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..bounds.mesh import Coords, Mesh
from ..errors import RunError
from ..execution.messages import Messages, Pending, pack
from ..torch_private import begin_batch, begin_broadcast, begin_gather, begin_messages, begin_sum
from .neighbours import Neighbours, meet_neighbours
from .traffic import Traffic
from .watch import Watch

T = TypeVar("T")


class Group:
    """A mesh with its process groups. Made by all ranks of the mesh together."""

    def __init__(self, mesh: Mesh, rank: int, device: torch.device, timeout_s: float):
        self.mesh, self.rank, self.device = mesh, rank, device
        self.coords: Coords = mesh.coords_of(rank)
        self.timeout = timedelta(seconds=timeout_s)
        self.traffic = Traffic()
        self.closed = False
        everyone = frozenset(mesh.axes)
        self._all = self._new_group(self._ranks(everyone))
        self._halos = self._new_group(self._ranks(everyone))  # so that they need not queue behind sums
        # Gloo cannot send what lies on a card: it goes through the host.
        hosted = device.type == "cuda" and self._all is not None and dist.get_backend(self._all) == "gloo"
        self._wire = torch.device("cpu") if hosted else device
        self._places = {rank: at for at, rank in enumerate(sorted(mesh.ranks))}
        self._groups: dict[frozenset[str], tuple[Any, tuple[int, ...]]] = {everyone: (self._all, self._ranks(everyone))}
        self.watch = Watch(mesh.ranks, rank, self._tell, timeout_s)
        self.neighbours = self._meet_neighbours() if self._wire.type == "cpu" else None

    def _meet_neighbours(self) -> Neighbours | None:
        if self._all is None:
            return None
        with self.watch.during("the first call", self.mesh.ranks):
            return meet_neighbours(self.mesh.ranks, self._tell, self.watch, self.traffic)

    def close(self, error: BaseException | None = None) -> None:
        """Take leave; `error`: because of one."""
        self.closed = True
        try:
            self.watch.close(error)
        finally:
            if self.neighbours is not None:
                self.neighbours.close()

    def _refuse(self) -> NoReturn:
        what = "this rank has taken leave of the mesh: tilegrad.distributed.close() was called"
        raise RunError(what, hint="close after the last step, or distribute the module once more")

    def _near(self, ranks: Sequence[int]) -> Neighbours | None:
        """Where all of them are on this host."""
        near = self.neighbours
        return near if near is not None and near.ranks.issuperset(ranks) else None

    def among(self, axes: frozenset[str]) -> tuple[Any, tuple[int, ...]]:
        """The process group of the ranks that differ from this one along `axes` only, and those ranks. All ranks of the
        mesh ask for it at the same time."""
        if self.closed:
            self._refuse()
        if axes not in self._groups:
            ranks = self._ranks(axes)
            with self.watch.during("making a group", ranks):
                self._groups[axes] = (self._new_group(ranks), ranks)
        return self._groups[axes]

    def _ranks(self, axes: frozenset[str]) -> tuple[int, ...]:
        return tuple(self.mesh.rank(c) for c in self.mesh.alike(self.coords, axes))

    def _new_group(self, ranks: Sequence[int]) -> Any:
        if len(ranks) == 1:
            return None
        return dist.new_group(list(ranks), timeout=self.timeout, use_local_synchronization=True)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def exchange(
        self, what: str, sends: Mapping[int, Sequence[Tensor]], receives: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Send tensors to ranks, and receive so many bytes from ranks; one message each way between two ranks."""
        found = {rank: torch.empty(size, dtype=torch.uint8, device=self.device) for rank, size in receives.items()}
        self.post(Messages(what, {rank: pack(tensors) for rank, tensors in sends.items()}, found)).wait()
        return found

    def post(self, messages: Messages) -> Pending:
        """Begin to send a tensor to each rank, and to receive one from each."""
        if self.closed:
            self._refuse()
        traffic = self.traffic
        traffic.sent_bytes += messages.sent_bytes
        traffic.received_bytes += messages.received_bytes
        traffic.messages += len(messages.sends)
        near = self.neighbours
        if near is None or near.ranks.isdisjoint(messages.peers):
            return self._post_far(messages)
        if near.ranks.issuperset(messages.peers):
            return near.post(messages.what, messages.peers, messages.sends, messages.receives)
        mine, others = messages.divided(near.ranks)
        pending, far = near.post(mine.what, mine.peers, mine.sends, mine.receives), self._post_far(others)

        def wait() -> None:
            pending.wait()
            far.wait()

        return PendingMessage(wait)

    def _post_far(self, messages: Messages) -> PendingMessage:
        begin = begin_batch if self._wire.type == "cuda" else begin_messages
        sends, receives = messages.sends, messages.receives
        if self._wire != self.device:
            sends = {rank: tensor.to(self._wire) for rank, tensor in sends.items()}
            receives = {rank: torch.empty_like(tensor, device=self._wire) for rank, tensor in receives.items()}
        pairs = [(tensor, receives[rank]) for rank, tensor in messages.receives.items()]
        return self._begun(
            messages.what, messages.peers, lambda: begin(self._halos, self._places, sends, receives), pairs
        )

    def _begun(
        self,
        what: str,
        peers: Sequence[int],
        begin: Callable[[], Sequence[Any]],
        received: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> PendingMessage:
        """A call that others take part in, once they are waited for. `received`: tensors, and where what is for them
        arrives."""
        try:
            works = begin()
        except RuntimeError:
            with self.watch.during(what, peers):
                raise

        def finish() -> None:
            start = perf_counter()
            with self.watch.during(what, peers):
                for work in works:
                    work.wait()
            for tensor, arrived in received:
                if arrived is not tensor:
                    tensor.copy_(arrived)
            self.traffic.waited_s += perf_counter() - start

        return PendingMessage(finish)

    # -- sums and parts ------------------------------------------------------------------------------------------------

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Tensor:
        """The tensors of all ranks that differ along `axes`, in order, one above the other; all have one shape."""
        group, ranks = self.among(axes)
        if group is None:
            return tensor.unsqueeze(0)
        self.traffic.combined_bytes += tensor.nbytes
        self.traffic.gathers += 1
        if (near := self._near(ranks)) is not None:
            rows = torch.empty((len(ranks), *tensor.shape), dtype=tensor.dtype, device=tensor.device)
            near.gather(what, ranks, rows, tensor)
            return rows
        rows = torch.empty((len(ranks), *tensor.shape), dtype=tensor.dtype, device=self._wire)
        sent = tensor.reshape(-1).to(self._wire)
        self._begun(what, ranks, lambda: [begin_gather(group, rows.view(-1), sent)]).wait()
        found, order = rows.to(tensor.device), sorted(ranks)
        return found if tuple(order) == ranks else found[[order.index(rank) for rank in ranks]]

    def room(self, count: int, dtype: torch.dtype, axes: frozenset[str]) -> Tensor | None:
        """Where ranks that differ along `axes` best lay what they add up or tell, if that matters to them."""
        near = self._near(self.among(axes)[1]) if self.device.type == "cpu" else None
        found = near.room(count * dtype.itemsize) if near is not None else None
        return None if found is None else found.view(dtype)

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to add up a tensor over the ranks that differ along `axes`, in place."""
        group, ranks = self.among(axes)
        if group is None or not tensor.numel():
            return PendingMessage(lambda: None)
        self.traffic.summed_bytes += tensor.nbytes
        self.traffic.sums += 1
        if (near := self._near(ranks)) is not None:
            return near.sum(what, ranks, tensor)
        sent = tensor.to(self._wire)
        return self._begun(what, ranks, lambda: [begin_sum(group, sent)], [(tensor, sent)])

    def broadcast(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to give the first's tensor to all ranks that differ along `axes`, in place."""
        group, ranks = self.among(axes)
        if group is None or not tensor.numel():
            return PendingMessage(lambda: None)
        self.traffic.broadcast_bytes += tensor.nbytes
        self.traffic.broadcasts += 1
        if (near := self._near(ranks)) is not None:
            return near.broadcast(what, ranks, tensor, ranks[0])
        sent, source = tensor.to(self._wire), sorted(ranks).index(ranks[0])
        return self._begun(what, ranks, lambda: [begin_broadcast(group, sent, source)], [(tensor, sent)])

    def spread(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        """Begin to give all ranks that differ along `axes` the equal pieces of a flat tensor, of which each has its
        own, in order; in place."""
        group, ranks = self.among(axes)
        if group is None or not tensor.numel():
            return PendingMessage(lambda: None)
        self.traffic.broadcast_bytes += tensor.nbytes // len(ranks)
        self.traffic.broadcasts += 1
        if (near := self._near(ranks)) is not None:
            return near.spread(what, ranks, tensor)
        rows, order = tensor.view(len(ranks), -1), sorted(ranks)
        mine = rows[ranks.index(self.rank)].to(self._wire, copy=True)
        arrived = torch.empty(rows.shape, dtype=tensor.dtype, device=self._wire)
        pairs = [(row, arrived[order.index(rank)]) for row, rank in zip(rows, ranks, strict=True)]
        return self._begun(what, ranks, lambda: [begin_gather(group, arrived.view(-1), mine)], pairs)

    # -- agreement -----------------------------------------------------------------------------------------------------

    def _tell(self, text: bytes) -> list[bytes]:
        """What every rank of the mesh says, in order."""
        size = torch.tensor([len(text)], dtype=torch.int64, device=self._wire)
        if self._all is None:
            return [text]
        sizes = [torch.empty_like(size) for _ in self.mesh.ranks]
        dist.all_gather(sizes, size, self._all)
        longest = max(int(s) for s in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8, device=self._wire)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self._wire) if text else mine[:0]
        found = [torch.empty_like(mine) for _ in self.mesh.ranks]
        dist.all_gather(found, mine, self._all)
        said = [bytes(f[: int(s)].cpu().numpy()) for f, s in zip(found, sizes, strict=True)]
        return _in_order(said, self.mesh.ranks)

    def alike(self, what: str, text: str) -> bool:
        """Do all ranks of the mesh say the same?"""
        if self.closed:
            self._refuse()
        if self._all is None:
            return True
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(self._wire)
        found = torch.empty(len(self.mesh.ranks), len(digest), dtype=torch.uint8, device=self._wire)
        with self.watch.during(what, self.mesh.ranks):
            dist.all_gather(list(found.unbind()), mine, self._all)
        return bool((found == mine).all())

    def tell(self, what: str, text: str) -> list[str]:
        """What every rank of the mesh says, in order."""
        if self.closed:
            self._refuse()
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
