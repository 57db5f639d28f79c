"""Which rank is missing, from what is known of all ranks. No threads, no connections, no clock: rules.

Rule W1  A rank whose connection is closed is gone, unless it had taken leave. So is a rank that took leave because of
         an error, or before a call that another rank is in. But a rank that had said that a call of its own failed, or
         that it stops because others do, is not to blame. All this is fact, however busy the machine is.
Rule W2  Once a call has timed out: who waits for whom is followed from there. A rank that is waited for, has not begun
         that call, and has been in no call for half the timeout, hangs. Of any two ranks each counts the calls that it
         began with the other, so that both know the same call by the same number.
Rule W3  Once a call has timed out, and W2 finds nobody: a rank that is waited for and that does not even answer, while
         all others do so at once, does not answer. Where others are slow too, silence says nothing.
Rule W4  Otherwise it is not known, and nobody is named. Two ranks that wait for each other in different calls have gone
         different ways (one has skipped a step), and the error says which.

One verdict is given, once, and it is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .wire import CLOSED, LOST

GRACE_S = 5.0  # how long proof may be on its way after a call has failed
SETTLE_S = 1.0  # for the others to answer, when one is found to hang: there may be two
PROMPT_S = 1.0  # slower answers than this, and the machine is too busy to judge anyone by his silence
GONE, HANGS, SILENT, UNKNOWN = "is gone", "hangs", "does not answer", "unknown"


@dataclass(frozen=True)
class Verdict:
    """What is wrong with which ranks, and `why`, as far as they have said it. `how` is UNKNOWN and `ranks` is empty
    where that is not known; then `why` says what is."""

    how: str
    ranks: tuple[int, ...] = ()
    why: str = ""

    def message(self) -> dict[str, Any]:
        return {"kind": "verdict", "how": self.how, "ranks": self.ranks, "why": self.why}

    @staticmethod
    def of(message: Mapping[str, Any]) -> Verdict:
        return Verdict(str(message["how"]), tuple(map(int, message["ranks"])), str(message["why"]))


@dataclass
class Witness:
    """What is known of a rank."""

    counts: dict[int, int] | None = None  # calls begun with each other rank; None: it has not said
    waits: dict[int, int] | None = None  # in a call: its number with each rank that takes part; None: in no call
    seconds: float = 0.0  # for so long
    failed: str | None = None  # what its own call said when it failed: then another is to blame
    late: bool = False  # because of the timeout
    left: bool = False  # it has taken leave
    error: str = ""  # because of an error
    ended: str = ""  # how its connection ended
    asked: float | None = None  # when, if it has not answered since
    what: str = ""  # the call that it is in

    def begun(self, other: int) -> int | None:
        """Calls begun with another rank."""
        return None if self.counts is None else self.counts.get(other, 0)

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of this rank: its state, a call that failed, or that it takes leave."""
        self.counts = {int(rank): int(n) for rank, n in message["counts"].items()}
        self.waits = None if message["waits"] is None else {int(rank): int(n) for rank, n in message["waits"].items()}
        self.what, self.seconds = str(message["what"]), float(message["seconds"])
        match message["kind"]:
            case "failed":
                self.failed, self.late = str(message["said"]), bool(message["late"])
            case "leave":
                self.left, self.error = True, str(message["error"])
                self.failed = self.failed or message["stopped"]


@dataclass
class Inquiry:
    """From the first call that failed to the verdict."""

    begin: float
    first: int  # whose call it was
    worst_s: float = 0.0  # the longest that anyone took to answer, the judge too
    answered: set[int] = field(default_factory=set)


def gone(known: Mapping[int, Witness]) -> tuple[int, ...]:
    """The ranks that Rule W1 finds."""
    missed = {to for _, to in _waits(known) if known[to].left}
    silent_end = {rank for rank, one in known.items() if one.ended == CLOSED and not one.left}
    with_error = {rank for rank, one in known.items() if one.error}
    return tuple(sorted(rank for rank in missed | silent_end | with_error if known[rank].failed is None))


def reasons(known: Mapping[int, Witness], ranks: Sequence[int]) -> str:
    """What those that are gone have said."""
    several = len(ranks) > 1
    return "; ".join((f"rank {rank}: " if several else "") + known[rank].error for rank in ranks if known[rank].error)


def judge(known: Mapping[int, Witness], inquiry: Inquiry, timeout_s: float, now: float) -> Verdict | None:
    """The verdict, or None while something may still come."""
    if found := gone(known):
        return Verdict(GONE, found, reasons(known, found))
    living = [rank for rank, one in known.items() if not one.ended and not one.left]
    passed = now - inquiry.begin
    heard = inquiry.answered.issuperset(living)
    waited_for = _reached(known)
    hanging = tuple(rank for rank in waited_for if rank in living and _hangs(known[rank], timeout_s))
    if hanging and (heard or passed >= SETTLE_S):
        return Verdict(HANGS, hanging)
    silence = {rank: now - asked for rank in living if (asked := known[rank].asked) is not None}
    dumb = tuple(rank for rank in waited_for if known[rank].ended == LOST or silence.get(rank, 0.0) >= GRACE_S)
    others = [inquiry.worst_s, *(s for rank, s in silence.items() if rank not in dumb)]
    calm = max(others) <= PROMPT_S
    if dumb and calm:
        return Verdict(SILENT, dumb)
    if passed >= (GRACE_S if calm and heard else 3 * GRACE_S):
        return Verdict(UNKNOWN, (), _what_is_known(known, inquiry))
    return None


def _hangs(one: Witness, timeout_s: float) -> bool:
    return one.counts is not None and one.waits is None and one.failed is None and one.seconds >= timeout_s / 2


def _reached(known: Mapping[int, Witness]) -> list[int]:
    """The ranks that are waited for, directly or not, by those whose call timed out."""
    ways = list(_waits(known))
    found = {rank for rank, one in known.items() if one.late}
    late = set(found)
    while more := {to for start, to in ways if start in found} - found:
        found |= more
    return sorted(found - late)


def _waits(known: Mapping[int, Witness]) -> Iterator[tuple[int, int]]:
    """Who is in a call that whom has not begun, as far as is known."""
    for rank, one in known.items():
        for to, number in (one.waits or {}).items():
            begun = known[to].begun(rank) if to in known else None
            if to != rank and to in known and (begun is None or begun < number):
                yield rank, to


def _what_is_known(known: Mapping[int, Witness], inquiry: Inquiry) -> str:
    for rank, one in known.items():
        if one.left and one.failed:
            return f"rank {rank} had stopped before: {one.failed}"
    for rank, to in ((a, b) for a in known for b in known if a < b):
        one, other = known[rank], known[to]
        numbers = (one.waits or {}).get(to), (other.waits or {}).get(rank)
        if None not in numbers and numbers[0] == numbers[1] and one.what != other.what:
            return f"rank {rank} is in '{one.what}' and rank {to} in '{other.what}': one has skipped a step"
    if any(one.late for one in known.values()):
        return "no rank is gone and none hangs: perhaps one was slower than the timeout"
    return f"no rank is gone; the call of rank {inquiry.first} failed: {known[inquiry.first].failed}"
