"""The ranks of one host, by way of memory that they share: what gloo does, without its threads and its copies.

Gloo talks over TCP to the next process, too. On a machine all of whose cores compute, that took a quarter of a step's
time. Here a rank lays what it sends into memory of its own, and tells others where it lies (`lanes`); they add it up
right from there. Nothing runs beside the caller: what has come is dealt with when it next sends something, or waits.

Rule H3  Ranks of a mesh on one host use this for all that they tell each other in steps, or all use gloo: they try it
         at the start, and tell each other whether it works.
Rule H4  Sums are made in the order of ranks, so all ranks have the same to the last bit. Large ones are made in pieces,
         one by each rank, which the others copy.
Rule H5  What lies in memory that was lent is the caller's again once all others have read it: a gradient that was added
         up is waited for until then.

What is awaited is an errand. Errands that wait on the same channel go on in the order in which they were begun, which
is the same on all ranks (rule D5).
"""

from __future__ import annotations

import json
import logging
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .lanes import CHANNELS, HALOS, LIES, LINE, PARTS, READ, SUMS, TOTALS, Lane, Mail, connect, host_name, listen
from .shared_memory import SharedBlock, SharedMemory
from .traffic import Traffic
from .watch import Watch

UNREAD = len(CHANNELS)  # a queue
IN_PIECES = 1 << 16  # bytes from which on a sum is
Ranks = tuple[int, ...]
_log = logging.getLogger("tilegrad")


class Neighbours:
    """`lanes`: to the other ranks of this host. Errands that wait on a channel are in its queue; those that wait until
    what lies in lent memory has been read, in the last."""

    def __init__(self, lanes: Mapping[int, Lane], memory: SharedMemory, watch: Watch, traffic: Traffic):
        self.rank, self.lanes, self.memory, self.watch, self.traffic = watch.rank, lanes, memory, watch, traffic
        self.ranks = frozenset((*lanes, self.rank))
        self.queues = [deque[Errand]() for _ in (*CHANNELS, UNREAD)]
        self._others: dict[tuple[int, ...], list[Lane]] = {}
        self._by_file = {lane.socket.fileno(): lane for lane in lanes.values()}
        self._poll = select.poll()
        for file, lane in self._by_file.items():
            self._poll.register(file, select.POLLIN)
            lane.meanwhile = self._listen  # ranks whose lanes are full in a ring wait for each other

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        self.memory.close()

    # -- what ranks do together ----------------------------------------------------------------------------------------

    def post(self, what: str, ranks: Ranks, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Errand:
        for rank, tensor in sends.items():
            self._lay(HALOS, tensor, [self.lanes[rank]])
        lanes = [self.lanes[rank] for rank in receives]
        return self._begin(Receipt(self, what, ranks, HALOS, lanes, places=list(receives.values())))

    def gather(self, what: str, ranks: Ranks, rows: Tensor, tensor: Tensor) -> None:
        """`rows`: where the tensors of all ranks go, in order."""
        lanes = self._lanes(ranks)
        self._lay(PARTS, tensor, lanes)
        places = list(rows.unbind())
        places.pop(ranks.index(self.rank)).copy_(tensor)
        self._begin(Receipt(self, what, ranks, PARTS, lanes, places=places)).wait()

    def broadcast(self, what: str, ranks: Ranks, tensor: Tensor, source: int) -> Errand:
        if source != self.rank:
            return self._begin(Receipt(self, what, ranks, SUMS, [self.lanes[source]], places=[tensor]))
        lent = self.memory.lent(tensor)
        self._lay(SUMS, tensor, self._lanes(ranks), lent)
        return self._begin(Receipt(self, what, ranks, SUMS, [], lent, holds=tensor))

    def spread(self, what: str, ranks: Ranks, tensor: Tensor) -> Errand:
        """`tensor`: as many equal pieces as there are ranks, of which each has laid its own."""
        rows, lanes = list(tensor.view(len(ranks), -1)), self._lanes(ranks)
        mine, lent = rows.pop(ranks.index(self.rank)), self.memory.lent(tensor)
        self._lay(SUMS, tensor if lent is not None else mine, lanes, lent)
        return self._begin(PieceReceipt(self, what, ranks, SUMS, lanes, lent, holds=tensor, places=rows))

    def sum(self, what: str, ranks: Ranks, tensor: Tensor) -> Errand:
        ranks = tuple(sorted(ranks))
        lanes = self._lanes(ranks)
        block = self._lay(SUMS, tensor, lanes, self.memory.lent(tensor))
        kind = SumInPieces if tensor.nbytes >= IN_PIECES else SmallSum
        errand = self._begin(kind(self, what, ranks, SUMS, lanes, block, place=tensor))
        block.readers.add(errand)  # until it has added up
        self.go_on()
        return errand

    def room(self, size: int) -> Tensor | None:
        """Bytes in which something large may lie that is then told or added up, so that it need not be copied."""
        return self.memory.lend(size) if size >= IN_PIECES else None

    # -- going on ------------------------------------------------------------------------------------------------------

    def _lanes(self, ranks: Ranks) -> list[Lane]:
        if ranks not in self._others:
            self._others[ranks] = [self.lanes[rank] for rank in ranks if rank != self.rank]
        return self._others[ranks]

    def _lay(
        self, channel: int, tensor: Tensor, lanes: Sequence[Lane], block: SharedBlock | None = None
    ) -> SharedBlock:
        """Into a block, if it does not lie in this one, and tell of it."""
        size = tensor.nbytes
        if block is None:
            block = self.memory.take(size)
            block.data[:size].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        block.readers.update(lanes)
        for lane in lanes:
            lane.send(channel, block, size)
        return block

    def _begin(self, errand: Errand) -> Errand:
        self.queues[errand.channel].append(errand)
        return errand

    def go_on(self, seconds: float = 0.0) -> None:
        """As far as that is possible without waiting for longer than this."""
        for file, _ in self._poll.poll(seconds * 1e3):
            lane = self._by_file[file]
            lane.listen()
            if lane.ended:
                self._poll.unregister(file)
        for queue in self.queues:
            while queue and queue[0].go_on():
                queue.popleft()

    def _listen(self) -> None:
        for lane in self.lanes.values():
            lane.listen()

    def finish(self, errand: Errand) -> None:
        """All lanes are listened to: who cannot write to this rank might be waited for by the other."""
        end = time.monotonic() + self.watch.timeout_s
        while not errand.done:
            first = self.queues[errand.channel][0]  # what comes before it comes first
            missing = first.missing()
            for lane in missing:
                if lane.ended:
                    raise RuntimeError(lane.ended)
            if (left := end - time.monotonic()) <= 0:
                who = " and ".join(str(lane.rank) for lane in missing)
                raise RuntimeError(f"nothing has come from rank {who} for {self.watch.timeout_s:g} s")
            self.go_on(left if missing else 0.0)  # it may have come while another message was sent


@dataclass(eq=False)
class Errand:
    """Something that `ranks` do together: of each of these lanes a message is awaited, and taken; and if `block` was
    lent, for a tensor that it `holds`, that it has been read (rule H5)."""

    near: Neighbours
    what: str
    ranks: Ranks
    channel: int
    lanes: Sequence[Lane]
    block: SharedBlock | None = None
    holds: Tensor | None = None
    done: bool = False

    def go_on(self) -> bool:
        """Is nothing more awaited in this queue?"""
        if self.channel == UNREAD:
            assert self.block is not None
            self.done = not self.block.readers
            return self.done
        mails, channel = list[Mail](), self.channel
        for lane in self.lanes:
            if not lane.come[channel]:
                return False
            mails.append(lane.come[channel][0])
        for lane in self.lanes:
            lane.come[channel].popleft()
        self.take(mails)
        return True

    def take(self, mails: Sequence[Mail]) -> None:
        """Of each lane its message: what becomes of it is for each kind of errand to say."""
        self._answer(mails)

    def _answer(self, mails: Sequence[Mail]) -> None:
        """All has been read."""
        if self.block is not None:
            self.near.memory.has_read(self.block.number, self)
        for lane, (number, _) in zip(self.lanes, mails, strict=True):
            lane.say(LINE.pack(READ, 0, number, 0, 0, 0))
        if self.block is None or self.block.lent is None:
            self.done = True
        else:
            self._wait_in(UNREAD)

    def _wait_in(self, channel: int) -> None:
        self.channel = channel
        self.near.queues[channel].append(self)

    def missing(self) -> Sequence[Lane]:
        """Those that it waits for."""
        if self.channel == UNREAD:
            return list(self.block.readers) if self.block is not None else []
        return [lane for lane in self.lanes if not lane.come[self.channel]]

    def wait(self) -> None:
        near = self.near
        if not self.done:
            near.go_on()
        if self.done:
            near.watch.passed(self.what, self.ranks)
            return
        begin = time.perf_counter()
        with near.watch.during(self.what, self.ranks):
            near.finish(self)
        near.traffic.waited_s += time.perf_counter() - begin


@dataclass(eq=False, kw_only=True)
class Receipt(Errand):
    """What is said is copied to its place."""

    places: Sequence[Tensor] = ()

    def take(self, mails: Sequence[Mail]) -> None:
        for (_, data), place in zip(mails, self.places, strict=True):
            place.copy_(data.view(place.dtype).view(place.shape))
        self._answer(mails)


@dataclass(eq=False, kw_only=True)
class PieceReceipt(Receipt):
    """Of what each rank has laid, all or its piece, its piece is copied."""

    def take(self, mails: Sequence[Mail]) -> None:
        for lane, (_, data), place in zip(self.lanes, mails, self.places, strict=True):
            lo = 0 if len(data) == place.nbytes else self.ranks.index(lane.rank) * place.nbytes
            place.copy_(data[lo : lo + place.nbytes].view(place.dtype))
        self._answer(mails)


@dataclass(eq=False, kw_only=True)
class SmallSum(Errand):
    """Every rank adds up all (rule H4). `place`: of the sum; what this rank has laid lies in its block."""

    place: Tensor

    def take(self, mails: Sequence[Mail]) -> None:
        self.place.copy_(_added(self._in_order(mails)).view(self.place.shape))
        self._answer(mails)

    @property
    def own(self) -> Tensor:
        assert self.block is not None
        return self.block.data[: self.place.nbytes].view(self.place.dtype)

    def _in_order(self, mails: Sequence[Mail]) -> list[Tensor]:
        """What each rank has laid; the lanes are in the order of ranks."""
        found = [data.view(self.place.dtype) for _, data in mails]
        found.insert(self.ranks.index(self.near.rank), self.own)
        return found


@dataclass(eq=False, kw_only=True)
class SumInPieces(SmallSum):
    """Every rank adds up its piece, where it has laid it, and tells the others, who then copy it."""

    laid: Sequence[Mail] = ()  # what the others have, from when this rank's piece is done

    def take(self, mails: Sequence[Mail]) -> None:
        if self.laid:
            self._copy_pieces()
            self._answer(self.laid)
            return
        self.laid = mails
        pieces = [part.tensor_split(len(self.ranks)) for part in self._in_order(mails)]
        at = self.ranks.index(self.near.rank)
        _added([each[at] for each in pieces], into=pieces[at][at])
        for lane in self.lanes:
            lane.say(LINE.pack(LIES, TOTALS, 0, 0, 0, 0))
        self._wait_in(TOTALS)

    def _copy_pieces(self) -> None:
        """To the place: of what lies there already, only those of others."""
        lent = self.block is not None and self.block.lent is not None
        direct = lent or self.place.is_contiguous()
        into = self.own if lent else self.place.view(-1) if direct else torch.empty_like(self.own)
        places = into.tensor_split(len(self.ranks))
        for at, (rank, part) in enumerate(zip(self.ranks, self._in_order(self.laid), strict=True)):
            if not lent or rank != self.near.rank:
                places[at].copy_(part.tensor_split(len(self.ranks))[at])
        if not direct:
            self.place.copy_(into.view(self.place.shape))


def _added(parts: Sequence[Tensor], into: Tensor | None = None) -> Tensor:
    """In their order. `into` may be one of them."""
    if len(parts) == 2:
        return torch.add(parts[0], parts[1], out=into)
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total if into is None else into.copy_(total)


def meet_neighbours(
    ranks: Sequence[int], tell: Callable[[bytes], list[bytes]], watch: Watch, traffic: Traffic
) -> Neighbours | None:
    """Rule H3. `tell` gives what every rank says, in order; all ranks make theirs together."""
    host, memory, lanes, failure = host_name(), SharedMemory(), dict[int, Lane](), ""
    server = listen() if host else None
    address = server.getsockname().decode().lstrip("\0") if server is not None else ""
    said = [json.loads(text) for text in tell(json.dumps({"host": host, "address": address}).encode())]
    hosts = [each["host"] for each in said if each["host"]]
    near = {other: each["address"] for other, each in zip(ranks, said, strict=True) if host and each["host"] == host}
    near.pop(watch.rank, None)
    try:
        if server is not None and near:
            made = connect(server, watch.rank, near, watch.timeout_s)
            lanes = {other: Lane(other, made[other], memory, watch.timeout_s) for other in sorted(made)}
    except OSError as error:
        failure = str(error) or type(error).__name__
    if server is not None:
        server.close()
    if len(set(hosts)) == len(hosts):
        return None  # nobody shares a host with anybody
    found, failures = Neighbours(lanes, memory, watch, traffic), tell(failure.encode())
    if any(failures):
        _log.info("ranks of one host talk over its network: %s", next(filter(None, failures)).decode())
        found.close()
        return None
    return found
