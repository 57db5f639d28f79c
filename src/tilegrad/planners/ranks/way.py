"""What one plan of a mesh takes over a link: seconds, traffic and memory of the rank with most to do.

Compute is what `sim.clock` says for that rank's boxes. Halos wait for one message along each axis, and for their bytes;
reductions for a gather and, in backward, a sum. Gradients of parameters are added up in a ring beside the backward
pass, those of the tail are told by the first rank: what takes longer than that is waited for. On a CPU nothing is
beside it: what sends and adds are the cores that compute. Limits: all links are alike and nobody else uses them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

from ...bounds import call_of
from ...ops import Call
from ...schedule import Exchange, Finish, Schedule, Sum
from ...sim.clock import measure_time, whole_seconds
from ...sim.links import Link
from ...sim.predict import predict
from ..problem import MeshProblem
from .account import Account, busiest_rank, make_accounts
from .plan import MeshPlan

BACKWARD = 2 / 3  # of the time of a step
REPLAYED = 0.45  # of the host's time for a walk over the schedule: a program of calls that is replayed, as measured
BUCKET = 1 << 20  # bytes of gradients that are added up at a time
FREE = Link("none", 1e18, 0.0)


@dataclass(frozen=True)
class Forecast:
    """Of one step, over one link."""

    link: str
    ranks: int
    compute_s: float
    halo_s: float
    fold_s: float
    sum_s: float  # waited for, after backward
    peak_bytes: int
    sent_bytes: int  # halos and their gradients, by the rank that sends most
    summed_bytes: int
    messages: int
    tiles: int  # of a rank's box: 1 where everything is kept
    fits: bool

    @property
    def step_s(self) -> float:
        return self.compute_s + self.halo_s + self.fold_s + self.sum_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"step_s": self.step_s}


@dataclass(frozen=True)
class Way:
    """One plan, and its busiest rank."""

    plan: MeshPlan
    ranks: MeshProblem
    kept: bool = True
    tiles: int = 1

    @cached_property
    def schedule(self) -> Schedule:
        return self.plan.schedule(busiest_rank(self.plan, self.ranks.graded), self.ranks.graded, kept=self.kept)

    @cached_property
    def compute_s(self) -> float:
        """Without links."""
        machine = self.ranks.machine
        launch_s = machine.launch_s * (REPLAYED if self.kept else 1.0)
        machine = replace(machine, launch_s=launch_s, peer_bytes_per_s=FREE.bytes_per_s, message_s=FREE.message_s)
        return measure_time(self.schedule, None, machine).total_s - sum(self._spared(call) for call in self._shared)

    @cached_property
    def _shared(self) -> list[Call]:
        """Nodes of which every rank makes some channels (`bounds.placement`, rule P6)."""
        graph = self.plan.graph
        return [call_of(graph, graph.node[name]) for name in self.plan.placement.shared] if self.kept else []

    def _spared(self, call: Call) -> float:
        """Of a node that is made whole, what others do."""
        seconds, factor = whole_seconds(call, self.ranks.machine)
        return seconds * (1 + factor) * (1 - 1 / self.plan.mesh.count)

    def shared_s(self, link: Link) -> float:
        """Forward its channels are gathered, backward the gradients of what it reads are added up."""
        count = self.plan.mesh.count
        each = ((call.out.bytes / count, call.inputs[0].bytes) for call in self._shared)
        return sum(link.gather_s(int(made), count) + link.sum_s(read, count) for made, read in each)

    @cached_property
    def peak_bytes(self) -> int:
        return predict(self.schedule, self.ranks.graded).total_bytes

    @cached_property
    def accounts(self) -> list[Account]:
        return make_accounts(self.plan, self.ranks.graded)

    def bytes_of(self, value: str) -> int:
        return self.schedule.owned(value).volume * self.plan.graph.type(value).item_bytes

    def halo_s(self, link: Link) -> float:
        graph, total = self.plan.graph, 0.0
        for step in (s for s in self.schedule.steps if isinstance(s, Exchange) and (s.gives or s.takes)):
            ways = ([s.box.volume * graph.type(s.value).item_bytes for s in way] for way in (step.gives, step.takes))
            total += link.send_s(max(map(sum, ways)))
        return total

    def fold_s(self, link: Link) -> float:
        """Reductions that are due together are combined together, and so are their gradients."""
        total = 0.0
        for due, steps in groupby(self.schedule.steps, lambda step: isinstance(step, Finish)):
            for axes, each in groupby((s for s in steps if isinstance(s, Finish)), lambda s: s.axes) if due else ():
                size = sum(self.bytes_of(self.plan.graph.node[s.node].outputs[0]) for s in each)
                count = self._count(axes)
                total += link.gather_s(3 * size // 2, count) + link.sum_s(size, count)
        return total

    def sums(self) -> dict[tuple[frozenset[str], bool], int]:
        """Bytes of gradients that ranks share along axes: added up, or (True) told by the first."""
        found: dict[tuple[frozenset[str], bool], int] = {}
        for step in (s for s in self.schedule.steps if isinstance(s, Sum) and s.later and s.axes):
            key = step.axes, step.first
            found[key] = found.get(key, 0) + self.bytes_of(step.value)
        return found

    def sum_s(self, link: Link) -> float:
        """Beside backward, but for the last bucket."""
        total = last = 0.0
        for (axes, first), size in self.sums().items():
            seconds, buckets, count = link.broadcast_s if first else link.sum_s, -(-size // BUCKET), self._count(axes)
            last = max(last, seconds(min(size, BUCKET), count))
            between = 0.0 if self.on_cpu else (buckets - 1) * seconds(0, count)
            total += between + seconds(size, count)
        return total if self.on_cpu else max(last, total - BACKWARD * self.compute_s)

    @property
    def on_cpu(self) -> bool:
        return self.ranks.machine.kernel_s is None

    def step_s(self, link: Link) -> float:
        return self.compute_s + self.halo_s(link) + self.fold_s(link) + self.shared_s(link) + self.sum_s(link)

    def _count(self, axes: frozenset[str]) -> int:
        return prod(self.plan.mesh.size(axis) for axis in axes)

    def over(self, link: Link, budget: int | None) -> Forecast:
        most = max(self.accounts, key=lambda account: account.sent_bytes)
        return Forecast(
            link.name, self.plan.mesh.count, self.compute_s, self.halo_s(link), self.fold_s(link), self.sum_s(link),
            self.peak_bytes, most.sent_bytes, sum(self.sums().values()), most.messages, self.tiles,
            budget is None or self.peak_bytes <= budget,
        )  # fmt: skip


# Between processes that compute on all cores of a host, by way of shared memory: mostly until the other is there.
CROWDED = Link("crowded", 4e9, 0.2e-3)
