"""Time against memory: all that was tried for all budgets, and what is chosen for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, prod
from typing import Any

from ..errors import BudgetError
from ..planners import Candidate, Planning
from ..schedule import Storage
from ..units import format_bytes

HEADROOM = 1.15  # times the slowest plan on the front: what is slower still would press the rest flat


@dataclass(frozen=True)
class Curve:
    """For each budget a planning, or why there is none; at least one planning."""

    asked: tuple[tuple[int, Planning | BudgetError], ...]

    @property
    def plannings(self) -> list[Planning]:
        return [found for _, found in self.asked if isinstance(found, Planning)]

    @property
    def tightest(self) -> Planning:
        return min(self.plannings, key=lambda planning: planning.budget)

    @property
    def plain(self) -> Candidate:
        return self.tightest.plain

    @cached_property
    def points(self) -> tuple[Candidate, ...]:
        """All candidates, each once, least memory first."""
        known = {_key(c): c for planning in self.plannings for c in planning.candidates}
        return tuple(sorted(known.values(), key=lambda c: (c.peak_bytes, c.time_s)))

    @cached_property
    def front(self) -> tuple[Candidate, ...]:
        """Those that are faster than all that need no more memory."""
        found, least = list[Candidate](), inf
        for point in self.points:
            if point.time_s < least:
                found.append(point)
                least = point.time_s
        return tuple(found)

    def budgets_of(self, point: Candidate) -> list[int]:
        """The budgets that a candidate is chosen for."""
        chosen = {found.budget for found in self.plannings if _key(found.chosen) == _key(point)}
        return sorted(chosen)

    @property
    def times(self) -> tuple[float, float]:
        """The ends of the axis of time."""
        shown = [c.time_s for c in (*self.front, self.plain, *(p.chosen for p in self.plannings)) if isfinite(c.time_s)]
        low, high = min(shown, default=0.0), max(shown, default=0.0)
        return low, max(low + HEADROOM * (high - low), low * 1.05) or 1.0

    @property
    def memory(self) -> tuple[int, int]:
        """The ends of the axis of memory."""
        sizes = [*(c.peak_bytes for c in self.points), *(budget for budget, _ in self.asked if budget <= self._most)]
        return min(sizes), max(max(sizes), min(sizes) + 1)

    @property
    def _most(self) -> int:
        return max(c.peak_bytes for c in self.points)

    def extra(self, seconds: float) -> float | None:
        """Time beyond plain's, as a share of it."""
        base = self.plain.time_s
        return seconds / base - 1 if base and isfinite(base) and isfinite(seconds) else None

    def to_json(self) -> dict[str, Any]:
        """All plannings, and the front."""
        rows = [found.to_json() if isinstance(found, Planning) else _refused(b, found) for b, found in self.asked]
        front = [c.to_json(self.plain.time_s) for c in self.front]
        return {"schema": 1, "front": front, "sweep": rows}


def make_curve(budgets: Sequence[int], found: Iterable[Planning | BudgetError]) -> Curve:
    return Curve(tuple(zip(budgets, found, strict=True)))


def _key(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.planner, candidate.detail, candidate.peak_bytes, candidate.time_s


def _refused(budget: int, error: BudgetError) -> dict[str, Any]:
    return {
        "budget_bytes": budget,
        "plan": None,
        "least_bytes": error.least_bytes,
        "why": error.where,
        "try": error.hint,
    }


def in_words(candidate: Candidate) -> str:
    """What a plan does: "3x3 tiles along h,w, 5 of 9 kept", "13 nodes run again, 2.69GiB to and from the host"."""
    schedule = candidate.schedule
    tiled = [phase for phase in schedule.phases if phase.forward is not None and phase.tiled]
    parts = [f"{many} tiles along {axes}" for many, axes in schedule.cuts]
    if len(tiled) > 1:
        parts = [f"{' and '.join(parts)} in {len(tiled)} walks"]
    if tiled and schedule.kept:
        parts.append(f"{len(schedule.kept)} of {sum(prod(phase.grid) for phase in tiled)} kept")
    if tiled and schedule.storage != Storage.DEVICE:
        parts.append(f"halos on {schedule.storage}")
    if tiled and len({node.name for p in schedule.phases for node in (*p.nodes, *p.folds)}) < len(schedule.graph.nodes):
        parts.append("the rest whole")
    counts = Counter(name for name in schedule.runs if name in schedule.graph.node)
    if again := sum(count > 1 for count in counts.values()):
        parts.append(f"{again} nodes run again" if again > 1 else "1 node runs again")
    if candidate.host_bytes:
        parts.append(f"{format_bytes(candidate.host_bytes)} to and from {schedule.storage if tiled else 'the host'}")
    return ", ".join(parts) or "everything kept"
