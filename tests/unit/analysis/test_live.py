"""Bytes alive over time, the peak, and what it is made of."""

from __future__ import annotations

from dataclasses import replace

from tilegrad.analysis import analyze
from tilegrad.analysis.live import alive_at, find_live, find_memory
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span

BLOCKS = (
    Block("a", 10, 0, 2, BlockKind.ACTIVATION, device="d", maker=0),
    Block("b", 20, 1, 3, BlockKind.ACTIVATION, device="d"),
    Block("scratch", 5, 1, 2, BlockKind.WORKSPACE, device="d"),
    Block("weight", 100, 0, 4, BlockKind.WEIGHT, device="d", owned=False),
    Block("input", 7, 0, 1, BlockKind.INPUT, device="d", owned=False),
    Block("empty", 0, 1, 3, device="d"),
    Block("gone at once", 50, 2, 2, device="d"),
    Block("elsewhere", 1000, 0, 4, device="other"),
)


def profile(ticks: int = 4) -> Profile:
    operators = tuple(Operator(str(at), f"op {at}", "t", Span(at, at + 1)) for at in range(4))
    return Profile("p", "recorded", operators, BLOCKS, tuple(map(float, range(ticks))))


def test_curves_and_peaks() -> None:
    memory = find_memory(profile(), "d")
    assert memory.owned.curve == (10, 35, 20, 0)
    assert (memory.owned.peak_bytes, memory.owned.ticks) == (35, (1,))
    assert memory.everything.curve == (117, 135, 120, 100)
    assert memory.without_workspace.curve == (10, 30, 20, 0)
    assert memory.rounded_512 == 3 * 512


def test_sums() -> None:
    memory = find_memory(profile(), "d")
    assert (memory.weight_bytes, memory.input_bytes) == (100, 7)
    assert (memory.with_inputs_held, memory.total_bytes) == (35 + 7, 35 + 7 + 100)
    assert memory.kept_bytes == 10 + 20 + 50  # nothing freed, workspaces apart
    assert memory.workspace == {"blocks": 1, "total_bytes": 5, "max_bytes": 5, "max_blocks": ["scratch"]}


def test_alive_at_a_tick_the_largest_first() -> None:
    owned = [block for block in BLOCKS if block.owned and block.device == "d"]
    assert [block.name for block in alive_at(owned, 1)] == ["b", "a", "scratch"]
    assert alive_at(owned, 3) == []


def test_a_peak_that_is_reached_twice() -> None:
    blocks = (Block("a", 3, 0, 1), Block("b", 3, 2, 3))
    assert find_live(blocks, 3).ticks == (0, 2)
    assert find_live((), 3).ticks == ()
    assert find_live((), 0).curve == ()


def test_devices_are_told_apart_the_one_with_most_first() -> None:
    found = analyze(profile()).to_json()["memory"]
    assert list(found) == ["other", "d"]
    assert found["other"]["owned"]["peak_bytes"] == 1000


def test_the_peak_in_json() -> None:
    (peak,) = analyze(profile()).to_json()["memory"]["d"]["peaks"]
    assert (peak["tick"], peak["second"]) == (1, 1.0)
    assert [(row["name"], row["bytes"], row["kind"], row["maker"]) for row in peak["alive"]] == [
        ("b", 20, "activation", None),
        ("a", 10, "activation", "0"),
        ("scratch", 5, "workspace", None),
    ]


def test_ticks_that_are_not_operators_name_none() -> None:
    (peak,) = analyze(profile(ticks=5)).to_json()["memory"]["d"]["peaks"]
    assert (peak["operator"], peak["name"]) == (None, None)


def test_as_many_ticks_as_operators_do_not_make_them_the_same() -> None:
    """Four moments at which memory changed, between four operators: none of them is the operator that ran."""
    between = replace(profile(), clock=(0.5, 0.6, 2.5, 3.5))
    (peak,) = analyze(between).to_json()["memory"]["d"]["peaks"]
    assert (peak["tick"], peak["operator"]) == (1, None)
