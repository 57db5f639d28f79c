"""Plans for a training graph, each with what it is predicted to cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..ir import Graph
from ..planners import Effort, plan_keep, plan_offload, plan_recompute, plan_segments, plan_sqrt
from ..runtime.segment import Segment
from ..schedule import Schedule
from ..schedule.step_list import StepList, check_steps
from ..sim.clock import Time, measure_time
from ..sim.cost import node_seconds
from ..sim.machine import Machine
from ..sim.memory import Memory, measure_memory
from ..sim.offsets import Layout, assign_offsets, check_layout

PLANNERS = ("keep", "segments", "recompute", "offload", "tile")
LARGE = 200  # nodes, from which on fewer combinations are tried
LOOSER = (1.0, 1.1, 1.2, 1.35, 1.5)  # budgets for recompute, as shares of the budget, before offload does the rest


@dataclass(frozen=True)
class Candidate:
    """A schedule with its predicted cost."""

    planner: str
    detail: str  # what sets it apart from others of its planner
    schedule: StepList | Schedule = field(repr=False)
    peak_bytes: int
    time_s: float
    host_bytes: int = 0  # copied to the host and back in a step
    memory: Memory | None = field(default=None, repr=False)
    time: Time | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    around: Graph | None = field(default=None, repr=False)  # the forward graph, where a stretch of it is one tiled node
    segments: Mapping[str, Segment] = field(default_factory=dict, repr=False)  # those nodes

    @cached_property
    def layout(self) -> Layout | None:
        """Addresses for everything that comes and goes; tiled schedules are left to the allocator."""
        if self.memory is None or not self.memory.lifetimes:
            return None
        layout = assign_offsets(self.memory.lifetimes)
        check_layout(self.memory.lifetimes, layout)
        return layout

    @property
    def offset_bytes(self) -> int | None:
        """The address range a step needs, what is resident included."""
        if self.memory is None or self.layout is None:
            return None
        return self.memory.resident_bytes + self.layout.range_bytes

    def to_json(self, plain_s: float, *, offsets: bool = False) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "detail": self.detail,
            "peak_bytes": self.peak_bytes,
            "time_s": self.time_s,
            "extra_time": self.time_s / plain_s - 1 if plain_s else 0.0,
            "host_bytes": self.host_bytes,
            "offset_bytes": self.offset_bytes if offsets else None,
            "gap": self.schedule.gap if isinstance(self.schedule, StepList) else None,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Steps:
    """A training graph on a machine: makes candidates of whole nodes."""

    graph: Graph
    machine: Machine
    effort: Effort = field(default_factory=Effort)
    hosted: bool = True  # is there a host to copy to?

    @cached_property
    def seconds(self) -> dict[str, float]:
        return node_seconds(self.graph, self.machine)

    @cached_property
    def keep(self) -> Candidate:
        return self.judge(plan_keep(self.graph), "everything")

    def judge(self, schedule: StepList, detail: str) -> Candidate:
        """Check a schedule, count its bytes and seconds."""
        check_steps(schedule)
        memory, time = measure_memory(schedule), measure_time(schedule, self.seconds, self.machine)
        figures = {
            "peak_bytes": memory.peak_bytes - memory.resident_bytes,
            "total_bytes": memory.peak_bytes,
            "halo_bytes": 0,
            "time_s": time.total_s,
            "host_bytes": time.host_bytes,
        }
        schedule = replace(schedule, predicted=figures)
        return Candidate(
            schedule.planner, detail, schedule, memory.peak_bytes, time.total_s, time.host_bytes, memory, time,
            schedule.notes,
        )  # fmt: skip

    def candidates(self, budget: int, planners: Sequence[str]) -> Iterator[Candidate]:
        """What each planner finds; whether it fits is for the reader to see."""
        yield self.keep
        if self.keep.peak_bytes <= budget and "keep" in planners:
            return
        if "segments" in planners:
            yield from self._segments(budget)
        recomputed: StepList | None = None
        if "recompute" in planners:
            recomputed = plan_recompute(self.graph, self.seconds, budget, self.effort)
            if recomputed is not None:
                yield self.judge(recomputed, "optimal" if recomputed.gap == 0 else "reruns")
        if "offload" in planners and self.hosted:
            yield from self._offloads(budget)

    def _segments(self, budget: int) -> Iterator[Candidate]:
        yield self.judge(plan_sqrt(self.graph, self.seconds), "sqrt(n) stretches")
        best = plan_segments(self.graph, self.seconds, budget, search_s=self.effort.heuristic_s)
        if best is not None:
            yield self.judge(best, "best cuts")

    def _offloads(self, budget: int) -> Iterator[Candidate]:
        """Alone, and after recompute for a looser budget; of those the fastest."""
        alone = plan_offload(self.graph, self.seconds, self.machine, budget)
        if alone is not None:
            yield self.judge(alone, "copies alone")
        large = len(self.graph.nodes) > LARGE
        quick = Effort(self.effort.heuristic_s / (4 if large else 1), 0.0)
        both: list[Candidate] = []
        for share in LOOSER[1::2] if large else LOOSER:
            base = plan_recompute(self.graph, self.seconds, int(budget * share), quick)
            found = plan_offload(self.graph, self.seconds, self.machine, budget, base) if base is not None else None
            if found is not None:
                both.append(self.judge(found, f"recompute for {share:g} of the budget, copies for the rest"))
        if both:
            yield min(both, key=lambda c: c.time_s)


def fastest(candidates: Sequence[Candidate], budget: int) -> Candidate | None:
    """The least time that fits; at equal time the smaller peak."""
    fitting = [c for c in candidates if c.peak_bytes <= budget]
    return min(fitting, key=lambda c: (c.time_s, c.peak_bytes), default=None)


def group_bytes(alive: Sequence[Any], graph: Graph) -> Mapping[str, int]:
    """The peak's composition by kind."""
    found: dict[str, int] = {}
    for item in alive:
        kind = str(graph.value[item.value].kind)
        found[kind] = found.get(kind, 0) + item.bytes
    return found
