"""What a page is made of: whole numbers in columns, texts once, times from zero, addresses squeezed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.profile import Block, BlockKind, Operator, Profile, Span
from tilegrad.report.html_data import memory_curve, page_data, squeeze
from tilegrad.report.html_text import clean_text
from tilegrad.report.page import Column, Drawn, Page, Table

OPERATORS = (
    Operator("0", "a", "conv", Span(10.0, 10.001), "main", Span(10.001, 10.003, 10.002), "7", flops=5, module="m"),
    Operator("1", "b", "conv", None, "", Span(10.003, 10.004), "7"),
    Operator("2", "never timed", "relu"),
)
BLOCKS = (
    Block("x", 8, 0, 2, BlockKind.INPUT, 100, maker=0, owned=False),
    Block("y", 4, 1, 3, BlockKind.ACTIVATION, 108, maker=1),
    Block("z", 2, 1, 2, device="gpu"),
)
PROFILE = Profile("p", "recorded", OPERATORS, BLOCKS, (10.0, 10.002, 10.004))


def data_of(profile: Profile, *others: Profile, timed: bool = True) -> dict[str, Any]:
    drawn = tuple(Drawn(f"no. {i}", p, timed) for i, p in enumerate((profile, *others)))
    found = page_data(Page("t", profiles=drawn))
    assert json.loads(json.dumps(found, allow_nan=False))["title"] == "t"
    return found


def times(found: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Starts and lengths of spans, and the clock, added up."""
    profile = found["profile"]
    return list(accumulate(profile["spans"]["start"])), profile["spans"]["length"], list(accumulate(profile["clock"]))


# -- times -------------------------------------------------------------------------------------------------------------


def test_times_count_from_zero_in_nanoseconds() -> None:
    found = data_of(PROFILE)
    starts, lengths, clock = times(found)
    assert (starts, lengths) == ([0, 1_000_000, 3_000_000], [1_000_000, 2_000_000, 1_000_000])
    assert clock == [0, 2_000_000, 4_000_000] and found["profile"]["end"] == 4_000_000
    assert found["profile"]["unit_s"] == 1e-9 and found["profile"]["spans"]["wait"] == [0, 1_000_000, 0]
    assert list(accumulate(found["profile"]["spans"]["op"])) == [0, 0, 1]
    assert found["profile"]["lanes"] == [["main", "host"], ["7", "device"]]


def test_two_clocks_have_two_zeros() -> None:
    later = tuple(
        replace(op, device=op.device and Span(op.device.start_s + 90, op.device.end_s + 90)) for op in OPERATORS
    )
    found = data_of(replace(PROFILE, operators=later, one_clock=False, clock=(100.001, 100.002, 100.004)))
    starts, _, clock = times(found)
    assert starts == [0, 0, 2_000_000] and clock == [0, 1_000_000, 3_000_000]
    assert found["profile"]["clock_side"] == "device" and not found["profile"]["one_clock"]
    assert data_of(replace(PROFILE, operators=later, one_clock=False))["profile"]["clock_side"] == "host"


def test_one_side_alone_has_one_clock() -> None:
    bare = tuple(replace(op, host=None) for op in OPERATORS)
    assert data_of(replace(PROFILE, operators=bare, one_clock=False))["profile"]["one_clock"]


@pytest.mark.parametrize("length", [1e-12, 3e-7, 1.0, 1e9])
def test_short_and_long_profiles_keep_their_figures(length: float) -> None:
    operator = Operator("0", "a", "a", device=Span(0.0, length))
    found = data_of(Profile("p", "f", (operator,)))["profile"]
    assert found["end"] * found["unit_s"] == pytest.approx(length, rel=1e-5) and found["end"] >= 1000


def test_what_takes_no_time_is_drawn_in_steps() -> None:
    found = data_of(replace(PROFILE, operators=(OPERATORS[2],), blocks=BLOCKS[2:], clock=(3.0, 3.0, 3.0)))["profile"]
    assert not found["timed"] and list(accumulate(found["clock"])) == [0, 1, 2] and found["end"] == 3


def test_steps() -> None:
    found = data_of(Profile("p", "f", (), (Block("x", 5, 0, 2),), (0.0, 1.0)), timed=False)["profile"]
    assert (found["timed"], found["unit_s"], found["end"]) == (False, 1.0, 2)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_blocks() -> None:
    found = data_of(PROFILE)
    rows, texts, devices = found["profile"]["blocks"], found["texts"], found["profile"]["devices"]
    assert [texts[i] for i in rows["name"]] == ["x", "y", "z"] and [devices[i] for i in rows["device"]] == [
        "",
        "",
        "gpu",
    ]
    assert [found["classes"][k] for k in rows["class"]] == ["input", "activation", "unknown"]
    assert (rows["start"], rows["stop"], rows["bytes"]) == ([0, 1, 1], [2, 3, 2], [8, 4, 2])
    assert (rows["at"], rows["maker"], rows["outside"]) == ([0, 8, -1], [0, 1, -1], [0])
    assert found["profile"]["arenas"] == [[[0, 12, "0x64"]], []]


def test_the_class_of_a_block_may_come_from_its_maker() -> None:
    makers = (replace(OPERATORS[0], attrs={"again": True}), replace(OPERATORS[1], attrs={"fetched": True}))
    found = data_of(replace(PROFILE, operators=(*makers, OPERATORS[2])))
    classes = [found["classes"][k] for k in found["profile"]["blocks"]["class"]]
    assert classes == ["made again", "back from the host", "unknown"]
    assert "runs again" in found["texts"]


def test_other_profiles_are_curves() -> None:
    found = data_of(PROFILE, PROFILE)["others"]
    assert found == [
        {
            "label": "no. 1",
            "end": 4_000_000,
            "curves": {
                "": {"start": [0, 2_000_000, 4_000_000], "bytes": [8, 12, 4]},
                "gpu": {"start": [0, 2_000_000, 4_000_000], "bytes": [0, 2, 0]},
            },
        }
    ]
    assert memory_curve(PROFILE, "") == [8, 12, 4]


def test_seconds_and_steps_do_not_mix() -> None:
    page = Page("t", profiles=(Drawn("a", PROFILE), Drawn("b", PROFILE, timed=False)))
    found = page_data(page)
    assert not found["others"] and "'b' is not drawn" in found["notes"][0]


def test_far_addresses_are_squeezed() -> None:
    blocks = [
        Block("a", 100, 0, 1, address=0),
        Block("b", 50, 0, 1, address=2**62),
        Block("c", 50, 0, 1, address=2**62 + 60),
    ]
    found = squeeze(blocks)
    assert found.bases == [0, 2**62] and found.sizes == [100, 110]
    assert [found.place(b) for b in blocks] == [0, 104, 164]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40)), max_size=30))
def test_squeezing_keeps_order_and_neighbours(places: list[tuple[int, int]]) -> None:
    blocks = [Block(str(i), size, 0, 1, address=at) for i, (at, size) in enumerate(places)]
    found, used = squeeze(blocks), [b for b in blocks if b.bytes]
    drawn = {b.name: found.place(b) for b in used}
    for a in used:
        for b in used:
            assert a.address is not None and b.address is not None
            if a.address <= b.address:
                assert drawn[a.name] <= drawn[b.name]
            if a.address <= b.address <= a.address + a.bytes:
                assert drawn[b.name] - drawn[a.name] == b.address - a.address
    total = sum(b.bytes for b in used)
    assert all(0 <= at <= 3 * total + len(used) for at in drawn.values())


# -- texts and figures -------------------------------------------------------------------------------------------------


def test_every_text_is_there_once() -> None:
    found = data_of(PROFILE)
    assert len(found["texts"]) == len(set(found["texts"]))
    assert [found["texts"][i] for i in found["profile"]["operators"]["type"]] == ["conv", "conv", "relu"]
    assert found["profile"]["operators"]["kernel"] is None and found["profile"]["operators"]["flops"] == [5, None, None]


def test_clean_text() -> None:
    assert clean_text("a\nb\x00c\u202ed\ud800e") == "a\ufffdb\ufffdc\ufffdd\ufffde"
    assert clean_text("x" * 501) == "x" * 500 + "… (501 characters)" and clean_text("x" * 500) == "x" * 500
    assert clean_text("漢字 é 😀 <b>&") == "漢字 é 😀 <b>&"


def test_cells_that_json_cannot_say() -> None:
    table = Table(
        "t", (Column("a", "seconds"),), ((float("inf"),), (float("nan"),), (1.5,), (None,), (True,), ("x\n",))
    )
    assert [row[0] for row in page_data(Page("t", tables=(table,)))["tables"][0]["rows"]] == [
        None, None, 1.5, None, True, "x\ufffd",
    ]  # fmt: skip
