"""The ranks of one host, by way of memory that they share: what gloo does, without its threads and its copies.

Gloo talks over TCP to the next process, too. On a machine all of whose cores compute, that took a quarter of a step's
time. Here a rank lays what it sends into memory of its own, and tells others where it lies (`lanes`); they add it up
right from there. Nothing runs beside the caller: what has come is dealt with when it next sends something, or waits.

Rule H3  Ranks of a mesh on one host use this for all that they tell each other, or all use gloo: they try it at the
         start, and tell each other whether it works.
Rule H4  Sums are made in the order of ranks, so all ranks have the same to the last bit. Large ones of more than two
         ranks are made in pieces, one by each.

What is awaited is an errand: a generator that says which channel it waits on, and whom for. Errands that wait on the
same channel go on in the order in which they were begun, which is the same on all ranks (rule D5).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum

from torch import Tensor

from .lanes import Lane, Mail, connect, host_name, listen, wait_for
from .shared_memory import SharedMemory

IN_PIECES = 1 << 16  # bytes from which on a sum of more than two ranks is
_log = logging.getLogger("tilegrad")


class Channel(IntEnum):
    HALOS = 0
    PARTS = 1  # that are gathered
    SUMS = 2  # and what the first tells
    TOTALS = 3  # pieces of sums


Waits = Iterator[tuple[Channel, Sequence[int]]]


class Errand:
    """`wanted`: the channel and the ranks that it waits for; None where it is done."""

    def __init__(self, neighbours: Neighbours, waits: Waits):
        self._neighbours, self._waits = neighbours, waits
        self.wanted: tuple[Channel, Sequence[int]] | None = None
        self.go_on()

    def go_on(self) -> None:
        self.wanted = next(self._waits, None)

    def wait(self) -> None:
        self._neighbours.finish(self)


class Neighbours:
    """`lanes`: to the other ranks of this host."""

    def __init__(self, rank: int, lanes: Mapping[int, Lane], memory: SharedMemory, timeout_s: float):
        self.rank, self.lanes, self.memory, self.timeout_s = rank, lanes, memory, timeout_s
        self._errands: list[Errand] = []

    def include(self, ranks: Sequence[int]) -> bool:
        return all(rank == self.rank or rank in self.lanes for rank in ranks)

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        self.memory.close()

    # -- what ranks do together ----------------------------------------------------------------------------------------

    def post(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Errand:
        for rank, tensor in sends.items():
            self._send(Channel.HALOS, tensor, [rank])
        return self._begin(self._receive(Channel.HALOS, receives))

    def gather(self, rows: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Errand:
        """`rows`: where the tensors of all ranks go."""
        others = self._others(ranks)
        self._send(Channel.PARTS, tensor, others)
        rows[ranks.index(self.rank)].copy_(tensor)
        return self._begin(self._receive(Channel.PARTS, {rank: rows[ranks.index(rank)] for rank in others}))

    def broadcast(self, tensor: Tensor, ranks: Sequence[int], source: int) -> Errand:
        if source == self.rank:
            self._send(Channel.SUMS, tensor, self._others(ranks))
            return self._begin(iter(()))
        return self._begin(self._receive(Channel.SUMS, {source: tensor}))

    def sum(self, tensor: Tensor, ranks: Sequence[int]) -> Errand:
        order = sorted(ranks)
        in_pieces = len(order) > 2 and tensor.nbytes >= IN_PIECES and tensor.is_contiguous()
        return self._begin(self._add_pieces(tensor, order) if in_pieces else self._add(tensor, order))

    # -- errands -------------------------------------------------------------------------------------------------------

    def _receive(self, channel: Channel, places: Mapping[int, Tensor]) -> Waits:
        if places:
            yield channel, tuple(places)
        for rank, place in places.items():
            mail = self.lanes[rank].take(channel)
            place.copy_(_shaped(mail, place))
            mail.read()

    def _add(self, tensor: Tensor, order: Sequence[int]) -> Waits:
        others = self._others(order)
        self._send(Channel.SUMS, tensor, others)
        yield Channel.SUMS, others
        self._total(tensor, {rank: self.lanes[rank].take(Channel.SUMS) for rank in others}, order)

    def _add_pieces(self, tensor: Tensor, order: Sequence[int]) -> Waits:
        """Each rank adds up one, and tells it."""
        others, flat = self._others(order), tensor.view(-1)
        pieces = dict(zip(order, flat.tensor_split(len(order)), strict=True))
        for rank in others:
            self._send(Channel.SUMS, pieces[rank], [rank])
        yield Channel.SUMS, others
        self._total(pieces[self.rank], {rank: self.lanes[rank].take(Channel.SUMS) for rank in others}, order)
        self._send(Channel.TOTALS, pieces[self.rank], others)
        yield from self._receive(Channel.TOTALS, {rank: pieces[rank] for rank in others})

    def _total(self, tensor: Tensor, mails: Mapping[int, Mail], order: Sequence[int]) -> None:
        """Rule H4."""
        first, *rest = (_shaped(mails[rank], tensor) if rank in mails else tensor for rank in order)
        if len(rest) == 1:  # a + b is b + a
            tensor.add_((first if rest[0] is tensor else rest[0]).to(tensor.device))
        else:
            total = first.to(tensor.device, copy=True)
            for each in rest:
                total.add_(each.to(tensor.device))
            tensor.copy_(total)
        for mail in mails.values():
            mail.read()

    # -- going on ------------------------------------------------------------------------------------------------------

    def _others(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank != self.rank]

    def _send(self, channel: Channel, tensor: Tensor, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.lanes[rank].listen()  # blocks that have been read serve again
        block = self.memory.take(tensor.nbytes)
        block.readers = len(ranks)
        block.data[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        for rank in ranks:
            try:
                self.lanes[rank].send(channel, block, tensor.nbytes)
            except OSError as error:
                raise RuntimeError(f"the connection to rank {rank} has ended") from error

    def _begin(self, waits: Waits) -> Errand:
        errand = Errand(self, waits)
        if errand.wanted is not None:
            self._errands.append(errand)
        self._go_on()
        return errand

    def _go_on(self) -> None:
        """As far as that is possible without waiting."""
        held = set[Channel]()  # channels that earlier errands wait on
        for errand in list(self._errands):
            while errand.wanted is not None and errand.wanted[0] not in held and self._missing(errand) is None:
                errand.go_on()
            if errand.wanted is None:
                self._errands.remove(errand)
            else:
                held.add(errand.wanted[0])

    def _missing(self, errand: Errand) -> int | None:
        """A rank that it waits for."""
        channel, ranks = errand.wanted or (Channel.HALOS, ())
        return next((rank for rank in ranks if not self.lanes[rank].has(channel)), None)

    def finish(self, errand: Errand) -> None:
        end = time.monotonic() + self.timeout_s
        while errand.wanted is not None:
            self._go_on()
            if errand.wanted is None:
                return
            channel = errand.wanted[0]
            first = next(each for each in self._errands if each.wanted and each.wanted[0] == channel)
            rank = self._missing(first)
            if rank is None:
                continue
            if self.lanes[rank].ended:
                raise RuntimeError(f"the connection to rank {rank} has ended")
            if (left := end - time.monotonic()) <= 0:
                raise RuntimeError(f"rank {rank} has sent nothing for {self.timeout_s:g} s")
            wait_for(self.lanes.values(), left)  # all: who cannot write to us might be waited for by that rank


def _shaped(mail: Mail, like: Tensor) -> Tensor:
    return mail.data.view(like.dtype).view(like.shape)


def meet_neighbours(
    ranks: Sequence[int], rank: int, tell: Callable[[bytes], list[bytes]], timeout_s: float
) -> Neighbours | None:
    """Rule H3. `tell` gives what every rank says, in order; all ranks make theirs together."""
    host, memory, lanes, failure = host_name(), SharedMemory(), dict[int, Lane](), ""
    server = listen() if host else None
    address = server.getsockname().decode().lstrip("\0") if server is not None else ""
    said = [json.loads(text) for text in tell(json.dumps({"host": host, "address": address}).encode())]
    hosts = [each["host"] for each in said]
    if len(set(filter(None, hosts))) == len([*filter(None, hosts)]):
        return None  # nobody shares a host with anybody
    near = {other: each["address"] for other, each in zip(ranks, said, strict=True) if host and each["host"] == host}
    near.pop(rank, None)
    try:
        made = connect(server, rank, near, timeout_s) if server is not None else {}
        lanes = {other: Lane(connection, memory, timeout_s) for other, connection in made.items()}
    except OSError as error:
        failure = str(error) or type(error).__name__
    if server is not None:
        server.close()
    found, failures = Neighbours(rank, lanes, memory, timeout_s), tell(failure.encode())
    if any(failures):
        _log.info("ranks of one host talk over its network: %s", next(filter(None, failures)).decode())
        found.close()
        return None
    return found
