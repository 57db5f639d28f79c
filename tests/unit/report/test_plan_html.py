"""A planning as a page: its candidates, and its plans as profiles with every step, byte and address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilegrad.analysis.simulated import RESIDENT, plan_profile
from tilegrad.ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from tilegrad.planners import Candidate, Effort, Planning, Problem, TrainingStep, plan_step
from tilegrad.profile import BlockKind, Profile, check_profile
from tilegrad.report.html import format_page
from tilegrad.report.html_data import drawn_bytes, drawn_seconds, memory_curve
from tilegrad.report.plan_html import plan_page, save_plan_html
from tilegrad.schedule import Move, Run, Schedule, ScheduleStep
from tilegrad.sim.machine import find_machine
from tilegrad.sim.memory import Alive, Memory

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\u2029\u202e&lt;{data}%s\\u003c'\"\x00\ud800"
Rename = Callable[[str], str]


def chain(count: int = 12, name: Rename = str, title: str = "chain") -> Graph:
    """Nodes in a row, each of whose outputs backward reads."""
    values, nodes = [Value(name("x"), TensorType((2**18,)), Kind.INPUT)], list[Node]()
    for i in range(count):
        values.append(Value(name(f"v{i}"), TensorType((2**18 * (1 + i % 3),))))
        reads, makes = (Input("input", values[i].name),), (values[-1].name,)
        nodes.append(Node(name(f"f{i}"), "relu", reads, makes, time_s=1e-3 * (1 + i % 4)))
    for i in reversed(range(count)):
        inputs = [Input("result", name(f"v{i}"), Role.RETAINED_OUTPUT)]
        inputs += [Input("grad", name(f"g{i}"), Role.GRADIENT)] if i < count - 1 else []
        values.append(Value(name(f"g{i - 1}"), TensorType((2**18,)), Kind.GRADIENT))
        makes = (values[-1].name,)
        nodes.append(Node(name(f"b{i}"), "back", tuple(inputs), makes, phase=Phase.BACKWARD, time_s=2e-3))
    graph = Graph(tuple(values), tuple(nodes), (name("g-1"),), (), title)
    check_graph(graph)
    return graph


def plan_chain(share: float = 0.6, planner: str = "auto", **options: Any) -> Planning:
    steps = TrainingStep(chain(**options), find_machine("v100"), Effort(work=50_000, nodes=0))
    return plan_step(Problem(int(steps.keep.peak_bytes * share), steps), planner=planner)


def tiled(planning: Planning, memory: Memory | None) -> Planning:
    """As if tiles had been chosen: no times, no addresses, with or without bytes tile by tile."""
    plain = planning.plain
    schedule = Schedule(planning.graph, "stream")
    chosen = Candidate("tile", "stream, 2 along h", schedule, plain.peak_bytes // 2, plain.time_s * 1.5, memory=memory)
    return replace(planning, candidates=(plain, chosen), chosen=chosen)


TILES = Memory((5, 9, 7), (0, 1, 0), 9, 1, 4, 1, (Alive("(the tile itself)", 3, "tile (1,)"),), (), ("a", "b"))


@pytest.fixture(scope="module")
def offloaded() -> Planning:
    return plan_chain(planner="offload")


@pytest.fixture(scope="module")
def recomputed() -> Planning:
    return plan_chain(planner="recompute")


both = pytest.mark.parametrize("which", ["offloaded", "recomputed"])


def stream_of(step: ScheduleStep) -> str | None:
    """Where a step takes time, if it does."""
    if isinstance(step, Run):
        return "compute"
    return {"host": "to host", "device": "from host"}[step.store] if isinstance(step, Move) else None


def drawn(planning: Planning) -> Profile:
    found = plan_page(planning).profiles[0].profile
    check_profile(found)
    return found


# -- the page ----------------------------------------------------------------------------------------------------------


def test_candidates_are_all_there() -> None:
    planning = plan_chain(0.7)
    page = plan_page(planning)
    assert page.title == "chain" and page.budget_bytes == planning.budget and "on v100 in a budget of" in page.summary
    table, base = page.tables[0], planning.plain.time_s
    found = {(row[1], row[2], row[4], row[5], row[6]) for row in table.rows}
    assert found == {(c.detail, c.peak_bytes, c.time_s, c.time_s / base - 1, c.host_bytes) for c in planning.candidates}
    assert len(table.rows) == len(planning.candidates) > 3
    (marked,) = table.marked
    assert table.rows[marked][1] == planning.chosen.detail and table.mark == "chosen"
    assert [row[3] == "yes" for row in table.rows] == sorted(
        (r[2] <= planning.budget for r in table.rows), reverse=True
    )  # type: ignore[operator]
    assert [row[0] for row in table.rows].count("keep (plain)") == 1


def test_facts(offloaded: Planning) -> None:
    facts = {fact.term: fact for fact in plan_page(offloaded).facts}
    assert set(facts) == {
        "machine", "budget", "planner", "predicted peak", "predicted time", "to and from host", "addresses",
    }  # fmt: skip
    assert facts["planner"].value == "offload" and facts["budget"].more == f"{offloaded.budget:,} bytes"
    assert facts["to and from host"].value.endswith("MiB") and "against plain" in facts["predicted time"].more


def test_the_chosen_plan_and_plain_are_drawn(offloaded: Planning) -> None:
    assert [d.label for d in plan_page(offloaded).profiles] == ["chosen plan", "plain"]
    plain = plan_chain(2.0)
    assert plain.chosen is plain.plain and [d.label for d in plan_page(plain).profiles] == ["chosen plan"]


@pytest.mark.parametrize("time_s", [0.0, float("inf"), float("nan")])
def test_times_that_cannot_be(offloaded: Planning, time_s: float) -> None:
    page = plan_page(replace(offloaded, plain=replace(offloaded.plain, time_s=time_s)))
    assert len(page.profiles) == (2 if time_s == 0 else 1)
    assert format_page(page)  # of JSON, which knows no such numbers


def test_hostile_names_and_machines(tmp_path: Path) -> None:
    planning = plan_chain(planner="offload", name=lambda s: s + HOSTILE, title=HOSTILE)
    machine = replace(planning.machine)
    object.__setattr__(machine, "name", "m" + HOSTILE)  # no machine may be called that
    save_plan_html(replace(planning, machine=machine), tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert text.count("<script") == 2 and "\\u003cscript" in text


# -- plans as profiles -------------------------------------------------------------------------------------------------


@both
def test_memory_is_that_of_the_plan(which: str, request: pytest.FixtureRequest) -> None:
    planning = request.getfixturevalue(which)
    profile, memory, time = drawn(planning), planning.chosen.memory, planning.chosen.time
    assert memory is not None and time is not None and profile.clock == time.starts
    device, host = memory_curve(profile, "device"), memory_curve(profile, "host")
    for at, step in enumerate(planning.chosen.schedule.steps):
        # A value counts while it is freed, though it lives only up to there; that takes no time.
        assert (
            device[at] == memory.device[at]
            if stream_of(step) in ("compute", "from host")
            else device[at] <= memory.device[at]
        )
    assert max(device) == memory.peak_bytes == planning.chosen.peak_bytes
    assert device.index(max(device)) == memory.peak_step and host == list(memory.host)
    alive = sorted(b.bytes for b in profile.blocks if b.device == "device" and b.start <= memory.peak_step < b.stop)
    assert alive == sorted([memory.resident_bytes, *(item.bytes for item in memory.alive)])
    assert profile.devices[0] == "device"


@both
def test_addresses_are_those_of_the_plan(which: str, request: pytest.FixtureRequest) -> None:
    planning = request.getfixturevalue(which)
    profile, memory, layout = drawn(planning), planning.chosen.memory, planning.chosen.layout
    base = memory.resident_bytes
    first, *lives = [b for b in profile.blocks if b.device == "device"]
    assert (first.name, first.bytes, first.address, first.start, first.stop) == (RESIDENT, base, 0, 0, profile.ticks)
    found = [(b.name, b.bytes, b.start, b.stop, b.address) for b in lives]
    assert found == [
        (life.name, life.bytes, life.start, life.stop, base + offset)
        for life, offset in zip(memory.lifetimes, layout.offsets, strict=True)
    ]
    kinds = {b.name: b.kind for b in lives}
    assert kinds["v3"] is BlockKind.ACTIVATION and kinds["g3"] is BlockKind.GRADIENT
    plain = plan_page(planning).profiles[1].profile
    assert all(block.address is None for block in plain.blocks)


@both
def test_operators_are_the_steps_of_the_plan(which: str, request: pytest.FixtureRequest) -> None:
    planning = request.getfixturevalue(which)
    chosen, profile = planning.chosen, drawn(planning)
    steps, time = chosen.schedule.steps, chosen.time
    by_step = {int(op.id): op for op in profile.operators}
    ran: set[str] = set()
    for at, step in enumerate(steps):
        op = by_step.pop(at, None)
        assert (op is not None) == (stream_of(step) is not None)
        if op is None:
            continue
        assert op.stream == stream_of(step) and op.device is not None and op.device.start_s >= time.starts[at]
        if isinstance(step, Run):
            node = chosen.schedule.graph.node[step.island]
            assert (op.name, op.type, op.phase) == (node.name, node.op, node.phase)
            assert op.device.total_s == pytest.approx(node.time_s)
            assert op.attrs.get("again", False) == (step.island in ran)
            ran.add(step.island)
        else:
            assert op.name == step.value
    assert not by_step
    compute = sum(op.device.total_s for op in profile.operators if op.stream == "compute" and op.device)
    assert compute == pytest.approx(time.compute_s)
    assert max(op.device.end_s for op in profile.operators if op.device) == pytest.approx(time.total_s)


@both
def test_makers_tell_what_was_made_again_and_what_came_back(which: str, request: pytest.FixtureRequest) -> None:
    planning = request.getfixturevalue(which)
    profile, steps = drawn(planning), planning.chosen.schedule.steps
    for block in profile.blocks:
        if block.name == RESIDENT:
            continue
        assert block.maker is not None
        maker = profile.operators[block.maker]
        assert int(maker.id) == block.start
        assert bool(maker.attrs.get("fetched")) == (stream_of(steps[block.start]) == "from host")
    key = {"offloaded": "fetched", "recomputed": "again"}[which]
    assert any(op.attrs.get(key) for op in profile.operators)
    streams = [op for op in profile.operators if op.stream == "to host"]
    ends = [op.device.end_s for op in streams if op.device]
    assert all(b.device.start_s >= e for b, e in zip(streams[1:], ends, strict=False) if b.device)  # one after another


def test_without_times_the_clock_counts_steps(offloaded: Planning) -> None:
    plan = replace(offloaded.chosen, time=None)
    profile = plan_profile(plan, offloaded.machine)
    check_profile(profile)
    assert profile.clock == tuple(map(float, range(len(plan.schedule.steps))))
    assert not plan_page(replace(offloaded, chosen=plan)).profiles[0].timed


def test_tiles_without_memory(offloaded: Planning) -> None:
    page = plan_page(tiled(offloaded, None))
    assert [d.label for d in page.profiles] == ["plain"] and "only peak and time are predicted" in page.notes[0]


def test_tiles_with_memory(offloaded: Planning) -> None:
    page = plan_page(tiled(offloaded, TILES))
    profile = page.profiles[0].profile
    check_profile(profile)
    assert not page.profiles[0].timed and len(page.profiles) == 1 and "no address map" in page.notes[0]
    assert memory_curve(profile, "device") == [5, 9, 7]
    assert [op.name for op in profile.operators] == ["a", "b", "step 3"]
    alive = [(b.name, b.bytes) for b in profile.blocks if b.start <= 1 < b.stop]
    assert alive == [(RESIDENT, 4), ("(the tile itself), tile (1,)", 3), ("b", 2)]


def test_nothing_is_known(offloaded: Planning) -> None:
    bare = replace(offloaded.plain, memory=None, time=None)
    page = plan_page(replace(offloaded, plain=bare, chosen=bare, candidates=(bare,)))
    assert not page.profiles and len(page.tables[0].rows) == 1


@both
def test_the_charts_say_what_the_figures_say(which: str, request: pytest.FixtureRequest) -> None:
    planning: Planning = request.getfixturevalue(which)
    profile = plan_profile(planning.chosen, planning.machine)
    assert drawn_bytes(profile, "device") == planning.chosen.peak_bytes
    assert drawn_seconds(profile) == pytest.approx(planning.chosen.time_s)
