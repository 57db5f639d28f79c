"""What a rank runs: the mesh's plan, cut into tiles where the rank's own budget asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..ir import Graph
from ..schedule import Schedule, Storage
from .account import Account, imbalance, make_accounts
from .mesh import Coords, Mesh
from .plan import MeshPlan, plan_mesh
from .segments import choose_exchanged


@dataclass(frozen=True)
class RankPlan:
    mesh_plan: MeshPlan = field(repr=False)
    coords: Coords
    schedule: Schedule = field(repr=False)
    graded: tuple[str, ...]  # outside values that need a gradient
    kept: bool  # activations stay for backward; otherwise they are computed again, tile by tile

    @cached_property
    def accounts(self) -> list[Account]:
        """What the plan asks of every rank."""
        return make_accounts(self.mesh_plan, self.graded)

    def to_json(self) -> dict[str, Any]:
        return {
            "mesh": dict(zip(self.mesh_plan.mesh.axes, self.mesh_plan.mesh.sizes, strict=True)),
            "phases": len(self.mesh_plan.walks),
            "exchanges": sum(any(self.mesh_plan.moves(v) for v in vs) for vs in self.mesh_plan.exchanges.values()),
            "imbalance": imbalance(self.accounts),
            "predicted": dict(self.schedule.predicted),
            "ranks": [account.to_json() for account in self.accounts],
        }


def plan_rank(
    graph: Graph,
    mesh: Mesh,
    coords: Coords,
    graded: Sequence[str],
    budget: int | str | None,
    exchange: str,
    halos: Storage | None,
    device: torch.device,
) -> RankPlan:
    exchanged = choose_exchanged(graph, mesh, exchange, bool(graded), device)
    plan = plan_mesh(graph, mesh, exchanged=exchanged)
    return RankPlan(plan, coords, plan.schedule(coords, halos or Storage.DEVICE), tuple(graded), kept=True)
