"""Schedules of whole nodes: what `list_steps` makes is legal, and `check_schedule` names the rule that is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from step_player import Player
from tilegrad.errors import InternalError
from tilegrad.ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from tilegrad.planners import offload
from tilegrad.planners.stages.problem import make_problem
from tilegrad.planners.stages.stages import Solution, Stages
from tilegrad.schedule import Free, Move, Run, Schedule, ScheduleStep, check_schedule
from tilegrad.schedule.whole import Roots, list_steps, roots_of, whole_schedule
from training_graphs import chain_graph, some, training_graphs


def hand(graph: Graph, steps: Sequence[ScheduleStep]) -> Schedule:
    return whole_schedule(graph, "hand", steps)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Of random graphs: any values forgotten after any stage, any moved away whenever they are idle."""
    problem = make_problem(graph := draw(training_graphs(most=6)), {node.name: 1.0 for node in graph.nodes})
    stages, every = Stages(problem), (1 << len(problem.values)) - 1
    keep = [draw(st.integers(0, every)) | stages.handed for _ in problem.backward]
    runs = problem.runs(Solution(stages, keep).again)
    base = whole_schedule(graph, "random", list_steps(graph, runs))
    with mock.patch.object(offload, "SMALL", 0):
        gaps, _ = offload._idle(roots_of(base.graph), runs)
    moved = []
    for gap in gaps:
        if draw(st.booleans()):
            gone = draw(st.integers(gap.use + 1, gap.again - 1))
            moved.append(replace(gap, gone=gone, back=draw(st.integers(gone + 1, gap.again))))
    return offload._schedule(graph, runs, moved, base)


@some(60)
@given(schedules())
def test_random_schedules_are_legal_and_none_of_their_steps_can_go(schedule: Schedule) -> None:
    check_schedule(schedule)
    Player(schedule.graph).play(schedule)
    for at in range(len(schedule.steps)):
        with pytest.raises(InternalError, match="schedule breaks rule S"):
            check_schedule(hand(schedule.graph, schedule.steps[:at] + schedule.steps[at + 1 :]))


@some(150)
@given(
    schedules(),
    st.lists(st.tuples(st.sampled_from(["drop", "double", "swap", "move"]), st.integers(0, 999)), max_size=3),
)
def test_what_passes_the_check_computes_the_right_thing(schedule: Schedule, edits: list[tuple[str, int]]) -> None:
    steps = list(schedule.steps)
    for kind, number in edits:
        at, other = number % len(steps), number * 7919 % len(steps)
        if kind == "drop":
            steps.pop(at)
        elif kind == "double":
            steps.insert(other, steps[at])
        elif kind == "swap":
            steps[at], steps[other] = steps[other], steps[at]
        else:
            steps.insert(other, steps.pop(at))
    try:
        check_schedule(changed := hand(schedule.graph, steps))
    except InternalError:
        return
    Player(schedule.graph).play(changed)  # raises where a node finds anything but what it should


@some(60)
@given(schedules(), st.data())
def test_a_backward_node_runs_once(schedule: Schedule, data: st.DataObject) -> None:
    graph, steps = schedule.graph, list(schedule.steps)
    backward = [s for s in steps if isinstance(s, Run) and graph.node[s.island].phase is Phase.BACKWARD]
    step = data.draw(st.sampled_from(backward))
    steps.insert(data.draw(st.integers(steps.index(step) + 1, len(steps))), step)
    with pytest.raises(InternalError, match=r"schedule breaks rule S[1256]"):
        check_schedule(hand(graph, steps))


def summed() -> Graph:
    """v is read by two nodes; the second gradient of v is added to the first, in place; w lives in v's memory."""
    kinds = dict.fromkeys(("x",), Kind.INPUT) | dict.fromkeys(("g1", "g2"), Kind.GRADIENT)
    values = [Value(n, TensorType((4,)), kinds.get(n, Kind.ACTIVATION)) for n in ("x", "v", "w", "y", "z", "g1", "g2")]
    values[2], values[6] = replace(values[2], alias="v"), replace(values[6], alias="g1")
    parts = [
        ("v", {"x": Role.DATA}, "v"),
        ("w", {"v": Role.DATA}, "w"),
        ("y", {"w": Role.DATA}, "y"),
        ("z", {"v": Role.DATA, "y": Role.DATA}, "z"),
        ("zb", {"z": Role.RETAINED_OUTPUT}, "g1"),
        ("yb", {"w": Role.RETAINED_INPUT, "g1": Role.SUM}, "g2"),
        ("vb", {"g2": Role.GRADIENT}, ""),
    ]
    nodes = [
        Node(
            name, "any", tuple(Input(f"in.{v}", v, role) for v, role in reads.items()), (out,) if out else (),
            phase=Phase.BACKWARD if name.endswith("b") else Phase.FORWARD,
        )
        for name, reads, out in parts
    ]  # fmt: skip
    graph = Graph(tuple(values), tuple(nodes), ("z",))
    check_graph(graph)
    return graph


LEGAL = "run v, run w, run y, run z, free y, run zb, run yb, free v, run vb, free g1"
BROKEN = {
    "read too late": ("S1", "run v, run w, free v, run y"),
    "free what is not there": ("S1", "run v, run w, free y"),
    "copy what is not there": ("S1", "run v, offload y"),
    "another order": ("S2", "run v, run y, run w, run z, free y, run zb, run yb, free v, run vb, free g1"),
    "not all": ("S2", "run v, run w, run y, run z, free y, run zb, run yb, free v, free g1"),
    "backward twice": ("S2", LEGAL.replace("run vb", "run vb, run vb")),
    "a parameter goes": ("S3", "run v, free x"),
    "an input moves": ("S3", "run v, offload x"),
    "an alias goes": ("S3", "run v, run w, free w"),
    "fetched from nowhere": ("S5", "run v, free v, fetch v"),
    "fetched twice": ("S5", "run v, offload v, free v, fetch v, free v, fetch v"),
    "fetched while there": ("S5", "run v, offload v, fetch v"),
    "copied before it changed": (
        "S5",
        "run v, run w, run y, run z, free y, run zb, offload g1, run yb, free g1, fetch g1, run vb",
    ),
    "the result goes": ("S4", "run v, run w, run y, run z, free z"),
    "the result moves": ("S4", "run v, run w, run y, run z, offload z"),
    "made while there": ("S6", "run v, run w, run v"),
    "never freed": ("S6", "run v, run w, run y, run z, run zb, run yb, free v, run vb, free g1"),
}


STEPS: dict[str, Callable[[str], ScheduleStep]] = {
    "run": Run,
    "free": Free,
    "offload": lambda value: Move(value, "host"),
    "fetch": lambda value: Move(value, "device"),
}


def read(text: str) -> list[ScheduleStep]:
    return [STEPS[kind](name) for kind, name in (part.split() for part in text.split(", "))]


def test_a_legal_list_by_hand_is_what_is_listed() -> None:
    graph = summed()
    steps = read(LEGAL)
    check_schedule(hand(graph, steps))
    assert list_steps(graph, [s.island for s in steps if isinstance(s, Run)]) == steps


@pytest.mark.parametrize("case", BROKEN)
def test_each_rule_is_checked(case: str) -> None:
    rule, text = BROKEN[case]
    with pytest.raises(InternalError, match=f"schedule breaks rule {rule}"):
        check_schedule(hand(summed(), read(text)))


def test_the_message_names_the_step() -> None:
    with pytest.raises(InternalError) as caught:
        check_schedule(hand(summed(), read("run v, run w, free v, run y")))
    assert str(caught.value) == "schedule breaks rule S1: 'y' reads 'v', which is not on the device\n  at   step 3"


def test_memory_of_aliases_and_what_stays() -> None:
    memory = Roots(summed())
    assert (memory.root["w"], memory.root["g2"]) == ("v", "g1")
    assert memory.resident == {"x"} and memory.resident_bytes == 16 and memory.kept == {"z"}
    assert (memory.writes("w"), memory.lived_in("w"), memory.reads("yb")) == ([], ["v"], ["v", "g1"])


def test_what_is_made_again_is_freed_in_between() -> None:
    graph = chain_graph([1, 1])
    steps = list_steps(graph, ["f0", "f1", "b1", "f0", "b0"])
    assert steps == read("run f0, run f1, free v0, run b1, free v1, run f0, run b0, free v0, free g0")


def test_moves_come_before_their_run() -> None:
    graph = chain_graph([1, 1])
    moves: dict[int, list[Free | Move]] = {1: [Move("v0", "host")], 2: [Free("v0"), Move("v0", "device")]}
    steps = list_steps(graph, ["f0", "f1", "b1", "b0"], moves)
    check_schedule(hand(graph, steps))
    assert steps[:5] == read("run f0, offload v0, run f1, free v0, fetch v0")
