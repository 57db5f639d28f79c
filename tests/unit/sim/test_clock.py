"""The clock, by hand: copies beside computing, and what waits for them.

a has 100 bytes and b 50; bytes leave at 50 a second and come back at 25. Nodes take 1, 2, 4 and 3 seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from tilegrad.planners.offload import least_by_copies, plan_offload
from tilegrad.schedule import Free, Move, Run, ScheduleStep, check_schedule
from tilegrad.schedule.whole import roots_of, whole_schedule
from tilegrad.sim.clock import Time, measure_time
from tilegrad.sim.machine import Machine
from training_graphs import node_times, some, training_graphs

MACHINE = Machine("by hand", 1e12, 1e12, to_host_per_s=50.0, from_host_per_s=25.0, device_bytes=None, host_bytes=None)
SECONDS = {"a": 1.0, "b": 2.0, "c": 4.0, "back": 3.0}
STEPS: dict[str, Callable[[str], ScheduleStep]] = {
    "run": Run,
    "free": Free,
    "out": lambda value: Move(value, "host"),
    "in": lambda value: Move(value, "device"),
}


def graph() -> Graph:
    sizes = {"x": 1, "a": 100, "b": 50, "c": 10}
    values = [
        Value(n, TensorType((s,), "uint8"), Kind.INPUT if n == "x" else Kind.ACTIVATION) for n, s in sizes.items()
    ]
    nodes = [
        Node("a", "any", (Input("in", "x"),), ("a",)),
        Node("b", "any", (Input("in", "x"),), ("b",)),
        Node("c", "any", (Input("in", "b"),), ("c",)),
        Node("back", "any", tuple(Input(n, n, Role.RETAINED_INPUT) for n in "abc"), (), phase=Phase.BACKWARD),
    ]
    made = Graph(tuple(values), tuple(nodes))
    check_graph(made)
    return made


def clock(text: str) -> Time:
    steps = [STEPS[kind](name) for kind, name in (part.split() for part in text.split(", "))]
    schedule = whole_schedule(graph(), "by hand", steps)
    check_schedule(schedule)
    return measure_time(schedule, SECONDS, MACHINE)


END = "run back, free a, free b, free c"


def test_without_copies_only_nodes_take_time() -> None:
    time = clock(f"run a, run b, run c, {END}")
    assert (time.total_s, time.compute_s, time.stall_s, time.host_bytes) == (10, 10, 0, 0)
    assert time.starts == (0, 1, 3, 7, 10, 10, 10)


def test_copies_hide_behind_nodes() -> None:
    """Out from 1 to 3 while b runs, in from 3 to 7 while c runs."""
    time = clock(f"run a, out a, run b, free a, in a, run c, {END}")
    assert (time.total_s, time.stall_s, time.host_bytes) == (10, 0, 200)
    assert time.starts[:7] == (0, 1, 1, 3, 3, 3, 7)


def test_giving_memory_back_waits_for_the_copy() -> None:
    """Out from 1 to 3 with nothing to do meanwhile."""
    time = clock(f"run a, out a, free a, run b, in a, run c, {END}")
    assert (time.total_s, time.compute_s, time.stall_s) == (12, 10, 2)
    assert time.starts[2:4] == (3, 3)


def test_a_node_waits_for_what_it_reads() -> None:
    """In from 7 to 11, and only then the last node."""
    time = clock(f"run a, out a, run b, free a, run c, in a, {END}")
    assert (time.total_s, time.stall_s) == (14, 4)
    assert time.starts[5:7] == (7, 11)


def test_copies_of_one_direction_queue() -> None:
    """a out from 3 to 5, b out from 5 to 6; then in: b from 6 to 8, a from 8 to 12."""
    time = clock(f"run a, run b, out a, out b, run c, free a, free b, in b, in a, {END}")
    assert time.starts[5:7] == (7, 7)  # both copies end while c runs
    assert time.starts[9] == 13  # in: 7 to 9 and 9 to 13
    assert (time.total_s, time.stall_s, time.host_bytes) == (16, 6, 300)
    hasty = clock(f"run a, run b, out a, out b, free b, in b, run c, free a, in a, {END}")
    assert hasty.starts[4] == 6  # its copy had to wait for the other one


def test_the_two_directions_do_not_wait_for_each_other() -> None:
    """a comes in from 3 to 7; b goes out from 3 to 4, comes in behind a."""
    time = clock(f"run a, out a, run b, free a, in a, out b, run c, free b, in b, {END}")
    assert time.starts[7] == 7  # b was out long ago
    assert time.starts[9] == 9  # in from 7 to 9
    assert (time.total_s, time.stall_s) == (12, 2)


def test_nodes_that_run_again_take_their_time_again() -> None:
    time = clock(f"run a, free a, run b, run c, run a, {END}")
    assert (time.total_s, time.compute_s) == (11, 11)


@some(40)
@given(training_graphs(unit=1 << 16), st.sampled_from([1e5, 1e6, 1e9]))
def test_time_is_computing_and_waiting(made: Graph, rate: float) -> None:
    seconds, machine = node_times(made), Machine("link", 1e12, 1e12, rate, rate / 2, None, None)
    schedule = plan_offload(made, seconds, machine, least_by_copies(made)[0])
    assert schedule is not None
    time = measure_time(schedule, seconds, machine)
    moved = [s.value for s in schedule.steps if isinstance(s, Move)]
    assert time.total_s == pytest.approx(time.compute_s + time.stall_s)  # sums of floats in two orders
    assert time.compute_s == sum(seconds.values())
    assert time.host_bytes == sum(roots_of(schedule.graph).bytes[name] for name in moved)
    assert list(time.starts) == sorted(time.starts)
    slower = Machine("slower", 1e12, 1e12, rate / 10, rate / 20, None, None)
    assert measure_time(schedule, seconds, slower).total_s >= time.total_s
