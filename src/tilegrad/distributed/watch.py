"""Which rank is missing when the others wait in vain.

Every rank of a mesh has a line to a judge, who sits in the first of them, and a thread that listens. While all goes
well nothing is said. A rank whose call fails, or takes longer than the timeout, says so and waits for the verdict. The
threads answer for their ranks, also while these are stuck in a call: whether they are in one, in which, and for how
long. From that, and from connections that end, the judge finds who is missing (see `verdict`: proof, or nobody is
named), and all ranks stop with the same error.

A rank takes leave when it closes its meshes or its program ends, so that an end without leave is a rank that was
killed. What was said before an end is read before the end is seen: no rank waits for slow ones to have read the
verdict. If the first rank itself is gone, and with it the judge, all others see that by themselves. If the judge went
in order, or in the middle of an inquiry, or does not answer, the error says so and names nobody.

Limits: ranks that wait outside these calls (a barrier of the caller's own, kernels of NCCL that are still running) look
as if they did something else.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RunError
from .judge import Judge
from .verdict import GONE, GRACE_S, HANGS, UNKNOWN, Verdict
from .wire import LOST, Wire

SILENT_S = 8.0  # after which a judge who says nothing at all is not waited for
LONGEST = 1000  # characters of a reason
_log = logging.getLogger("tilegrad")


class RankError(RunError):
    """Another rank has died, hangs, or has gone its own way. `ranks`: which; none where that is not known."""

    def __init__(self, what: str, ranks: Sequence[int] = (), *, where: str | None = None, hint: str | None = None):
        super().__init__(what, where=where, hint=hint)
        self.ranks = tuple(ranks)


@dataclass(frozen=True)
class WatchedCall:
    """A call that other ranks take part in: for each of them, which of the calls with it this is."""

    what: str
    numbers: Mapping[int, int]
    begin: float


class Watch:
    """One rank's eye on the others. `tell` gives what every rank says, in order; all ranks make theirs together."""

    def __init__(self, ranks: Sequence[int], rank: int, tell: Callable[[bytes], list[bytes]], timeout_s: float):
        self.ranks, self.rank, self.timeout_s = tuple(ranks), rank, timeout_s
        self.counts: dict[int, int] = {}  # calls begun with each rank
        self.call: WatchedCall | None = None  # the one it is in
        self.since = time.monotonic()  # or the end of the last
        self.verdict: Verdict | None = None
        self._left: Mapping[str, Any] | None = None  # what the judge said when he took leave
        self._asked, self._heard = False, time.monotonic()
        self._complete = self._closing = False  # all ranks have their lines; this one takes leave
        self._met, self._news = threading.Event(), threading.Event()  # that; a verdict, or the end of the line
        if len(self.ranks) > 1:
            self._judge = Judge(self.ranks, timeout_s) if rank == self.ranks[0] else None
            self._meet(tell)

    def close(self, error: BaseException | None = None) -> None:
        """Take leave. `error`: because of one, so that the others need not look further; a `RankError`, perhaps of
        another mesh, says that it is not the fault of this rank."""
        if len(self.ranks) == 1:
            return
        stopped = error.what if isinstance(error, RankError) else None
        own = f"{type(error).__name__}: {error}"[:LONGEST] if error is not None and stopped is None else ""
        self._closing = True
        self._line.send({"kind": "leave", "error": own, "stopped": stopped, **self._state()})
        self._line.finish()
        if self._judge is not None:
            self._judge.close()
        self._thread.join(GRACE_S)  # until the judge has closed his end, so that nothing said is lost
        if self in _watches:
            _watches.remove(self)

    # -- the first call ------------------------------------------------------------------------------------------------

    def _meet(self, tell: Callable[[bytes], list[bytes]]) -> None:
        """The first rank has the judge and tells the others where he sits. Nobody goes on before all have their lines:
        from then on every end is seen."""
        if self._judge is not None:
            self._line, first = self._judge.own, list[dict[str, Any]]()
            self._tell_address(self._judge, tell)
        else:
            self._line, first = self._dial(json.loads(tell(b"")[0]))
        self._thread = threading.Thread(target=self._listen, args=(first,), name="tilegrad watch", daemon=True)
        self._thread.start()
        _watches.append(self)
        try:
            with self.during("the first call", self.ranks):
                self._met.wait(self._patience)
                if not self._complete:
                    raise RuntimeError("the ranks have not all come")
        except BaseException as error:
            self.close(error)
            raise

    @staticmethod
    def _tell_address(judge: Judge, tell: Callable[[bytes], list[bytes]]) -> None:
        try:
            tell(json.dumps(judge.address).encode())
        except BaseException:
            judge.own.close()
            judge.close()
            raise

    @property
    def _patience(self) -> float:
        return max(GRACE_S, self.timeout_s)  # a busy machine may take its time to begin

    def _dial(self, address: Mapping[str, Any]) -> tuple[Wire, list[dict[str, Any]]]:
        """A line to the judge, and what he has said already. Some of his names may be of use elsewhere only."""
        hosts, port = address["hosts"], int(address["port"])
        end, reason = time.monotonic() + self._patience, ""
        while (left := end - time.monotonic()) > 0:
            for host in hosts:
                try:
                    line = Wire(socket.create_connection((host, port), timeout=min(left, GRACE_S)))
                except OSError as error:
                    reason = str(error)
                    continue
                line.socket.settimeout(left)  # to hang up on a judge who is only slow would look like an end
                line.send({"rank": self.rank, "token": address["token"]})
                hello, *more = line.read() or [{}]
                if hello.get("kind") == "hello":
                    line.socket.settimeout(None)
                    return line, more
                line.close()  # somebody else's port
            time.sleep(0.1)
        raise RankError(
            f"rank {self.rank} cannot reach rank {self.ranks[0]}, where it would hear of lost ranks: {reason}",
            where=f"{', '.join(hosts)}, port {port}",
            hint="MASTER_ADDR= a name of that host that all others know",
        )

    # -- calls ---------------------------------------------------------------------------------------------------------

    def during(self, what: str, peers: Collection[int], begun: WatchedCall | None = None) -> During:
        """A call that other ranks take part in. `what` is what errors call it; `begun`: the same call goes on."""
        return During(self, what, peers, begun)

    def passed(self, what: str, peers: Collection[int]) -> None:
        """A call in which nobody had to be waited for."""
        if self.verdict is not None:  # some have stopped already
            raise self._error(self.verdict, what, 0.0, "the others had stopped before")
        for peer in peers:
            self.counts[peer] = self.counts.get(peer, 0) + 1
        self.since = time.monotonic()

    def begin(self, what: str, peers: Collection[int], begun: WatchedCall | None) -> WatchedCall:
        if begun is None:
            self.passed(what, peers)
            numbers = {peer: self.counts[peer] for peer in peers if peer != self.rank}
        else:
            self.passed(what, ())
            numbers = dict(begun.numbers)
        self.call = WatchedCall(what, numbers, time.monotonic())
        return self.call

    def end(self) -> None:
        self.since, self.call = time.monotonic(), None

    def _state(self) -> dict[str, Any]:
        """Whether this rank is in a call, and for how long. A call of another mesh is a call, but nobody here is waited
        for in it."""
        now, call = time.monotonic(), self.call
        elsewhere = any(other.call is not None for other in list(_watches) if other.rank == self.rank)
        waits = call.numbers if call is not None else {} if elsewhere else None
        seconds = now - (call.begin if call is not None else self.since)
        what = call.what if call is not None else ""
        return {"counts": dict(self.counts), "waits": waits, "what": what, "seconds": seconds}

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def _listen(self, first: Sequence[Mapping[str, Any]]) -> None:
        """The thread: answer the judge, and keep what he says."""
        self._hear(first)
        while not self._line.ended:
            self._hear(self._line.read())
        if not self._closing and self._left is None and self.verdict is None:
            _log.error("rank %d is gone", self.ranks[0])  # at once: who started the ranks may end this one too
        self._news.set()
        self._met.set()
        self._line.close()

    def _hear(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for message in messages:
            self._heard = time.monotonic()
            match message["kind"]:
                case "complete":
                    self._complete = True
                    self._met.set()
                case "ask":
                    self._asked = True
                    self._line.send({"kind": "state", **self._state()})
                case "verdict":
                    self.verdict = Verdict.of(message)
                    self._news.set()
                    self._met.set()
                case "left":
                    self._left = message

    def blame(self, call: WatchedCall, error: Exception) -> RankError:
        waited = time.monotonic() - call.begin
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if not self._news.is_set():
            late = waited >= 0.9 * self.timeout_s
            self._line.send({"kind": "failed", "said": said, "late": late, **self._state()})
        return self._error(self._await(call), call.what, waited, said)

    def _await(self, call: WatchedCall) -> Verdict:
        """The verdict; where there will be none, what this rank knows by itself."""
        begin = time.monotonic()
        while not self._news.wait(0.1):
            if time.monotonic() - max(begin, self._heard) > SILENT_S:
                return Verdict(UNKNOWN, (), f"rank {self.ranks[0]}, which would know, does not answer")
        return self.verdict or self._alone(call)

    def _alone(self, call: WatchedCall) -> Verdict:
        """The line to the judge has ended without a verdict."""
        first = self.ranks[0]
        if self._left is not None:
            if self._left["gone"]:
                return Verdict(GONE, tuple(self._left["gone"]), str(self._left["why"]))
            if self._left["stopped"]:
                return Verdict(UNKNOWN, (), f"rank {first} had stopped before: {self._left['stopped']}")
            if self._left["counts"].get(str(self.rank), 0) < call.numbers.get(first, 0):
                return Verdict(GONE, (first,))  # it had made all of its calls, and this is not one of them
            return Verdict(UNKNOWN, (), f"rank {first}, which would know, had ended before")
        if self._asked:
            return Verdict(UNKNOWN, (), f"rank {first} ended while it looked for the reason")
        if self._line.ended == LOST:
            return Verdict(UNKNOWN, (), f"rank {first}, which would know, cannot be reached")
        return Verdict(GONE, (first,))

    def _error(self, verdict: Verdict, what: str, waited: float, said: str) -> RankError:
        where = f"{what}, noticed by rank {self.rank} after {waited:.1f} s ({said})"
        if verdict.how == UNKNOWN:
            what = f"ranks cannot go on, and which one is missing is not known: {verdict.why}"
            return RankError(
                what, where=where, hint="look at the output of all ranks; a longer timeout=, if they are slow"
            )
        hint = "look at the output of that rank" + (
            "; a longer timeout=, if it is only slow" if verdict.how == HANGS else ""
        )
        who = " and ".join(map(str, verdict.ranks))
        why = f": {verdict.why}" if verdict.why else ""
        return RankError(f"rank {who} {verdict.how}, and the others stop{why}", verdict.ranks, where=where, hint=hint)


class During:
    """A connection that was closed, or a timeout, is a `RuntimeError`: then it is found out who is to blame."""

    def __init__(self, watch: Watch, what: str, peers: Collection[int], begun: WatchedCall | None):
        self._watch, self._given = watch, (what, peers, begun)
        self._call: WatchedCall | None = None

    def __enter__(self) -> WatchedCall | None:
        if len(self._watch.ranks) > 1:
            self._call = self._watch.begin(*self._given)
        return self._call

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._call is None:
            return
        try:
            if isinstance(error, RuntimeError):
                raise self._watch.blame(self._call, error) from error
        finally:
            self._watch.end()


_watches: list[Watch] = []  # of this process
