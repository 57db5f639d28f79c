"""A schedule as plain data, and back: small, since boxes of tiles are left out. They follow from where values are cut.

Rule C1  What `pack_schedule` gives, through JSON, `unpack_schedule` makes an equal schedule of: graph, phases, steps,
         islands and figures. What is read is checked like what is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..bounds import Axes, Tiling, tile_nodes
from ..ir import Graph, format_graph, parse_graph
from .notation import format_schedule, parse_schedule
from .phase import TilePhase
from .schedule import Islands, Schedule, Storage

Data = dict[str, Any]  # whatever JSON can say


def pack_schedule(schedule: Schedule) -> Data:
    """Of one device: a rank's tiles are not cut by themselves."""
    assert schedule.seat is None, "a rank's schedule"
    axes = next((phase.forward.axes for phase in schedule.phases if phase.forward is not None), Axes({}))
    return {
        "graph": format_graph(schedule.graph),
        "dims": {name: dims for name, dims in axes.dims.items() if dims},
        "apart": sorted(axes.whole),
        "phases": [_pack_phase(phase) for phase in schedule.phases],
        "steps": format_schedule(schedule, known=Islands(schedule.phases)),
        "predicted": dict(schedule.predicted),
        "notes": schedule.notes,
        "gap": schedule.gap,
    }


def unpack_schedule(data: Mapping[str, Any], stores: Sequence[str] = Storage.ALL) -> Schedule:
    graph = parse_graph(data["graph"])
    axes = Axes({v.name: data["dims"].get(v.name, {}) for v in graph.values}, _pairs(data["apart"]))
    phases = tuple(_unpack_phase(phase, graph, axes) for phase in data["phases"])
    found = parse_schedule(data["steps"], graph, stores, phases)
    return replace(found, predicted=data["predicted"], notes=tuple(data["notes"]), gap=data["gap"])


def _pack_phase(phase: TilePhase) -> Data:
    other = phase.backward if phase.backward is not phase.forward else None
    return {
        "number": phase.number,
        "nodes": [node.name for node in phase.nodes],
        "folds": [node.name for node in phase.folds],
        "boxed": phase.boxed,
        "whole": phase.whole,
        "stores": phase.stores,
        "forward": _pack_tiling(phase.forward),
        "backward": _pack_tiling(other),
    }


def _pack_tiling(tiling: Tiling | None) -> Data | None:
    if tiling is None:
        return None
    names = {node.name for node in tiling.nodes}
    return {
        "mode": tiling.mode,
        "cuts": {axis: tiling.cuts[axis] for axis in tiling.tiled},
        "carried": None if tiling.carried is None else sorted(tiling.carried),
        "whole": sorted(pair for pair in tiling.whole if pair[0] in names),
    }


def _unpack_phase(data: Mapping[str, Any], graph: Graph, axes: Axes) -> TilePhase:
    nodes, folds = (tuple(graph.node[name] for name in data[key]) for key in ("nodes", "folds"))
    boxed, whole, stores = (tuple(data[key]) for key in ("boxed", "whole", "stores"))
    sinks = {*stores, *(fold.inputs[0].value for fold in folds)}

    def tiling(said: Mapping[str, Any] | None) -> Tiling | None:
        if said is None:
            return None
        cuts, carried = said["cuts"], None if said["carried"] is None else frozenset(said["carried"])
        read_whole = _pairs(said["whole"])
        return tile_nodes(
            graph, axes, nodes, said["mode"], tuple(cuts), lambda line: cuts[line.axis], sinks, read_whole, carried
        )  # fmt: skip

    forward = tiling(data["forward"])
    backward = tiling(data["backward"]) or forward
    return TilePhase(data["number"], graph, nodes, folds, boxed, whole, stores, forward, backward)


def _pairs(said: Sequence[Sequence[Any]]) -> frozenset[tuple[str, int]]:
    return frozenset((name, at) for name, at in said)
