"""Tiles where they pay, whole nodes where they do not: the first stretch of a network runs in tiles, as one node of a
step list whose other nodes are kept or run again.

High-resolution layers come first in most networks and hold most of the memory; streaming only those costs less time
than streaming all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..bounds import label_axes
from ..errors import GridError
from ..ir import Graph
from ..planners import Effort, plan_tiles
from ..runtime.segment import TILED, Segment, cut_segment, make_segment
from ..runtime.training import training_graph
from ..schedule import Schedule, Storage
from ..sim.machine import Machine
from ..sim.tiled import tiled_seconds
from .candidates import Candidate, Steps
from .tiles import axis_lengths, total_stride

SHARES = (0.4, 0.6, 0.8, 0.95)  # of all activations' bytes that the tiled stretch makes
COUNTS = (4, 16)  # tiles
MOST_WALKS = 3
QUICK = Effort(heuristic_s=0.6, exact_s=0.0)


@dataclass(frozen=True)
class Mixed:
    """A captured graph (not lowered) and what of it needs gradients."""

    graph: Graph = field(repr=False)
    axes: tuple[str, ...]
    graded: tuple[str, ...]
    machine: Machine

    @cached_property
    def cuts(self) -> list[tuple[int, Graph, Graph]]:
        """Ends of a first stretch that one value crosses, near the shares asked for."""
        sizes = [self.graph.type(n.outputs[0]).bytes for n in self.graph.nodes]
        found: dict[int, tuple[int, Graph, Graph]] = {}
        for share in SHARES:
            done, wanted = 0, share * sum(sizes)
            for at, size in enumerate(sizes, start=1):
                done += size
                if done >= wanted and at < len(sizes) and (cut := cut_segment(self.graph, 0, at)) is not None:
                    found[at] = (at, *cut)
                    break
        return list(found.values())

    def candidates(self, budget: int) -> Iterator[Candidate]:
        """For each cut the fewest tiles that fit, the rest kept or, if that does not fit, partly run again."""
        for _, around, inner in self.cuts:
            for count in COUNTS:
                try:
                    found = self._candidate(around, inner, count, budget)
                except GridError:  # no axis to cut, or nothing gained by it
                    break
                if found is not None:
                    yield found
                    break

    def _candidate(self, around: Graph, inner: Graph, count: int, budget: int) -> Candidate | None:
        name = next(n.name for n in around.nodes if n.op == TILED)
        axis = self.axes[0]

        def plan(lowered: Graph) -> Schedule:
            """Rows. A stretch that falls into many phases keeps what lies between them: nothing is gained."""
            if axis not in {a for dims in label_axes(lowered).dims.values() for a in dims}:
                raise GridError(f"this stretch has no axis {axis}")
            unit, length = total_stride(lowered, (axis,)), axis_lengths(lowered, (axis,))[axis]
            found = plan_tiles(lowered, "stream", {axis: -(-length // (count * unit)) * unit}, Storage.DEVICE)
            if sum(phase.tiled for phase in found.phases) > MOST_WALKS:
                raise GridError("this stretch falls into many phases")
            return found

        segment, schedule = make_segment(name, inner, plan, dict.fromkeys(self.graded, True))
        steps = Steps(self._timed(around, name, segment, schedule), self.machine, QUICK)
        options = [steps.keep]
        if steps.keep.peak_bytes > budget:
            options = list(steps.candidates(budget, ("recompute",)))
        fitting = [c for c in options if c.peak_bytes <= budget]
        if not fitting:
            return None
        best = min(fitting, key=lambda c: c.time_s)
        nodes = len(inner.nodes)
        rest = "the rest whole" if best.planner == "keep" else "the rest partly run again"
        detail = f"the first {nodes} nodes in {count} tiles along {axis}, {rest}"
        return replace(best, planner="tile", detail=detail, around=around, segments={name: segment})

    def _timed(self, around: Graph, name: str, segment: Segment, schedule: Schedule) -> Graph:
        """The training graph around the stretch, whose two nodes take as long as its tiles."""
        graph = training_graph(around, self.graded, segments={name: segment})
        forward = tiled_seconds(schedule, self.machine, train=False)
        back = tiled_seconds(schedule, self.machine, train=True) - forward
        times = {name: forward, f"{name}.backward": back}
        nodes = tuple(replace(n, time_s=times[n.name]) if n.name in times else n for n in graph.nodes)
        return replace(graph, nodes=nodes)
