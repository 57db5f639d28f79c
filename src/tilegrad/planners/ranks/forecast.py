"""What a step on a mesh takes over a link, on paper: seconds, traffic and memory of the rank with most to do.

Compute is what `sim.clock` says for that rank's boxes. Halos wait for one message along each axis, and for their bytes;
reductions for a gather and, in backward, a sum. Gradients of parameters are added up in a ring beside the backward
pass: what takes longer than that is waited for. Limits: all links are alike and nobody else uses them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any

from ...errors import GridError
from ...schedule import Exchange, Finish, Schedule, Sum
from ...sim.clock import measure_time
from ...sim.links import Link
from ...sim.predict import predict
from ..problem import MeshProblem
from .account import Account, busiest_rank, make_accounts
from .exchange import exchange_options
from .plan import MeshPlan, plan_mesh

BACKWARD = 2 / 3  # of the time of a step
REPLAYED = 0.45  # of the host's time for a walk over the schedule: a program of calls that is replayed, as measured
BUCKET = 1 << 20  # bytes of gradients that are added up at a time
FREE = Link("none", 1e18, 0.0)
TILES = (2, 4, 8, 16, 32)  # of a rank's box, that are tried where not everything fits


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
        return measure_time(self.schedule, None, machine).total_s

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

    def sums(self) -> dict[frozenset[str], int]:
        """Bytes of gradients that are added up, by the axes along which ranks share them."""
        found: dict[frozenset[str], int] = {}
        for step in (s for s in self.schedule.steps if isinstance(s, Sum) and s.later and s.axes):
            found[step.axes] = found.get(step.axes, 0) + self.bytes_of(step.value)
        return found

    def sum_s(self, link: Link) -> float:
        """Beside backward, but for the last bucket."""
        total = last = 0.0
        for axes, size in self.sums().items():
            buckets, count = -(-size // BUCKET), self._count(axes)
            last = max(last, link.sum_s(min(size, BUCKET), count))
            total += (buckets - 1) * link.sum_s(0, count) + link.sum_s(size, count)
        return max(last, total - BACKWARD * self.compute_s)

    def _count(self, axes: frozenset[str]) -> int:
        return prod(self.plan.mesh.size(axis) for axis in axes)

    def over(self, link: Link, budget: int | None) -> Forecast:
        most = max(self.accounts, key=lambda account: account.sent_bytes)
        return Forecast(
            link.name, self.plan.mesh.count, self.compute_s, self.halo_s(link), self.fold_s(link), self.sum_s(link),
            self.peak_bytes, most.sent_bytes, sum(self.sums().values()), most.messages, self.tiles,
            budget is None or self.peak_bytes <= budget,
        )  # fmt: skip


class OnPaper:
    """A network on a mesh, for any link. `budget`: bytes of each rank (default: its machine's)."""

    def __init__(self, ranks: MeshProblem, budget: int | None = None):
        self.ranks, self.budget = ranks, budget or ranks.machine.device_bytes
        self.ways = [Way(plan, ranks) for plan in exchange_options(ranks).values()]

    def over(self, link: Link) -> Forecast:
        """The fastest where everything is kept; where that does not fit, as few tiles as fit."""
        kept = sorted(self.ways, key=lambda way: way.compute_s + way.halo_s(link) + way.fold_s(link))
        chosen = next((way for way in kept if self._fits(way)), None)
        if chosen is None:
            chosen = next((way for way in self._smaller if self._fits(way)), kept[0])
        return chosen.over(link, self.budget)

    def _fits(self, way: Way) -> bool:
        return self.budget is None or way.peak_bytes <= self.budget

    @cached_property
    def _smaller(self) -> list[Way]:
        axis, found = self.ranks.mesh.axes[0], list[Way]()
        for count in TILES:
            try:
                plan = plan_mesh(self.ranks.graph, self.ranks.mesh, tiles={axis: count})
            except GridError:
                break
            found.append(Way(plan, self.ranks, kept=False, tiles=count))
            if self._fits(found[-1]):
                break
        return found
