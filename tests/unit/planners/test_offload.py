"""Offload: peaks fit whatever the link does, and every value is back before it is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from step_player import Player, moved
from tilegrad.ir import Graph
from tilegrad.planners import Effort, plan_keep
from tilegrad.planners.offload import least_by_copies, plan_offload
from tilegrad.planners.recompute import plan_recompute
from tilegrad.schedule import Free, Move, Run, Schedule, check_schedule
from tilegrad.sim.clock import measure_time
from tilegrad.sim.machine import Machine
from tilegrad.sim.predict import measure_memory
from training_graphs import chain_graph, largest_working_set, node_times, some, training_graphs

UNIT = 1 << 16  # bytes: worth a copy
LINK = Machine("link", 1e12, 1e12, to_host_per_s=UNIT, from_host_per_s=UNIT / 2, device_bytes=None, host_bytes=None)


def check_fits(schedule: Schedule, budget: int) -> None:
    """Legal, inside the budget by the naive simulator, which also finds what is read before it is back."""
    check_schedule(schedule)
    assert Player(schedule.graph).play(schedule).peak_bytes == measure_memory(schedule).peak_bytes <= budget


@some(80)
@given(training_graphs(unit=UNIT), st.floats(0, 1))
def test_copies_alone(graph: Graph, share: float) -> None:
    plain, (least, _) = measure_memory(plan_keep(graph)).peak_bytes, least_by_copies(graph)
    assert largest_working_set(graph) <= least <= plain
    budget = int(least + share * (plain - least))
    found = plan_offload(graph, node_times(graph), LINK, budget)
    assert found is not None and found.runs == plan_keep(graph).runs
    check_fits(found, budget)
    assert plan_offload(graph, node_times(graph), LINK, least - 1) is None


@some(60)
@given(training_graphs(unit=UNIT), st.floats(0, 1), st.floats(0, 1))
def test_copies_after_recompute(graph: Graph, loose: float, share: float) -> None:
    seconds, plain = node_times(graph), measure_memory(plan_keep(graph)).peak_bytes
    least = largest_working_set(graph)
    base = plan_recompute(
        graph, seconds, int(least + loose * (plain - least)), Effort(work=50_000, nodes=0)
    ) or plan_keep(graph)
    budget = int(least + share * (measure_memory(base).peak_bytes - least))
    found = plan_offload(graph, seconds, LINK, budget, base)
    if found is not None:
        assert (found.mode, found.runs, found.gap) == ("offload", base.runs, None)
        check_fits(found, budget)


@some(60)
@given(training_graphs(unit=UNIT))
def test_each_value_goes_out_is_freed_and_comes_back(graph: Graph) -> None:
    found = plan_offload(graph, node_times(graph), LINK, least_by_copies(graph)[0])
    assert found is not None
    for value in set(moved(found.steps, "host")):
        mine = [s for s in found.steps if isinstance(s, Free | Move) and s.value == value]
        times = mine.count(Move(value, "host"))
        assert mine == [Move(value, "host"), Free(value), Move(value, "device")] * times + [Free(value)]
        assert graph.type(value).bytes >= UNIT  # smaller ones are not worth it


def test_a_budget_that_plain_fits_needs_no_copies() -> None:
    graph = chain_graph([UNIT] * 4)
    found = plan_offload(graph, node_times(graph), LINK, measure_memory(plan_keep(graph)).peak_bytes)
    assert found is not None and found.steps == plan_keep(graph).steps


def test_one_copy_by_hand() -> None:
    """While b3 and b2 run there is one value too many. The first waits longest: it goes right after f1 has read it, and
    is fetched after b2, from 6 s to 8 s. So b0 waits 1 s."""
    graph = chain_graph([UNIT] * 4)
    found = plan_offload(graph, node_times(graph), LINK, 1 + 4 * UNIT)
    assert found is not None
    check_fits(found, 1 + 4 * UNIT)
    assert moved(found.steps, "host") == ["v0"]
    assert found.steps[:3] == (Run("f0"), Run("f1"), Move("v0", "host"))
    order = list(found.steps)
    assert order.index(Run("f3")) < order.index(Free("v0")) < order.index(Run("b3"))
    assert order.index(Run("b2")) < order.index(Move("v0", "device")) < order.index(Run("b1"))
    time = measure_time(found, node_times(graph), LINK)
    assert (time.total_s, time.stall_s, time.host_bytes) == (9, 1, 2 * UNIT)


@pytest.mark.parametrize("handed", [False, True])
def test_what_is_handed_over_does_not_leave(handed: bool) -> None:
    """While b3 runs it touches v3, g3 and g2; the last value is there, too, where it must stay."""
    graph = chain_graph([UNIT] * 5, handed=handed)
    least, node = least_by_copies(graph)
    assert (least, node) == (1 + (4 if handed else 3) * UNIT, "b3")
    found = plan_offload(graph, node_times(graph), LINK, least)
    assert found is not None
    check_fits(found, least)
    assert "v4" not in moved(found.steps, "host")
