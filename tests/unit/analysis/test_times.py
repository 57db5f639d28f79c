"""Totals, gaps, busy time and lag, of operators in several lanes; all figures worked out by hand."""

from __future__ import annotations

import pytest

from tilegrad.analysis import analyze
from tilegrad.analysis.times import find_gaps, find_lag, side_times
from tilegrad.profile import Operator, Profile, Span


def on_device(id: str, start: float, end: float, kern: float | None = None, stream: str = "s1") -> Operator:
    return Operator(id, id, "t", device=Span(start, end, kern), stream=stream)


# s1: A waits from 0 to 1 and runs to 4, C from 5 to 7. s2: B runs from 2 to 6, E is issued at 5 and runs from 6.5 to 8.
TWO_LANES = (
    on_device("A", 0, 4, 1),
    on_device("B", 2, 6, stream="s2"),
    on_device("C", 5, 7, 5),
    Operator("D", "D", "untimed"),
    on_device("E", 5, 8, 6.5, "s2"),
)


def test_totals_sum_and_busy_time_counts_overlaps_once() -> None:
    found = side_times(TWO_LANES, "device")
    assert found is not None
    assert found.lanes == ("s1", "s2")
    assert (found.operators, found.first_start_s, found.last_end_s, found.span_s) == (4, 0, 8, 8)
    assert (found.total_s, found.kernel_s, found.wait_s) == (4 + 4 + 2 + 3, 3 + 4 + 2 + 1.5, 1 + 0 + 0 + 1.5)
    assert found.busy_s == 7  # from 1 to 8 something runs
    assert found.busy_share == 7 / 8
    assert side_times(TWO_LANES, "host") is None


def test_gaps_are_between_neighbours_of_a_lane() -> None:
    gaps = find_gaps(TWO_LANES, "device")
    assert [(g.before, g.after, g.seconds, g.idle_s) for g in gaps.every] == [(0, 2, 1, 1), (1, 4, -1, 0.5)]
    found = gaps.to_json(TWO_LANES)
    assert (found["count"], found["negative"], found["zero"]) == (2, 1, 0)
    assert (found["min_s"], found["max_s"], found["median_s"], found["total_s"]) == (-1, 1, 1, 0)
    assert found["idle_s"] == 1.5
    assert found["longer"] == {"2us": 1, "5us": 1, "10us": 1}
    assert [(gap["before"], gap["after"], gap["seconds"]) for gap in found["longest"]] == [
        ("A", "C", 1),
        ("B", "E", -1),
    ]


def test_without_operators_there_are_no_gaps() -> None:
    found = find_gaps((), "host").to_json(())
    assert (found["count"], found["min_s"], found["total_s"], found["longest"]) == (0, None, 0, [])


def both(id: str, host: Span, device: Span) -> Operator:
    return Operator(id, id, "t", host, "main", device, "s")


def test_lag_by_one_clock() -> None:
    operators = (
        both("A", Span(0, 1), Span(2, 3)),
        Operator("H", "on the host alone", "t", Span(1, 1.5)),
        both("B", Span(1.5, 2), Span(3, 5, 4)),
    )
    lag = find_lag(Profile("p", "recorded", operators))
    assert lag is not None
    assert lag.seconds == (2, None, 2.5)  # to the kernel, not to the start of its wait
    assert (lag.offset_s, lag.set_by) == (0, None)
    assert (lag.host_done_early_s, lag.issue_s, lag.done_by_then) == (5 - 2, 2 / 2, 0)
    found = lag.to_json(operators)
    assert (found["first_s"], found["last_s"], found["max_s"], found["max_operator"]) == (2, 2.5, 2.5, "B")


def test_lag_by_two_clocks_is_the_least_that_can_be() -> None:
    """A's kernel cannot have begun before the host issued it at 0.5: the device's clock is 8.25 s behind or more."""
    operators = (both("A", Span(0, 1, 0.5), Span(-8, -7, -7.75)), both("B", Span(1, 2), Span(-6, -4)))
    lag = find_lag(Profile("p", "megengine profile", operators, one_clock=False))
    assert lag is not None
    assert (lag.offset_s, lag.set_by) == (8.25, 0)
    assert lag.seconds == (0, -6 + 8.25 - 1)
    assert lag.host_done_early_s == -4 + 8.25 - 2
    assert lag.done_by_then == 1
    assert (lag.raw_first_s, lag.raw_last_s) == (8, 7)


def test_without_both_sides_there_is_no_lag() -> None:
    assert find_lag(Profile("p", "recorded", TWO_LANES)) is None


def test_the_work_is_on_the_host_where_there_is_no_device() -> None:
    host = Operator("A", "A", "t", Span(0, 2), "main")
    assert analyze(Profile("p", "recorded", (host,))).side == "host"
    assert analyze(Profile("p", "recorded", (host, *TWO_LANES[:1]))).side == "device"


@pytest.mark.parametrize("count", [0, 1])
def test_little_or_nothing_makes_figures_all_the_same(count: int) -> None:
    found = analyze(Profile("p", "recorded", TWO_LANES[:count])).to_json()
    assert found["counts"]["operators"] == count
    assert found["time"]["gaps"]["count"] == 0
    assert found["memory"] == {}
