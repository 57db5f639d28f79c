"""Small profiles whose every pixel is known, and a page of every part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilegrad.ir import Phase
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span, check_profile
from tilegrad.report.page import Column, Drawn, Fact, Page, Table

MIB = 2**20

OPERATORS = (
    Operator("0", "conv a", "conv2d", Span(0.0, 1e-3), "main", Span(1e-3, 3e-3), "7", 4 * 10**9, 2 * 10**8,
             ((1, 3, 8, 8),), ((1, 4, 8, 8),), module="down.0", phase=Phase.FORWARD, kernel="winograd"),
    Operator("1", "relu b", "relu", device=Span(3e-3, 4e-3), stream="7", module="down.1", phase=Phase.FORWARD),
    Operator("2", "grad c", "conv2d_backward", device=Span(4e-3, 8e-3), stream="7", phase=Phase.BACKWARD),
    Operator("3", "copy d", "copy", device=Span(5e-3, 6e-3), stream="9"),
)  # fmt: skip
BLOCKS = (
    Block("w", 64 * MIB, 0, 4, BlockKind.WEIGHT, 0, owned=False),
    Block("x", 128 * MIB, 0, 3, BlockKind.ACTIVATION, 64 * MIB, maker=0),
    Block("y", 256 * MIB, 1, 4, BlockKind.ACTIVATION, 192 * MIB, maker=1),
    Block("g", 32 * MIB, 2, 4, BlockKind.GRADIENT, 448 * MIB, maker=2),
)
CLOCK = (0.0, 3e-3, 4e-3, 6e-3)
PROFILE = Profile("small", "recorded", OPERATORS, BLOCKS, CLOCK)
PLANS = Table(
    "Plans",
    (Column("name"), Column("count", "count"), Column("size", "bytes"), Column("time", "seconds"),
     Column("share", "share"), Column("GB/s", "rate")),
    (("b", 1234567, 3 * 2**29, 0.25, 0.125, 123.456), ("a", 2, 2 * MIB, 12.5e-6, 0.5, 99999.5),
     ("c", None, 0, 0.0025, None, None)),
    frozenset({1}), "What was tried.", "chosen",
)  # fmt: skip


def small_page(**changes: Any) -> Page:
    check_profile(PROFILE)
    page = Page(
        "small network", "A summary.", (Fact("peak", "480MiB", "96% of 500MiB"),), ("A note.",), (PLANS,),
        (Drawn("whole", PROFILE),), 500 * MIB,
    )  # fmt: skip
    return replace(page, **changes)


def profile_page(**changes: Any) -> Page:
    profile = replace(PROFILE, **changes)
    check_profile(profile)
    return small_page(profiles=(Drawn("whole", profile),))
