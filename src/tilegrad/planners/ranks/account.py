"""What a plan asks of every rank: boxes, bytes owned and moved, work. All of it from the geometry alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
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
    needs, found = _needs(plan, graded), dict[tuple[int, ...], Account]()
    kinds = [_kinds(plan, axis) for axis in plan.mesh.axes]
    every = []
    for coords in plan.mesh.coords():
        like = tuple(kind[at] for kind, at in zip(kinds, coords, strict=True))
        if like not in found:
            found[like] = _account(plan, coords, needs)
        every.append(replace(found[like], rank=plan.mesh.rank(coords), coords=coords))
    return every


def _kinds(plan: MeshPlan, axis: str) -> list[int]:
    """For every index of the mesh along an axis the first that does as much: inside of an image most are alike."""
    looks: list[list[int]] = [[] for _ in range(plan.mesh.size(axis))]
    for walk in plan.walks:
        for look, spans in zip(looks, walk.spans.get(axis, ()), strict=False):
            look += [span.size for tracks in (spans.own, spans.held) for track in tracks.values() for span in track]
    for value in plan.graph.value:
        sides = plan.sides(value).get(axis, ())
        if sides and value in plan.told:
            looks[0].append(-1)  # it tells the others their gradients
        for at, (look, side) in enumerate(zip(looks, sides, strict=False)):
            others = [other for k, other in enumerate(sides) if k != at]
            met = [n for o in others for n in (side.needed.meet(o.own).size, o.needed.meet(side.own).size) if n]
            look += [side.own.size, side.wanted.size, len(met), *met]
    first: dict[tuple[int, ...], int] = {}
    return [first.setdefault(tuple(look), at) for at, look in enumerate(looks)]


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
    for step in plan.exchange_steps(coords, needs):
        given, taken = (sum(s.box.volume * graph.type(s.value).item_bytes for s in x) for x in (step.gives, step.takes))
        sent, received, messages = sent + given, received + taken, messages + len({s.rank for s in step.gives})
        halo += 0 if step.gradient else taken
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
