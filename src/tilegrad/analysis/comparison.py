"""Two profiles, or two plans, side by side: totals, groups and peaks, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..profile.model import MOST_BYTES
from .analysis import Analysis
from .groups import By, OperatorGroup, group_operators

Unit = Literal["seconds", "bytes", "count", "share"]


@dataclass(frozen=True)
class Pair:
    """One figure of both; None where one of them has not got it."""

    name: str
    unit: Unit
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before and self.after is not None else None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "before": self.before, "after": self.after, "ratio": self.ratio}


@dataclass(frozen=True)
class Comparison:
    before: str
    after: str
    totals: tuple[Pair, ...]
    groups: tuple[Pair, ...]  # kernel seconds by group, the largest change first
    by: str
    predicted: bool  # its times, of one of them at least

    @property
    def what(self) -> str:
        """What the groups are."""
        return "Fastest plan that fits, by planner" if self.by == "planner" else f"Kernel time by {self.by}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "comparison",
            "before": self.before,
            "after": self.after,
            "by": self.by,
            "totals": [pair.to_json() for pair in self.totals],
            "groups": [pair.to_json() for pair in self.groups],
        }


def compare_profiles(before: Analysis, after: Analysis, by: By = "type") -> Comparison:
    one, two = (_by_key(analysis, by) for analysis in (before, after))
    groups = [Pair(key, "seconds", _kernel(one.get(key)), _kernel(two.get(key))) for key in dict.fromkeys([*one, *two])]
    groups.sort(key=lambda p: -abs((p.after or 0.0) - (p.before or 0.0)))
    predicted = before.profile.predicted or after.profile.predicted
    names = before.profile.name, after.profile.name
    return Comparison(*names, tuple(_totals(before, after)), tuple(groups), by, predicted)


def _by_key(analysis: Analysis, by: By) -> dict[str, OperatorGroup]:
    return {group.key: group for group in group_operators(analysis.operators, by)}


def _kernel(group: OperatorGroup | None) -> float | None:
    return None if group is None else group.rates.kernel_s


def _totals(before: Analysis, after: Analysis) -> Iterator[Pair]:
    yield Pair("operators", "count", len(before.operators), len(after.operators))
    for side in ("device", "host"):
        one, two = getattr(before, side), getattr(after, side)
        if one is None and two is None:
            continue
        for key, what in (("span_s", "span"), ("kernel_s", "kernels"), ("wait_s", "waits")):
            yield Pair(f"{side} {what}", "seconds", getattr(one, key, None), getattr(two, key, None))
        yield Pair(f"{side} busy", "share", getattr(one, "busy_share", None), getattr(two, "busy_share", None))
    peaks = [{place: memory.owned.peak_bytes for place, memory in a.memory.items()} for a in (before, after)]
    if all(len(found) == 1 for found in peaks):  # one device each: their names may differ
        yield Pair("peak", "bytes", *(next(iter(found.values())) for found in peaks))
        return
    for device in dict.fromkeys([*peaks[0], *peaks[1]]):
        yield Pair(f"peak {device}".strip(), "bytes", peaks[0].get(device), peaks[1].get(device))


def compare_plans(names: tuple[str, str], before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Two outputs of `tilegrad plan --json`; their plans, and plain."""
    units: dict[str, Unit] = {
        "peak_bytes": "bytes",
        "time_s": "seconds",
        "host_bytes": "bytes",
        "offset_bytes": "bytes",
    }
    totals = [Pair("budget", "bytes", _number(before.get("budget_bytes")), _number(after.get("budget_bytes")))]
    for plan in ("plain", "plan"):
        one, two = before.get(plan) or {}, after.get(plan) or {}
        for key, unit in units.items():
            what = key.removesuffix("_bytes").removesuffix("_s")
            totals.append(Pair(f"{plan} {what}", unit, _number(one.get(key)), _number(two.get(key))))
    planners = [
        Pair(planner, "seconds", _fastest(before, planner), _fastest(after, planner))
        for planner in dict.fromkeys(
            c.get("planner")
            for p in (before, after)
            for c in p.get("candidates") or ()
            if isinstance(c.get("planner"), str)
        )
    ]
    return Comparison(*names, tuple(totals), tuple(planners), "planner", True)


def _number(item: Any) -> float | None:
    sound = isinstance(item, int | float) and not isinstance(item, bool) and abs(item) <= MOST_BYTES
    return item if sound else None


def _fastest(plan: Mapping[str, Any], planner: str) -> float | None:
    """Seconds of the fastest that fits."""
    times = [_number(c.get("time_s")) for c in plan["candidates"] if c.get("planner") == planner and c.get("fits")]
    return min((t for t in times if t is not None), default=None)
