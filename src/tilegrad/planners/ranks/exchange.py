"""Where halos are exchanged: once per segment, per layer, or where it is predicted to be fastest.

Without an exchange a rank computes, at its borders, what its neighbours compute too, and a little more with every
layer; with one it waits for a message. All ranks must come to the same answer, so machine and link are taken from a
table, by the kind of device, and not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...bounds import call_of, label_axes
from ...bounds.mesh import Mesh
from ...ir import Graph
from ...ops import find
from ...region import POINT
from ...sim.clock import measure_time
from ..problem import MeshProblem
from .account import busiest_rank
from .plan import MeshPlan, plan_mesh

EVERY = (1, 2, 3, 4, 6, 8, 12, 16)  # layers between two exchanges that are tried, besides none at all


def choose_exchanged(ranks: MeshProblem) -> tuple[str, ...]:
    """The values whose halos move between ranks although the walk could go on."""
    plans = exchange_options(ranks)
    return min(plans, key=lambda option: _seconds(plans[option], ranks)) if len(plans) > 1 else next(iter(plans))


def exchange_options(ranks: MeshProblem) -> dict[tuple[str, ...], MeshPlan]:
    """Plans, by the values whose halos move although the walk could go on."""
    layers = layer_inputs(ranks.graph, ranks.mesh)
    every: dict[str, Sequence[tuple[str, ...]]] = {"segment": [()], "layer": [tuple(layers)]}
    options = every.get(ranks.exchange, [(), *(tuple(layers[k - 1 :: k]) for k in EVERY)])
    return {option: plan_mesh(ranks.graph, ranks.mesh, exchanged=option) for option in dict.fromkeys(options)}


def _seconds(plan: MeshPlan, ranks: MeshProblem) -> float:
    """The step of the rank with most work: what it computes, and what it waits for."""
    schedule = plan.schedule(busiest_rank(plan, ranks.graded), ranks.graded)
    return measure_time(schedule, None, ranks.machine).total_s


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
