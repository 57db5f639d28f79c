"""The judge: a thread in the first rank of a mesh that hears all ranks and gives one verdict.

It sleeps until a rank says that a call has failed. Then it asks all ranks, now and then, whether they are in a call and
for how long, and gives the verdict as soon as the rules of `verdict` have one. It tells its own rank last: when that
rank stops and its process ends, the others' copies are already on their way, before the end of the connection.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .verdict import GONE, GRACE_S, Inquiry, Verdict, Witness, gone, judge, reasons
from .wire import Wire, listen, own_addresses

POLL_S = 0.2  # how often ranks are asked, once a call has failed
_log = logging.getLogger("tilegrad")


class Judge:
    """Made in the first rank. `address` is for the others; `own` is the line of this rank itself."""

    def __init__(self, ranks: Sequence[int], timeout_s: float):
        self.ranks, self.timeout_s = tuple(ranks), timeout_s
        self.known = {rank: Witness() for rank in ranks}
        self.inquiry: Inquiry | None = None
        self.verdict: Verdict | None = None
        self._lines: dict[int, Wire] = {}
        self._listener, self._token = listen(), secrets.token_hex(16)
        self.address = {"hosts": own_addresses(), "port": self._listener.getsockname()[1], "token": self._token}
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._greet)
        self._bell, self._rope = socket.socketpair()  # rung once, by `close`
        self._events.register(self._bell, selectors.EVENT_READ, self._rung)
        mine, theirs = socket.socketpair()
        self.own = Wire(mine)
        self._seat(self.ranks[0], Wire(theirs))
        self._rang = self._closing = False
        self._thread = threading.Thread(target=self._sit, name="tilegrad judge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take leave of the others, after the verdict if one is due. Waits a little for those that still listen."""
        if not self._rang:
            self._rang = True
            self._rope.send(b".")  # the thread has both ends open until it has heard this
            self._thread.join(5 * GRACE_S)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _sit(self) -> None:
        while not self._closing or (self.inquiry is not None and self.verdict is None):
            self._wait(POLL_S if self.inquiry is not None and self.verdict is None else None)
            if self.inquiry is not None and self.verdict is None:
                self._inquire(self.inquiry)
        self._leave()

    def _wait(self, seconds: float | None) -> None:
        begin = time.monotonic()
        for key, _ in self._events.select(seconds):
            key.data()
        if seconds is not None and self.inquiry is not None:
            self.inquiry.worst_s = max(self.inquiry.worst_s, time.monotonic() - begin - seconds)

    def _rung(self) -> None:
        self._bell.recv(1)
        self._closing = True

    def _greet(self) -> None:
        with contextlib.suppress(OSError):  # a caller that has gone again
            line = Wire(self._listener.accept()[0])
            self._events.register(line.socket, selectors.EVENT_READ, lambda: self._admit(line))

    def _admit(self, line: Wire) -> None:
        """Only who knows the token is one of us."""
        messages = line.read()
        rank = self._rank_of(messages[0]) if messages else None
        if rank is not None:
            self._events.unregister(line.socket)
            line.send({"kind": "hello"})
            self._seat(rank, line)
        elif messages or line.ended:
            self._dismiss(line)

    def _rank_of(self, hello: Mapping[str, Any]) -> int | None:
        rank, token = hello.get("rank"), str(hello.get("token")).encode(errors="replace")
        known = isinstance(rank, int) and rank in self.known and rank not in self._lines
        return rank if known and hmac.compare_digest(token, self._token.encode()) else None

    def _seat(self, rank: int, line: Wire) -> None:
        self._lines[rank] = line
        self._events.register(line.socket, selectors.EVENT_READ, lambda: self._hear(rank, line))
        self.known[rank].asked = None
        if self.verdict is not None:
            line.send(self.verdict.message())
        if self._complete:
            self._events.unregister(self._listener)
            self._listener.close()
            self._tell({"kind": "complete"})

    @property
    def _complete(self) -> bool:
        return len(self._lines) == len(self.ranks)

    def _hear(self, rank: int, line: Wire) -> None:
        one, now = self.known[rank], time.monotonic()
        for message in line.read():
            one.hear(message)
            if one.left and one.error:  # at once: who started the ranks may end this one too
                _log.error("rank %d stops: %s", rank, one.error)
            if message["kind"] == "failed" and self.verdict is not None:
                line.send(self.verdict.message())
            elif message["kind"] == "failed" and self.inquiry is None:
                self.inquiry = Inquiry(now, rank)
                self._ask(now)
            if message["kind"] == "state" and self.inquiry is not None and one.asked is not None:
                self.inquiry.worst_s = max(self.inquiry.worst_s, now - one.asked)
                self.inquiry.answered.add(rank)
                one.asked = None
        if line.ended:
            one.ended = line.ended
            if not one.left and self.verdict is None and not self._closing:
                _log.error("rank %d is gone", rank)
            self._dismiss(line)
            if not self._complete and self.inquiry is None:  # the others wait for all, and would wait in vain
                self.inquiry = Inquiry(now, rank)

    def _dismiss(self, line: Wire) -> None:
        self._events.unregister(line.socket)
        line.close()

    # -- the inquiry ---------------------------------------------------------------------------------------------------

    def _inquire(self, inquiry: Inquiry) -> None:
        now = time.monotonic()
        self.verdict = judge(self.known, inquiry, self.timeout_s, now)
        if self.verdict is None:
            self._ask(now)
        else:
            if self.verdict.how != GONE:
                who = (
                    f"rank {' and '.join(map(str, self.verdict.ranks))} {self.verdict.how}"
                    if self.verdict.ranks
                    else ""
                )
                _log.error("%s", who or self.verdict.why)
            self._tell(self.verdict.message())

    def _ask(self, now: float) -> None:
        """How are you? Not to those who have not yet answered, so that no line fills up."""
        for rank, one in self.known.items():
            if one.asked is None and not one.ended:
                one.asked = now
                if rank in self._lines:
                    self._lines[rank].send({"kind": "ask"})

    def _tell(self, message: Mapping[str, Any]) -> None:
        for rank in reversed(self.ranks):
            if rank in self._lines and not self.known[rank].ended:
                self._lines[rank].send(message)

    def _leave(self) -> None:
        """The others are told what is known, and may read it before the connection is closed."""
        own = self.known[self.ranks[0]]
        lost = gone(self.known)
        said = {"gone": lost, "why": reasons(self.known, lost), "counts": own.counts or {}, "stopped": own.failed}
        self._tell({"kind": "left", **said})
        for line in self._lines.values():
            line.finish()
        end = time.monotonic() + GRACE_S
        while not all(self.known[rank].ended for rank in self._lines) and (left := end - time.monotonic()) > 0:
            self._wait(left)
        for rank, line in self._lines.items():
            if not self.known[rank].ended:
                line.close()
        self._listener.close()
        self._events.close()
        self._bell.close()
        self._rope.close()
