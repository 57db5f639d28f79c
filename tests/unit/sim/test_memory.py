"""The memory simulator: by hand, and against a second, naive one, for every planner's schedules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from step_player import Player
from tilegrad.ir import Graph
from tilegrad.planners import Effort, plan_keep
from tilegrad.planners.offload import least_by_copies, plan_offload
from tilegrad.planners.recompute import plan_recompute
from tilegrad.planners.segments import best_segments, plan_segments, plan_sqrt
from tilegrad.planners.stages.evict import smallest_peak
from tilegrad.planners.stages.problem import make_problem
from tilegrad.planners.stages.stages import Stages
from tilegrad.schedule import Free, Move, Run, Schedule
from tilegrad.schedule.whole import roots_of, whole_schedule
from tilegrad.sim.machine import PRESETS
from tilegrad.sim.memory import Alive
from tilegrad.sim.offsets import Lifetime
from tilegrad.sim.predict import measure_memory
from training_graphs import chain_graph, largest_working_set, node_times, some, training_graphs

UNIT = 1 << 16  # bytes: worth a copy
QUICK = Effort(work=50_000, nodes=0)


def every_plan(graph: Graph, share: float) -> Iterator[Schedule]:
    """Budgets lie between what a planner can reach (0) and what plain execution needs (1)."""
    seconds, machine, stages = node_times(graph), PRESETS["v100"], Stages(make_problem(graph, node_times(graph)))
    high = measure_memory(plan_keep(graph)).peak_bytes

    def between(low: int) -> int:
        return int(low + share * (high - low))

    yield plan_keep(graph)
    yield plan_sqrt(graph, seconds)
    found = [
        plan_segments(graph, seconds, between(best_segments(stages, 0, 10_000).peak), work=10_000),
        plan_recompute(graph, seconds, between(smallest_peak(stages).peak), QUICK),
        plan_offload(graph, seconds, machine, between(least_by_copies(graph)[0])),
    ]
    for schedule in found:
        assert schedule is not None
        yield schedule
    both = plan_offload(graph, seconds, machine, largest_working_set(graph), found[1])
    if both is not None:
        yield both


@some(80)
@given(training_graphs(unit=UNIT), st.floats(0, 1))
def test_every_planners_schedules_against_the_naive_simulator(graph: Graph, share: float) -> None:
    player = Player(graph)
    for schedule in every_plan(graph, share):
        memory, played = measure_memory(schedule), player.play(schedule)
        assert memory.peak_bytes == played.peak_bytes, schedule.mode
        assert memory.host_peak_bytes == played.host_peak_bytes, schedule.mode


@some(60)
@given(training_graphs(unit=UNIT), st.floats(0, 1))
def test_lifetimes_and_what_is_alive_add_up(graph: Graph, share: float) -> None:
    for schedule in every_plan(graph, share):
        memory = measure_memory(schedule)
        assert memory.peak_bytes == max((*memory.device, memory.resident_bytes))
        assert sum(item.bytes for item in memory.alive) <= memory.peak_bytes - memory.resident_bytes
        for at, step in enumerate(schedule.steps):
            alive = sum(life.bytes for life in memory.lifetimes if life.start <= at < life.stop)
            assert memory.resident_bytes + alive == memory.device[at] - (
                roots_of(schedule.graph).bytes[step.value] if isinstance(step, Free) else 0
            )


def test_a_chain_by_hand() -> None:
    """x is 1 byte. While b1 runs: v0, v1 and g0; while b0 runs: v0 and g0."""
    schedule = plan_keep(chain_graph([10, 100]))
    memory = measure_memory(schedule)
    assert schedule.steps == (Run("f0"), Run("f1"), Run("b1"), Free("v1"), Run("b0"), Free("v0"), Free("g0"))
    assert memory.device == (11, 111, 121, 121, 21, 21, 11)
    assert (memory.peak_bytes, memory.peak_step, memory.resident_bytes) == (121, 2, 1)
    assert memory.alive == (Alive("v1", 100, "any 'f1'"), Alive("v0", 10, "any 'f0'"), Alive("g0", 10, "any 'b1'"))
    assert memory.lifetimes == (
        Lifetime("v1", 100, 1, 3),
        Lifetime("v0", 10, 0, 5),
        Lifetime("g0", 10, 2, 6),
    )


def test_a_copy_on_the_host_is_given_up_when_it_is_fetched() -> None:
    graph = chain_graph([10, 100])
    steps = (
        Run("f0"), Run("f1"), Move("v0", "host"), Free("v0"), Move("v0", "device"), Run("b1"), Free("v1"),
        Move("v0", "host"), Free("v0"), Move("v0", "device"), Run("b0"), Free("v0"), Free("g0"),
    )  # fmt: skip
    memory = measure_memory(whole_schedule(graph, "hand", steps))
    assert memory.host == (0, 0, 10, 10, 10, 0, 0, 10, 10, 10, 0, 0, 0)
    assert memory.device == (11, 111, 111, 111, 111, 121, 121, 21, 21, 21, 21, 21, 11)
    assert memory.host_peak_bytes == 10


def test_what_is_handed_over_is_there_twice_while_it_is_made_again() -> None:
    graph = chain_graph([10, 100], handed=True)
    steps = (Run("f0"), Run("f1"), Run("f1"), Run("b1"), Run("b0"), Free("v0"), Free("g0"))
    memory = measure_memory(whole_schedule(graph, "hand", steps))
    assert memory.device == (11, 111, 211, 121, 121, 121, 111)


@pytest.mark.parametrize("handed", [False, True])
def test_the_last_value_stays_where_it_is_handed_over(handed: bool) -> None:
    memory = measure_memory(plan_keep(chain_graph([10, 100], handed=handed)))
    assert memory.device[4] == (121 if handed else 21)
