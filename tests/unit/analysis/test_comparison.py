"""Two profiles, or two plans, side by side."""

from __future__ import annotations

import json

from tilegrad.analysis import Analysis, analyze
from tilegrad.analysis.comparison import Pair, compare_plans, compare_profiles
from tilegrad.profile import Block, Operator, Profile, Span


def analysis(name: str, seconds: dict[str, float], peak: int = 0, device: str = "gpu") -> Analysis:
    operators, now = [], 0.0
    for at, (kind, taken) in enumerate(seconds.items()):
        operators.append(Operator(str(at), kind, kind, Span(now, now + taken)))
        now += taken
    blocks = (Block("b", peak, 0, 1, device=device),) if peak else ()
    return analyze(Profile(name, "recorded", tuple(operators), blocks, (0.0,)))


def test_totals() -> None:
    found = compare_profiles(analysis("one", {"conv": 2, "relu": 1}, 100), analysis("two", {"conv": 1}, 50, "cuda"))
    totals = {pair.name: pair for pair in found.totals}
    assert totals["operators"] == Pair("operators", "count", 2, 1)
    assert (totals["host span"].before, totals["host span"].after, totals["host span"].ratio) == (3, 1, 1 / 3)
    assert totals["host busy"] == Pair("host busy", "share", 1, 1)
    assert totals["peak"] == Pair("peak", "bytes", 100, 50)  # one device each, whatever it is called
    assert "device span" not in totals


def test_the_largest_change_first() -> None:
    one, two = analysis("one", {"conv": 2, "relu": 1, "old": 0.25}), analysis("two", {"conv": 2, "relu": 4, "new": 0.5})
    found = compare_profiles(one, two)
    assert found.groups == (
        Pair("relu", "seconds", 1, 4),
        Pair("new", "seconds", None, 0.5),
        Pair("old", "seconds", 0.25, None),
        Pair("conv", "seconds", 2, 2),
    )
    assert [pair.ratio for pair in found.groups] == [4, None, None, 1]


def test_several_devices_are_compared_by_name() -> None:
    one = analysis("one", {"conv": 1}, 100, "gpu0")
    both = (Block("a", 30, 0, 1, device="gpu0"), Block("b", 20, 0, 1, device="gpu1"))
    two = analyze(Profile("two", "recorded", one.profile.operators, both, (0.0,)))
    peaks = [pair for pair in compare_profiles(one, two).totals if pair.unit == "bytes"]
    assert peaks == [Pair("peak gpu0", "bytes", 100, 30), Pair("peak gpu1", "bytes", None, 20)]


def test_profiles_of_nothing() -> None:
    nothing = analyze(Profile("nothing", "cuda memory snapshot", ()))
    found = compare_profiles(nothing, nothing)
    assert found.groups == ()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["kind"] == "comparison"


def plan(budget: int, peak: int, seconds: float, **candidates: tuple[float, bool]) -> dict[str, object]:
    every = [{"planner": name, "time_s": taken, "fits": fits} for name, (taken, fits) in candidates.items()]
    return {
        "budget_bytes": budget,
        "plain": {"peak_bytes": 9, "time_s": 1.0},
        "plan": {"peak_bytes": peak, "time_s": seconds},
        "candidates": every,
    }


def test_plans() -> None:
    one = plan(5, 4, 2.0, recompute=(2.0, True), keep=(1.0, False))
    two = plan(6, 6, 1.5, recompute=(1.5, True), offload=(1.7, True))
    found = compare_plans(("one", "two"), one, two)
    totals = {pair.name: (pair.before, pair.after) for pair in found.totals}
    assert (totals["budget"], totals["plan peak"], totals["plan time"]) == ((5, 6), (4, 6), (2.0, 1.5))
    assert (totals["plain peak"], totals["plan host"]) == ((9, 9), (None, None))
    assert {pair.name: (pair.before, pair.after) for pair in found.groups} == {
        "recompute": (2.0, 1.5),
        "keep": (None, None),
        "offload": (None, 1.7),
    }


def test_plans_with_nonsense_in_them() -> None:
    odd = {"budget_bytes": "4GB", "plain": {"peak_bytes": True}, "plan": {}, "candidates": [{"planner": "x", "fits": 1, "time_s": None}]}  # fmt: skip  # noqa: E501
    found = compare_plans(("odd", "odd"), odd, odd)
    assert all(pair.before is None for pair in (*found.totals, *found.groups))
