"""Which rank is missing when the others wait in vain.

The ranks of a mesh share a small store of ours, and each has a thread that looks into it now and then. When a call
fails, or takes longer than the timeout, a rank raises the alarm there. The threads of the others answer, also while
their rank is stuck in a call: how many calls it has begun, and whether it is in one. Who does not answer is dead; who
answers but is in no call hangs elsewhere. The verdict goes into the store, so that all ranks stop with the same error,
which names the rank. The store lives in the first rank of the mesh, which stays until the others have read it; if it is
gone before there is a verdict, that is the rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..errors import TilegradError

GRACE_S = 5.0  # for the others to answer
POLL_S = 0.2  # how often threads look
_homes: list[TCPStore] = []  # stores that live here, until the process ends: others may still look into them
SILENT_S = 3.0  # after which a thread that no longer answers is gone


class RankError(TilegradError):
    """Another rank has died, hangs, or has gone its own way. `ranks`: which."""

    def __init__(self, what: str, ranks: Sequence[int], *, where: str | None = None, hint: str | None = None):
        super().__init__(what, where=where, hint=hint)
        self.ranks = tuple(ranks)


class Watch:
    """One rank's eye on the others."""

    def __init__(self, ranks: Sequence[int], rank: int, tell: Callable[[bytes], list[bytes]], timeout_s: float):
        self.ranks, self.rank, self.timeout_s = tuple(ranks), rank, timeout_s
        self.count, self.inside = 0, False  # calls begun, and whether in one
        self.verdict: str | None = None
        self._stop = threading.Event()
        if len(self.ranks) > 1:
            host, port = self._found(tell)
            self._store, own = self._connect(host, port), self._connect(host, port)
            self._thread = threading.Thread(target=self._look, args=(own,), name="tilegrad watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if len(self.ranks) > 1:
            self._thread.join()

    def _found(self, tell: Callable[[bytes], list[bytes]]) -> tuple[str, int]:
        """The first rank makes the store and tells the others where it is."""
        if self.rank == self.ranks[0]:
            host = os.environ.get("MASTER_ADDR", "") or socket.gethostname()
            home = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            _homes.append(home)
            tell(f"{host}:{home.port}".encode())
            return host, home.port
        host, _, port = tell(b"")[0].decode().rpartition(":")
        return host, int(port)

    def _connect(self, host: str, port: int) -> TCPStore:
        patient = timedelta(seconds=max(GRACE_S, self.timeout_s))  # a busy machine may take its time to begin
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=patient)
        store.set_timeout(timedelta(seconds=GRACE_S))
        return store

    @contextlib.contextmanager
    def during(self, what: str, peers: Sequence[int]) -> Iterator[None]:
        """A call that other ranks take part in. `what` is what errors call it."""
        if len(self.ranks) == 1:
            yield
            return
        self.count += 1
        self.inside, begin = True, time.monotonic()
        try:
            yield
        except RuntimeError as error:  # a connection that was closed, or a timeout
            raise self._blame(what, peers, time.monotonic() - begin, error) from error
        self.inside = False

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def _blame(self, what: str, peers: Sequence[int], waited: float, error: Exception) -> RankError:
        late = waited >= 0.9 * self.timeout_s
        verdict = self.verdict or self._judge(late)
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if not verdict:
            others = [p for p in peers if p != self.rank]
            return RankError(f"rank {self.rank} cannot talk to rank {_join(others)}: {said}", others, where=what)
        how, _, names = verdict.partition(":")
        missing = [int(name) for name in names.split(",")]
        where = f"{what}, noticed by rank {self.rank} after {waited:.1f} s ({said})"
        hint = "look at the output of that rank" + ("; a longer timeout=, if it is only slow" if how == "hangs" else "")
        return RankError(f"rank {_join(missing)} {how}, and the others stop", missing, where=where, hint=hint)

    def _judge(self, late: bool) -> str:
        """Raise the alarm, hear the others, and agree on one verdict."""
        try:
            self._store.set("alarm", "1")
            others = [rank for rank in self.ranks if rank != self.rank]
            states = self._hear(others, late)
            dead = [rank for rank in others if rank not in states]
            idle = [rank for rank, inside in states.items() if not inside]
            mine = f"is gone:{_names(dead)}" if dead else f"hangs:{_names(idle)}" if idle else "none:"
            verdict = self._store.compare_set("verdict", "", mine).decode()
            self.verdict = "" if verdict.startswith("none") else verdict
            self._store.set(f"read/{self.rank}", "1")
            self._linger([rank for rank in others if rank in states])
        except (RuntimeError, OSError):  # the store is gone, and with it the first rank
            self.verdict = self.verdict or f"is gone:{self.ranks[0]}"
        return self.verdict or ""

    def _hear(self, others: Sequence[int], late: bool) -> dict[int, bool]:
        """Whether each rank that goes on answering is in a call. A rank that raises answers until it is gone: unless
        this one has waited long already, it listens for a while."""
        begin = now = time.monotonic()
        states, heard = dict[int, str](), dict.fromkeys(others, begin)
        while now < begin + GRACE_S and not self._store.check(["verdict"]):
            for rank in others:
                if self._store.check([f"state/{rank}"]):
                    state = self._store.get(f"state/{rank}").decode()
                    if state != states.get(rank):
                        states[rank], heard[rank] = state, now
            if (late and len(states) == len(others)) or min(heard.values()) < now - SILENT_S:
                break
            time.sleep(POLL_S / 4)
            now = time.monotonic()
        return {r: s.startswith("inside") for r, s in states.items() if heard[r] >= now - SILENT_S}

    def _linger(self, alive: Sequence[int]) -> None:
        """Stay until the others have read the verdict: when a rank goes, so do its connections."""
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and not self._store.check([f"read/{rank}" for rank in alive]):
            time.sleep(POLL_S / 4)

    def _look(self, store: TCPStore) -> None:
        """The thread: answer an alarm, and keep the verdict."""
        with contextlib.suppress(RuntimeError, OSError):  # the store is gone: the calls themselves will tell
            tick = 0
            while not self._stop.wait(POLL_S):
                tick += 1
                if store.check(["alarm"]):
                    store.set(f"state/{self.rank}", f"{'inside' if self.inside else 'outside'} {tick}")
                if store.check(["verdict"]):
                    found = store.get("verdict").decode()
                    self.verdict = "" if found.startswith("none") else found
                    store.set(f"read/{self.rank}", "1")
                    return


def _names(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def _join(ranks: Sequence[int]) -> str:
    return " and ".join(map(str, ranks))
