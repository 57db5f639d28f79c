"""Where halos are exchanged: once per segment, per layer, or where it is predicted to be fastest.

Without an exchange a rank computes, at its borders, what its neighbours compute too, and a little more with every
layer; with one it waits for a message. All ranks must come to the same answer, so machine and link are taken from a
table, by the kind of device, and not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..bounds import call_of, label_axes
from ..ir import Graph
from ..ops import find
from ..region import POINT
from ..sim.cost import node_cost
from ..sim.machine import CPU, PRESETS, Machine
from .mesh import Coords, Mesh
from .plan import MeshPlan, plan_mesh

EVERY = (1, 2, 3, 4, 6, 8, 12, 16)  # layers between two exchanges that are tried, besides none at all


@dataclass(frozen=True)
class Link:
    message_s: float  # until a message has come, besides its bytes
    bytes_per_s: float


LINKS = {"cpu": (CPU, Link(2e-4, 2e9)), "cuda": (PRESETS["h200"], Link(3e-5, 5e10))}


def choose_exchanged(graph: Graph, mesh: Mesh, exchange: str, train: bool, device: str) -> tuple[str, ...]:
    """The values whose halos move between ranks although the walk could go on."""
    layers = layer_inputs(graph, mesh)
    if exchange == "segment" or not layers:
        return ()
    if exchange == "layer":
        return tuple(layers)
    machine, link = LINKS["cuda" if device == "cuda" else "cpu"]
    options = list(dict.fromkeys(((), *(tuple(layers[k - 1 :: k]) for k in EVERY))))
    plans = [plan_mesh(graph, mesh, exchanged=option) for option in options]
    times = [predict_seconds(plan, machine, link, train) for plan in plans]
    return options[times.index(min(times))]


def predict_seconds(plan: MeshPlan, machine: Machine, link: Link, train: bool) -> float:
    """The slowest rank's step: what it computes, and what it waits for."""
    return max(_rank_seconds(plan, coords, machine, link) for coords in plan.mesh.coords()) * (3 if train else 1)


def _rank_seconds(plan: MeshPlan, coords: Coords, machine: Machine, link: Link) -> float:
    """Of a forward pass. Backward takes about twice as long, exchanges included."""
    total = 0.0
    for phase in plan.schedule(coords).phases:
        for node in phase.nodes:
            size = max(1, plan.graph.type(node.outputs[0]).size)
            share = phase.forward.computed(node.outputs[0]) / size if phase.forward is not None else 1.0
            total += share * node_cost(plan.graph, node).seconds(machine)
    for values in plan.exchanges.values():
        moves = [m for value in values for m in plan.moves(value) if coords in (m.owner, m.reader)]
        if moves:
            size = sum(m.box.volume * plan.graph.type(m.value).item_bytes for m in moves)
            total += link.message_s + size / link.bytes_per_s
    return total


def layer_inputs(graph: Graph, mesh: Mesh) -> Sequence[str]:
    """What every layer with a window reads, and a layer before it makes."""
    axes, found = label_axes(graph), dict[str, None]()
    for node in graph.nodes:
        rule = find(node).reads(call_of(graph, node)) or ()
        for slot, dims in zip(node.inputs, rule, strict=False):
            where = axes.dims[slot.value]
            windows = [dims[where[axis]] for axis in mesh.axes if axis in where]
            if slot.value in graph.producer and any(r.dim is not None and r.window != POINT for r in windows):
                found[slot.value] = None
    return list(found)
