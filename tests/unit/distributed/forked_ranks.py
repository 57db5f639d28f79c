"""Ranks that only call each other, as forked processes: faults at exact moments, without torch's process groups.

    python forked_ranks.py SCENARIO...

runs them at once, since they mostly wait, and prints one JSON object: for every scenario, and every rank in it that
ends by itself, what that rank says. A call sends a byte to each peer and waits for
one of each, as an exchange of halos does; a peer whose process ends closes its sockets, as gloo's do.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from tilegrad.distributed.watch import RankError, Watch

TIMEOUT_S = 5.0
Act = Callable[["Rank", int], None]


@dataclass
class Rank:
    """One process: its watch, and a socket to every other rank."""

    rank: int
    watch: Watch
    peers: dict[int, socket.socket]

    def call(self, *peers: int) -> None:
        """With some, or with all others."""
        chosen = [peer for peer in peers or self.peers if peer != self.rank]
        with self.watch.during("a call", chosen):
            end = time.monotonic() + TIMEOUT_S
            for peer in chosen:
                self._swap(self.peers[peer], end)

    @staticmethod
    def _swap(sock: socket.socket, end: float) -> None:
        sock.settimeout(max(0.01, end - time.monotonic()))
        try:
            sock.sendall(b".")
            if not sock.recv(1):
                raise RuntimeError("Connection closed by peer")
        except TimeoutError:
            raise RuntimeError("Timed out waiting") from None
        except OSError as error:
            raise RuntimeError(str(error)) from None


class World:
    """The ranks of a mesh. `act(rank, step)` runs before each call."""

    def __init__(self, ranks: Sequence[int], act: Act, steps: int = 4, peers: dict[int, list[int]] | None = None):
        self.ranks, self.act, self.steps, self.peers = list(ranks), act, steps, peers or {}
        self.sockets = {pair: socket.socketpair() for pair in combinations(sorted(ranks), 2)}
        self.address = {rank: os.pipe() for rank in ranks}
        self.said = {rank: os.pipe() for rank in ranks}
        self.pids = {rank: self._fork(rank) for rank in ranks}
        for one, other in self.sockets.values():
            one.close()
            other.close()
        for _, end in self.said.values():
            os.close(end)

    def _fork(self, rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._live(rank)
        except BaseException:
            traceback.print_exc()
        os._exit(0)

    def _live(self, rank: int) -> None:
        mine = {}
        for (a, b), (one, other) in self.sockets.items():
            if rank in (a, b):
                mine[b if rank == a else a] = one if rank == a else other
                (other if rank == a else one).close()
            else:
                one.close()
                other.close()
        watch = Watch(self.ranks, rank, lambda text: self._tell(rank, text), TIMEOUT_S)
        me, begin, found, why = Rank(rank, watch, mine), time.monotonic(), dict[str, object](), None
        try:
            for step in range(self.steps):
                begin = time.monotonic()
                self.act(me, step)
                me.call(*self.peers.get(rank, []))
        except RankError as error:
            why = error
            found = {"ranks": error.ranks, "text": str(error), "seconds": time.monotonic() - begin}
        os.write(self.said[rank][1], json.dumps(found).encode())
        watch.close(why)

    def _tell(self, rank: int, text: bytes) -> list[bytes]:
        if rank == self.ranks[0]:
            for other in self.ranks[1:]:
                os.write(self.address[other][1], text)
            return [text]
        return [os.read(self.address[rank][0], 1 << 16)]

    def reports(self, missing: Sequence[int] = ()) -> dict[int, dict[str, object]]:
        """Of all but those that will not say anything."""
        found = {rank: json.loads(os.read(self.said[rank][0], 1 << 16)) for rank in self.ranks if rank not in missing}
        for rank in missing:
            os.kill(self.pids[rank], signal.SIGKILL)
        for pid in self.pids.values():
            os.waitpid(pid, 0)
        return found


def at(rank: int, step: int, do: Callable[[Rank], None]) -> Act:
    """Something that happens to one rank, once."""

    def act(me: Rank, now: int) -> None:
        if (me.rank, now) == (rank, step):
            do(me)

    return act


def die(me: Rank) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_with_a_child(me: Rank) -> None:
    """As a rank whose workers that load data outlive it."""
    if os.fork() == 0:
        for sock in me.peers.values():
            sock.close()
        time.sleep(8)
        os._exit(0)
    die(me)


def hang(me: Rank) -> None:
    time.sleep(60)


def stop(me: Rank) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail(me: Rank) -> None:
    me.watch.close(ZeroDivisionError("a mistake of one rank alone"))
    os._exit(1)


def leave(me: Rank) -> None:
    me.watch.close()
    os._exit(0)


FAULTS = {"die": die, "die-with-a-child": die_with_a_child, "hang": hang, "stop": stop, "fail": fail, "leave": leave}
CHAIN = {0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}  # as halos of four strips


def run_fault(name: str, rank: int) -> dict[int, dict[str, object]]:
    """One of four ranks goes wrong, whose neighbours alone call it."""
    world = World([0, 1, 2, 3], at(rank, 2, FAULTS[name]), peers=CHAIN)
    return world.reports(missing=[rank])


def run_nothing() -> dict[int, dict[str, object]]:
    return World([0, 1, 2, 3], lambda me, step: None, peers=CHAIN).reports()


def run_asleep() -> dict[int, dict[str, object]]:
    """Rank 1 is stopped while rank 2 dies. Ranks 0 and 3 stop and end, the judge with them; then rank 1 wakes up."""

    def act(me: Rank, step: int) -> None:
        if step == 2 and me.rank == 1:
            stop(me)
        if step == 2 and me.rank == 2:
            time.sleep(0.5)
            die(me)

    world = World([0, 1, 2, 3], act)
    ended = [rank for rank in (0, 3) if os.waitpid(world.pids[rank], 0)[0]]
    os.kill(world.pids[1], signal.SIGCONT)
    return {**{rank: json.loads(os.read(world.said[rank][0], 1 << 16)) for rank in (0, 1, 3)}, -1: {"ended": ended}}


def run(name: str) -> dict[int, dict[str, object]]:
    """`"nothing"`, `"asleep"`, or a fault and a rank: `"die-2"`."""
    if name in ("nothing", "asleep"):
        return run_nothing() if name == "nothing" else run_asleep()
    fault, _, rank = name.rpartition("-")
    return run_fault(fault, int(rank))


def main(names: Sequence[str]) -> None:
    ends = {}
    for name in names:
        here, there = os.pipe()
        if os.fork() == 0:
            os.write(there, json.dumps(run(name)).encode())
            os._exit(0)
        os.close(there)
        ends[name] = here
    print(json.dumps({name: json.loads(os.read(end, 1 << 16) or b"null") for name, end in ends.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
