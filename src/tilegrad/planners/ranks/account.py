"""What a plan asks of every rank: boxes, bytes owned and moved, work. All of it from the geometry alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...bounds import call_of, needed_gradients
from ...bounds.mesh import Coords
from ...ir import Kind
from ...ops import find
from .plan import MeshPlan


@dataclass(frozen=True)
class Account:
    """One rank's."""

    rank: int
    coords: Coords
    owned_bytes: int  # of inputs and outputs
    weight_bytes: int  # parameters: its boxes of those that live on space, and all others whole
    halo_bytes: int  # received in a forward pass
    sent_bytes: int  # in a step: halos forward, their gradients backward
    received_bytes: int
    messages: int  # sent in a step
    work_flops: float  # of a forward pass

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"coords": list(self.coords)}


def make_accounts(plan: MeshPlan, graded: Collection[str] | None = None) -> list[Account]:
    """For every rank. `graded`: outside values that need a gradient (default: all parameters); none: inference."""
    needs = _needs(plan, graded)
    return [_account(plan, coords, needs) for coords in plan.mesh.coords()]


def busiest_rank(plan: MeshPlan, graded: Sequence[str]) -> Coords:
    """The rank with most work, whose figures count for all."""
    return max(make_accounts(plan, graded), key=lambda a: (a.work_flops, a.received_bytes)).coords


def imbalance(accounts: list[Account]) -> float:
    """The most work of a rank over the mean."""
    total = sum(a.work_flops for a in accounts)
    return max(a.work_flops for a in accounts) * len(accounts) / total if total else 1.0


def _needs(plan: MeshPlan, graded: Collection[str] | None) -> frozenset[str]:
    """Values whose gradient flows back."""
    graph = plan.graph
    every = [v.name for v in graph.of_kind(Kind.PARAMETER) if v.type.floating]
    return needed_gradients(graph, every if graded is None else graded)


def _account(plan: MeshPlan, coords: Coords, needs: Collection[str]) -> Account:
    graph = plan.graph
    ends = {*graph.inputs, *graph.outputs}
    sent = received = halo = messages = 0
    for values in plan.exchanges.values():
        moves = [move for value in values for move in plan.moves(value)]
        out = {m.reader for m in moves if m.owner == coords}
        messages += len(out)
        for move in moves:
            size = move.box.volume * graph.type(move.value).item_bytes
            sent += size * (move.owner == coords)
            received += size * (move.reader == coords)
            halo += size * (move.reader == coords)
    for back in plan.returns(needs):
        moves = [move for value in back for move in plan.moves(value)]
        messages += len({m.owner for m in moves if m.reader == coords})
        for move in moves:
            size = move.box.volume * graph.type(move.value).item_bytes
            sent += size * (move.reader == coords)
            received += size * (move.owner == coords)
    return Account(
        plan.mesh.rank(coords),
        coords,
        sum(plan.owned(name, coords).volume * graph.type(name).item_bytes for name in ends),
        sum(plan.owned(v.name, coords).volume * v.type.item_bytes for v in graph.of_kind(Kind.PARAMETER)),
        halo,
        sent,
        received,
        messages,
        _work(plan, coords),
    )


def _work(plan: MeshPlan, coords: Coords) -> float:
    """Floating point operations of a forward pass; what all ranks compute counts on each."""
    total = 0.0
    for phase in plan.phases(coords):
        for node in phase.nodes:
            call = call_of(plan.graph, node)
            made = phase.forward.computed(node.outputs[0]) if phase.forward else float(call.out.size)
            total += find(node).flops(call) * made
        for node in phase.folds:
            share = plan.owned(node.inputs[0].value, coords).volume / max(1, plan.graph.type(node.inputs[0].value).size)
            call = call_of(plan.graph, node)
            total += find(node).flops(call) * call.out.size * share
    return total
