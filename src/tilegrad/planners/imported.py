"""Tiles for graphs that come from a file: those whose operators this version of torch, or one of ours, can run."""

from __future__ import annotations

from dataclasses import replace

from ..bounds import image_axes, lower_graph
from ..errors import InputError, InternalError
from ..ir import Graph, Kind, Node
from ..ops import Op, aten, find
from ..sim.machine import Machine
from ..sim.training import forward_part
from .tile import TileSearch


def imported_tiles(graph: Graph, machine: Machine) -> TileSearch | None:
    """The tiled search for a graph, or None where its operators have no box rules."""
    forward = forward_part(graph)
    values = tuple(replace(v, alias=None) for v in forward.values)  # tiles find out themselves what is a view
    forward = replace(forward, values=values)
    if not all(_can_run(node) for node in forward.nodes):
        return None
    try:
        lowered = lower_graph(forward)
        axes = tuple(image_axes(lowered))
    except InputError:
        return None
    graded = tuple(v.name for v in lowered.of_kind(Kind.PARAMETER))
    return TileSearch(lowered, axes, "stream", graded, True, lambda: 0, machine) if axes else None


def _can_run(node: Node) -> bool:
    """Tiles are predicted by running one."""
    if len(node.outputs) != 1:
        return False
    try:
        return aten.overload(node.target) is not None if node.target else type(find(node)).run is not Op.run
    except InternalError:
        return False
