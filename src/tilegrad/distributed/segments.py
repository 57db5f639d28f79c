"""Where halos are exchanged: once per segment, per layer, or where it is predicted to be fastest."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..bounds import call_of, label_axes
from ..ir import Graph
from ..ops import find
from ..region import POINT
from .mesh import Mesh


def choose_exchanged(graph: Graph, mesh: Mesh, exchange: str, train: bool, device: torch.device) -> Collection[str]:
    """The values whose halos move between ranks although the walk could go on."""
    return layer_inputs(graph, mesh) if exchange == "layer" else ()


def layer_inputs(graph: Graph, mesh: Mesh) -> list[str]:
    """What every layer with a window reads."""
    axes, found = label_axes(graph), dict[str, None]()
    for node in graph.nodes:
        rule = find(node).reads(call_of(graph, node)) or ()
        for slot, dims in zip(node.inputs, rule, strict=False):
            where = axes.dims[slot.value]
            windows = [dims[where[axis]] for axis in mesh.axes if axis in where]
            if slot.value in graph.producer and any(r.dim is not None and r.window != POINT for r in windows):
                found[slot.value] = None
    return list(found)
