"""When operators ran: totals by side and lane, gaps, how busy, and how far the device lags behind the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Any, Literal

from ..profile import Operator, Profile, Span

Side = Literal["host", "device"]
LIMITS_S = (2e-6, 5e-6, 10e-6)  # gaps longer than these are counted
SHOWN = 5  # of the longest gaps


@dataclass(frozen=True)
class SideTimes:
    """One side, host or device. Sums are over operators; `busy_s` counts what runs at the same time once."""

    lanes: tuple[str, ...]
    operators: int
    first_start_s: float
    last_end_s: float
    total_s: float
    kernel_s: float
    wait_s: float | None  # None: nobody says when kernels began
    busy_s: float

    @property
    def span_s(self) -> float:
        return self.last_end_s - self.first_start_s

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.span_s if self.span_s else 0.0

    def to_json(self) -> dict[str, Any]:
        keys = ("lanes", "operators", "first_start_s", "last_end_s", "span_s", "total_s", "kernel_s", "wait_s")
        return {key: getattr(self, key) for key in (*keys, "busy_s", "busy_share")} | {"lanes": list(self.lanes)}


@dataclass(frozen=True)
class IdleGap:
    """Nothing ran in a lane between two operators (their places in the profile)."""

    seconds: float
    idle_s: float  # up to the kernel, not only to the operator
    before: int
    after: int


@dataclass(frozen=True)
class Gaps:
    every: tuple[IdleGap, ...]  # in the order of operators

    def to_json(self, operators: Sequence[Operator]) -> dict[str, Any]:
        lengths = sorted(gap.seconds for gap in self.every)
        longest = sorted(self.every, key=lambda g: (-g.seconds, g.after))[:SHOWN]
        return {
            "count": len(lengths),
            "negative": sum(s < 0 for s in lengths),
            "zero": sum(s == 0 for s in lengths),
            "min_s": lengths[0] if lengths else None,
            "max_s": lengths[-1] if lengths else None,
            "median_s": lengths[len(lengths) // 2] if lengths else None,
            "total_s": fsum(lengths),
            "idle_s": fsum(gap.idle_s for gap in self.every),
            "longer": {f"{limit * 1e6:g}us": sum(s > limit for s in lengths) for limit in LIMITS_S},
            "longest": [
                {
                    "seconds": gap.seconds,
                    "before": operators[gap.before].id,
                    "before_type": operators[gap.before].type,
                    "after": operators[gap.after].id,
                    "after_type": operators[gap.after].type,
                }
                for gap in longest
            ],
        }


@dataclass(frozen=True)
class Lag:
    """How long after the host issued an operator its kernel began.

    Where host and device have different zeros only their smallest possible distance is known: the one with which no
    operator starts on the device before the host issues it. All lags are then lower bounds.
    """

    offset_s: float  # host clock minus device clock
    set_by: int | None  # the operator that decides it; None where there is one clock
    seconds: tuple[float | None, ...]  # of every operator
    host_done_early_s: float  # the host had issued all so long before the device was done
    issue_s: float  # the host's time for an operator
    done_by_then: int  # kernels that had finished when the host was done
    raw_first_s: float  # start on the host minus start on the device, as recorded
    raw_last_s: float

    def to_json(self, operators: Sequence[Operator]) -> dict[str, Any]:
        known = [(s, at) for at, s in enumerate(self.seconds) if s is not None]
        ordered = sorted(s for s, _ in known)
        worst = max(known, key=lambda item: (item[0], -item[1]))
        return {
            "offset_s": self.offset_s,
            "set_by": None if self.set_by is None else operators[self.set_by].id,
            "first_s": known[0][0],
            "last_s": known[-1][0],
            "max_s": worst[0],
            "max_operator": operators[worst[1]].id,
            "median_s": ordered[len(ordered) // 2],
            "host_done_early_s": self.host_done_early_s,
            "issue_s": self.issue_s,
            "kernels_done_by_then": self.done_by_then,
            "raw_first_s": self.raw_first_s,
            "raw_last_s": self.raw_last_s,
        }


def side_times(operators: Iterable[Operator], side: Side) -> SideTimes | None:
    """Totals of one side; None where it has no times."""
    found = [op for op in operators if getattr(op, side) is not None]
    if not found:
        return None
    spans: list[Span] = [getattr(op, side) for op in found]
    lanes = dict.fromkeys(_lane(op, side) for op in found)
    return SideTimes(
        tuple(lanes),
        len(spans),
        min(s.start_s for s in spans),
        max(s.end_s for s in spans),
        fsum(s.total_s for s in spans),
        fsum(s.kernel_s for s in spans),
        fsum(s.wait_s for s in spans) if any(s.kern_s is not None for s in spans) else None,
        _union((s.end_s - s.kernel_s, s.end_s) for s in spans),
    )


def find_gaps(operators: Sequence[Operator], side: Side) -> Gaps:
    """Between operators that follow each other in a lane."""
    lanes: dict[str, list[int]] = {}
    for at, op in enumerate(operators):
        if getattr(op, side) is not None:
            lanes.setdefault(_lane(op, side), []).append(at)
    found = []
    for places in lanes.values():
        for before, after in pairwise(places):
            a, b = getattr(operators[before], side), getattr(operators[after], side)
            found.append(IdleGap(b.start_s - a.end_s, b.end_s - b.kernel_s - a.end_s, before, after))
    return Gaps(tuple(sorted(found, key=lambda g: g.after)))


def find_lag(profile: Profile) -> Lag | None:
    """None where no operator has both times."""
    both = [(at, op.host, op.device) for at, op in enumerate(profile.operators) if op.host and op.device]
    if not both:
        return None
    offset, set_by = 0.0, None
    if not profile.one_clock:
        offset, set_by = max((_least_offset(host, device), at) for at, host, device in both)
    seconds: list[float | None] = [None] * len(profile.operators)
    for at, host, device in both:
        seconds[at] = _kern(device) + offset - _kern(host)
    hosts, devices = [h for _, h, _ in both], [d for _, _, d in both]
    host_end, device_end = max(h.end_s for h in hosts), max(d.end_s for d in devices)
    return Lag(
        offset,
        set_by,
        tuple(seconds),
        device_end + offset - host_end,
        (host_end - min(h.start_s for h in hosts)) / len(both),
        sum(d.end_s + offset <= host_end for d in devices),
        hosts[0].start_s - devices[0].start_s,
        hosts[-1].start_s - devices[-1].start_s,
    )


def _least_offset(host: Span, device: Span) -> float:
    return max(host.start_s - device.start_s, _kern(host) - _kern(device))


def _kern(span: Span) -> float:
    return span.start_s if span.kern_s is None else span.kern_s


def _lane(op: Operator, side: Side) -> str:
    return op.stream if side == "device" else op.thread


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds covered by at least one span."""
    parts, end = [], float("-inf")
    for start, stop in sorted(spans):
        if stop > end:
            parts.append(stop - max(start, end))
            end = stop
    return fsum(parts)
