"""The rules by which a missing rank is found, one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tilegrad.distributed.verdict import (
    GONE,
    GRACE_S,
    HANGS,
    PROMPT_S,
    SETTLE_S,
    SILENT,
    UNKNOWN,
    Inquiry,
    Verdict,
    Witness,
    gone,
    judge,
)
from tilegrad.distributed.wire import CLOSED, LOST

TIMEOUT_S = 10.0


def inside(seconds: float = 3.0, **waits: int) -> Witness:
    """In a call: `r1=7` is the seventh with rank 1. It has begun as many with all."""
    numbers = {int(key[1:]): number for key, number in waits.items()}
    return Witness(dict.fromkeys(range(4), max(numbers.values())), numbers, seconds)


def outside(begun: int, seconds: float) -> Witness:
    return Witness(dict.fromkeys(range(4), begun), None, seconds)


def failed(one: Witness, *, late: bool = False) -> Witness:
    one.failed, one.late = "Timed out" if late else "Connection closed by peer", late
    return one


def ruled(known: dict[int, Witness], *, passed: float = 0.5, worst_s: float = 0.01, answered: Any = None) -> Any:
    inquiry = Inquiry(100.0, 0, worst_s, set(known if answered is None else answered))
    return judge(known, inquiry, TIMEOUT_S, 100.0 + passed)


# W1: gone


def test_an_end_without_leave() -> None:
    known = {0: failed(inside(r1=7)), 1: Witness(ended=CLOSED), 2: inside(r1=7)}
    assert ruled(known, passed=0.0, answered=()) == Verdict(GONE, (1,))


def test_who_failed_before_it_ended_is_not_to_blame() -> None:
    known = {0: failed(inside(r1=7)), 1: failed(inside(r2=7)), 2: inside(r1=7)}
    known[1].ended = CLOSED
    assert gone(known) == () and ruled(known) is None
    known[2].ended = CLOSED
    assert ruled(known) == Verdict(GONE, (2,))


def test_leave_in_order_is_no_fault() -> None:
    known = {0: failed(inside(r1=7, r2=7)), 1: outside(7, 1.0), 2: Witness(ended=CLOSED)}
    known[1].left, known[1].ended = True, CLOSED
    assert ruled(known) == Verdict(GONE, (2,))


def test_leave_before_a_call_that_another_is_in() -> None:
    known = {0: failed(inside(r1=7)), 1: outside(6, 1.0), 2: inside(r1=7)}
    known[1].left = True
    assert ruled(known) == Verdict(GONE, (1,))


def test_leave_with_an_error() -> None:
    known = {0: failed(inside(r2=7)), 1: outside(9, 1.0), 2: inside(r1=7)}
    known[1].left, known[1].error = True, "ValueError: no"
    assert ruled(known) == Verdict(GONE, (1,), "ValueError: no")


def test_who_stops_because_others_do_is_not_to_blame() -> None:
    """It has heard of a lost rank in another mesh, which has no place in this one."""
    known = {0: failed(inside(r1=7)), 1: outside(6, 1.0)}
    known[1].left, known[1].ended, known[1].failed = True, CLOSED, "rank 9 is gone"
    found = ruled(known, passed=GRACE_S)
    assert found == Verdict(UNKNOWN, (), "rank 1 had stopped before: rank 9 is gone")


def test_two_at_once() -> None:
    known = {0: failed(inside(r1=7)), 1: Witness(ended=CLOSED), 2: Witness(ended=CLOSED)}
    assert ruled(known) == Verdict(GONE, (1, 2))


# W2: hangs


def test_who_did_not_come_hangs() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: outside(6, 10.0), 2: inside(r1=7)}
    assert ruled(known) == Verdict(HANGS, (1,))


def test_through_others() -> None:
    """0 waits for 1, which waits for 2, which waits for 3, which did not come."""
    known = {
        0: failed(inside(r1=9), late=True),
        1: Witness({0: 8, 2: 9}, {2: 9}, 9.0),
        2: Witness({1: 8, 3: 9}, {3: 9}, 9.0),
        3: outside(8, 9.0),
    }
    assert ruled(known) == Verdict(HANGS, (3,))


def test_who_is_not_waited_for_is_not_named() -> None:
    """2 does something else for long; nobody who timed out needs it."""
    known = {0: failed(inside(r1=7), late=True), 1: outside(6, 10.0), 2: outside(3, 10.0)}
    assert ruled(known) == Verdict(HANGS, (1,))


def test_who_has_begun_the_call_is_not_waited_for() -> None:
    """1 is through already, and computes; 0 lacks 2."""
    known = {0: failed(inside(r1=7, r2=7), late=True), 1: outside(7, 10.0), 2: outside(6, 10.0)}
    assert ruled(known) == Verdict(HANGS, (2,))


def test_a_short_absence_proves_nothing() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: outside(6, TIMEOUT_S / 2 - 0.1)}
    assert ruled(known) is None
    assert ruled(known, passed=GRACE_S).how == UNKNOWN
    known[1].seconds += 0.1  # asked again, it is still away
    assert ruled(known) == Verdict(HANGS, (1,))


def test_without_a_timeout_nobody_hangs() -> None:
    known = {0: failed(inside(r1=7)), 1: outside(6, 10.0)}
    assert ruled(known) is None
    found = ruled(known, passed=GRACE_S)
    assert found.how == UNKNOWN and found.ranks == () and "Connection closed by peer" in found.why


def test_there_may_be_two() -> None:
    known = {0: failed(inside(r1=7, r2=7), late=True), 1: outside(6, 10.0), 2: Witness(asked=100.0)}
    assert ruled(known, passed=SETTLE_S / 2, answered=(0, 1)) is None
    assert ruled(known, passed=SETTLE_S, answered=(0, 1)) == Verdict(HANGS, (1,))
    known[2] = outside(6, 10.0)
    assert ruled(known, passed=SETTLE_S / 2) == Verdict(HANGS, (1, 2))


# W3: does not answer


@pytest.mark.parametrize("one", [Witness(asked=100.0), Witness(ended=LOST)])
def test_silence_on_a_calm_machine(one: Witness) -> None:
    known = {0: failed(inside(r1=7), late=True), 1: one, 2: inside(r1=7)}
    assert ruled(known, passed=GRACE_S, answered=(0, 2)) == Verdict(SILENT, (1,))


def test_silence_on_a_busy_machine() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: Witness(asked=100.0), 2: inside(r1=7)}
    busy = PROMPT_S + 0.1
    assert ruled(known, passed=GRACE_S, worst_s=busy, answered=(0, 2)) is None
    assert ruled(known, passed=3 * GRACE_S, worst_s=busy, answered=(0, 2)).how == UNKNOWN


def test_two_who_are_silent_of_whom_one_only_for_a_while() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: Witness(asked=100.0), 2: inside(r1=7)}
    known[2].asked = 100.0 + GRACE_S - PROMPT_S - 0.5
    assert ruled(known, passed=GRACE_S, answered=(0, 2)) is None


def test_silence_without_a_timeout() -> None:
    known = {0: failed(inside(r1=7)), 1: Witness(asked=100.0)}
    assert ruled(known, passed=GRACE_S, answered=(0,)) is None
    assert ruled(known, passed=3 * GRACE_S, answered=(0,)).how == UNKNOWN


# W4: not known


def test_all_came() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: inside(r0=7)}
    assert ruled(known, passed=GRACE_S - 0.1) is None
    found = ruled(known, passed=GRACE_S)
    assert found == Verdict(UNKNOWN, (), "no rank is gone and none hangs: perhaps one was slower than the timeout")


def test_messages_come_back() -> None:
    for verdict in (Verdict(GONE, (1, 2)), Verdict(UNKNOWN, (), "who knows")):
        assert Verdict.of(json.loads(json.dumps(verdict.message()))) == verdict
    one = Witness()
    state = {"counts": {1: 4}, "waits": {1: 4}, "what": "halos", "seconds": 2.5}
    one.hear(json.loads(json.dumps({"kind": "failed", "said": "no", "late": True, **state})))
    assert one == Witness({1: 4}, {1: 4}, 2.5, failed="no", late=True, what="halos")
    one.hear(
        json.loads(json.dumps({"kind": "leave", "error": "ValueError: no", "stopped": None, **state, "waits": None}))
    )
    assert one.left and one.error and one.waits is None and one.failed == "no"


def test_ranks_that_went_different_ways() -> None:
    known = {0: failed(inside(r1=7), late=True), 1: inside(r0=7)}
    known[0].what, known[1].what = "the gradient of 'w'", "the inputs"
    found = ruled(known, passed=GRACE_S)
    assert found == Verdict(
        UNKNOWN, (), "rank 0 is in 'the gradient of 'w'' and rank 1 in 'the inputs': one has skipped a step"
    )
