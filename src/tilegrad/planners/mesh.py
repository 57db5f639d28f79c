"""What a rank runs: the mesh's plan, cut into tiles where the budget asks for it.

All ranks look at the same rank, the one with most work, and so come to the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..bounds import needed_gradients
from ..bounds.mesh import Coords, Mesh
from ..errors import GridError
from ..schedule import Schedule, format_plan
from ..schedule.rules import check_peers
from ..units import format_bytes
from .choose import plan_step
from .problem import MeshProblem, Planner, Problem, Proposal
from .ranks.account import Account, busiest_rank, imbalance, make_accounts
from .ranks.exchange import choose_exchanged
from .ranks.plan import MeshPlan, plan_mesh
from .ranks.tail import TailPoint, choose_tail

UNBOUND = 1 << 62  # bytes: no budget
TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of a rank's box, that are tried


@dataclass(frozen=True)
class RankPlan:
    mesh_plan: MeshPlan = field(repr=False)
    coords: Coords
    schedule: Schedule = field(repr=False)
    graded: tuple[str, ...] = field(repr=False)  # outside values that need a gradient
    kept: bool  # activations stay for backward; otherwise they are computed again, tile by tile

    @cached_property
    def accounts(self) -> list[Account]:
        """What the plan asks of every rank."""
        return make_accounts(self.mesh_plan, self.graded)

    @property
    def replays(self) -> bool:
        """Is it the same list of calls in every step, on every rank?"""
        return self.kept and self.mesh_plan.full

    def __str__(self) -> str:
        """What this rank runs, and what it sends and receives."""
        placed = self.mesh_plan.placement
        mesh, mine = self.mesh_plan.mesh, next(a for a in self.accounts if a.coords == self.coords)
        ranks = ", ".join(f"{size} along {axis}" for axis, size in zip(mesh.axes, mesh.sizes, strict=True))
        again = "" if self.kept else "; activations are computed again in backward"
        tail = [f"tail        {len(whole)} nodes run whole on every rank"] if (whole := placed.whole) else []
        moved = f"{format_bytes(mine.sent_bytes)} sent, {format_bytes(mine.received_bytes)} received a step"
        lines = [
            f"rank        {mine.rank} of {ranks}{again}",
            f"moved       {moved}; halos {len(self.mesh_plan.moved)} times forward",
            *tail,
        ]
        return "\n".join([format_plan(self.schedule), *lines])

    def to_json(self) -> dict[str, Any]:
        plan = self.mesh_plan
        return {
            "mesh": dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
            "phases": len(plan.walks),
            "exchanges": len(plan.moved),
            "tiles": max((len(p.tiles()) for p in self.schedule.phases), default=1),
            "recomputes": not self.kept,
            "whole": len(plan.placement.whole),
            "imbalance": imbalance(self.accounts),
            "predicted": dict(self.schedule.predicted),
            "ranks": [account.to_json() for account in self.accounts],
        }


class MeshPlanner(Planner):
    name = "mesh"
    effort = 6
    ordered = True

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        if (ranks := problem.ranks) is None:
            return
        exchanged = choose_exchanged(ranks)
        for plan, kept, detail in _plans(ranks, exchanged, choose_tail(ranks, exchanged)):
            busiest = plan.schedule(busiest_rank(plan, ranks.graded), ranks.graded, kept=kept)
            mine = plan.schedule(plan.mesh.coords_of(ranks.rank), ranks.graded, kept=kept)
            yield Proposal(mine, detail, busiest=busiest, source=(plan, kept))


def _plans(ranks: MeshProblem, exchanged: Sequence[str], tail: TailPoint) -> Iterator[tuple[MeshPlan, bool, str]]:
    """Everything kept, first with whole maps behind a point, if that is faster; then in ever smaller tiles, computed
    again in backward."""
    if tail.nodes:
        plan = plan_mesh(ranks.graph, ranks.mesh, exchanged=exchanged, whole=tail.nodes)
        yield plan, True, f"everything kept, whole behind {tail.value}"
    yield plan_mesh(ranks.graph, ranks.mesh, exchanged=exchanged), True, "everything kept"
    inner, axis = _tile_axis(ranks.mesh)
    for count in TILES:
        try:
            plan = plan_mesh(ranks.graph, inner, exchanged=exchanged, tiles={axis: count})
        except GridError:
            return
        yield plan, False, f"{count} tiles along {axis}, computed again in backward"


def plan_rank(ranks: MeshProblem, budget: int | None) -> RankPlan:
    """The plan of one rank: everything kept where that fits, else in as few tiles as fit."""
    chosen = plan_step(Problem(UNBOUND if budget is None else budget, ranks=ranks), planner="mesh").chosen
    plan: MeshPlan
    plan, kept = chosen.source
    needs = needed_gradients(plan.graph, ranks.graded)
    check_peers({plan.mesh.rank(coords): plan.exchange_steps(coords, needs) for coords in plan.mesh.coords()})
    return RankPlan(plan, plan.mesh.coords_of(ranks.rank), chosen.schedule, ranks.graded, kept)


def _tile_axis(mesh: Mesh) -> tuple[Mesh, str]:
    """The axis that a rank streams along: one of the image's, which a mesh of samples alone does not cut."""
    for axis in ("h", "d", "w"):
        if axis in mesh.axes:
            return mesh, axis
    return Mesh((*mesh.axes, "h"), (*mesh.sizes, 1), mesh.ranks, mesh.shares), "h"
