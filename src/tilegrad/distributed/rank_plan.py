"""What a rank runs: the mesh's plan, cut into tiles where the budget asks for it.

What a step needs is found by running it: the rank's own session on tensors without data, in a group that talks to
nobody. All ranks look at the same rank, the one with most work, and so come to the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import BudgetError, GridError
from ..ir import Graph
from ..runtime import PeakBytes
from ..runtime.engine import Engine
from ..runtime.measure import device_bytes
from ..schedule import Schedule
from ..units import format_bytes, parse_budget
from .account import Account, imbalance, make_accounts
from .group import Group, Pending, Traffic
from .mesh import Coords, Mesh
from .plan import MeshPlan, plan_mesh
from .segments import choose_exchanged
from .session import RankSession

TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of a rank's box, that are tried


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
        plan = self.mesh_plan
        return {
            "mesh": dict(zip(plan.mesh.axes, plan.mesh.sizes, strict=True)),
            "phases": len(plan.walks),
            "exchanges": sum(any(plan.moves(v) for v in vs) for vs in plan.exchanges.values()),
            "tiles": max((len(p.tiles()) for p in self.schedule.phases), default=1),
            "recomputes": not self.kept,
            "imbalance": imbalance(self.accounts),
            "predicted": dict(self.schedule.predicted),
            "ranks": [account.to_json() for account in self.accounts],
        }


def plan_rank(
    graph: Graph,
    mesh: Mesh,
    rank: int,
    graded: Sequence[str],
    budget: int | str | None,
    exchange: str,
    device: torch.device,
) -> RankPlan:
    """The plan of one rank: everything kept where that fits, else in as few tiles as fit."""
    exchanged = choose_exchanged(graph, mesh, exchange, bool(graded), device.type)
    plain = plan_mesh(graph, mesh, exchanged=exchanged)
    names = tuple(graded)
    if budget is None:
        coords = plain.mesh.coords_of(rank)
        return RankPlan(plain, coords, plain.schedule(coords), names, kept=True)
    limit = parse_budget(budget, device_bytes(device))
    tried: list[tuple[int, str]] = []
    for plan, kept, what in _options(graph, mesh, exchanged, plain):
        need = predict_bytes(plan, names, kept=kept)
        tried.append((need, what))
        if need <= limit:
            coords = plan.mesh.coords_of(rank)
            schedule = replace(plan.schedule(coords), predicted={"total_bytes": need})
            return RankPlan(plan, coords, schedule, names, kept)
    least, what = min(tried)
    raise BudgetError(
        f"nothing fits {format_bytes(limit)} on a rank: the smallest plan found needs {format_bytes(least)}",
        where=what,
        hint=f'budget="{-(-least // 2**20)}MiB", or more ranks',
    )


def _options(
    graph: Graph, mesh: Mesh, exchanged: Sequence[str], plain: MeshPlan
) -> Iterator[tuple[MeshPlan, bool, str]]:
    """From the fastest to the smallest."""
    yield plain, True, "everything kept"
    inner, axis = _tile_axis(mesh)
    for count in TILES:
        try:
            plan = plan_mesh(graph, inner, exchanged=exchanged, tiles={axis: count})
        except GridError:
            return
        yield plan, False, f"{count} tiles along {axis}, computed again in backward"


def _tile_axis(mesh: Mesh) -> tuple[Mesh, str]:
    """The axis that a rank streams along: one of the image's, which a mesh of samples alone does not cut."""
    for axis in ("h", "d", "w"):
        if axis in mesh.axes:
            return mesh, axis
    return Mesh((*mesh.axes, "h"), (*mesh.sizes, 1), mesh.ranks, mesh.shares), "h"


def predict_bytes(plan: MeshPlan, graded: Sequence[str], *, kept: bool) -> int:
    """The most bytes alive on the rank with most work: parameters, inputs, and everything that a step allocates."""
    accounts = make_accounts(plan, graded)
    coords = max(accounts, key=lambda a: (a.work_flops, a.received_bytes)).coords
    graph = plan.graph
    tensors = {}
    for value in graph.values:
        if not value.kind.computed:
            dtype = getattr(torch, value.type.dtype)
            tensors[value.name] = torch.empty(plan.owned(value.name, coords).shape, dtype=dtype, device="meta")
            tensors[value.name].requires_grad_(value.name in graded)
    outside = sum(t.numel() * t.element_size() for t in tensors.values())
    group = _SilentGroup(plan, coords)
    with PeakBytes("meta") as peak:
        session = RankSession(
            Engine(plan.schedule(coords)), plan, group, tensors, torch.device("meta"), train=bool(graded), kept=kept
        )
        outputs, _ = session.forward()
        if graded:
            grads = [torch.empty_like(out) if out.is_floating_point() else None for out in outputs]
            found = session.backward(grads)
            del found
    return outside + peak.bytes


class _SilentGroup(Group):
    """A group of one that is told nothing: shapes come as if from others."""

    def __init__(self, plan: MeshPlan, coords: Coords):
        self.mesh, self.rank, self.device = plan.mesh, plan.mesh.rank(coords), torch.device("meta")
        self.coords, self.traffic = coords, Traffic()

    def exchange(self, what: str, sends: Any, receives: Any) -> dict[int, Tensor]:
        return {rank: torch.empty(size, dtype=torch.uint8, device="meta") for rank, size in receives.items()}

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> list[Tensor]:
        return [torch.empty_like(tensor) for _ in self.mesh.alike(self.coords, axes)]

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Pending:
        return Pending(lambda: None)
