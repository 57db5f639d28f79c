"""Seconds of a phase's tiles in closed form, as the clock (`sim/clock.py`) counts them island by island."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from ...bounds import Tiling, call_of
from ...ir import Graph, Node
from ...ops import find
from ...schedule import TilePhase
from ...sim.clock import (
    CALLS,
    FOLDS,
    FREE,
    JOIN,
    MORE_KERNELS,
    Spent,
    call_of_python,
    entered,
    laid_seconds,
    weights_seconds,
    whole_seconds,
)
from ...sim.cost import fresh_bytes
from ...sim.machine import Machine


class PhaseSeconds(NamedTuple):
    """Forward, once more to make what it stores, once more for backward, backward, the link to where halos and stored
    values are kept; and how much of forward, once more and backward is for memory that is new each time."""

    forward: Spent
    replay: Spent
    once: Spent
    backward: Spent
    link: Spent
    fresh_s: float


class PhaseClock:
    def __init__(self, graph: Graph, machine: Machine):
        self.graph, self.machine = graph, machine
        self._cost: dict[str, tuple[float, float, float]] = {}

    def seconds(self, phase: TilePhase, near: bool) -> PhaseSeconds:
        machine, graph, tiling = self.machine, self.graph, phase.forward
        read = {name for node in phase.nodes for name in node.reads}
        call, folds = call_of_python(machine), FREE
        forward = back = skipped = moved = calls = back_calls = runs = fresh = 0.0
        for node in phase.nodes:
            once, factor, weights = self._node_seconds(node)
            share = share_of(tiling, node.outputs[0], "own") if tiling is not None else 1.0
            count = _runs(tiling, node.outputs[0]) if tiling is not None else 1
            forward += share * once + max(0.0, count - share) * weights
            calls += count
            runs += count
            if node.outputs[0] in phase.stores and node.outputs[0] not in read and find(node).gradient_alone:
                skipped += share * once
            back += factor * (share * once + max(0.0, count - share) * weights)
            if tiling is not None and _cuts_last(tiling, node.outputs[0], graph):
                laid = share * laid_seconds(call_of(graph, node), machine)
                forward += laid
                back += laid
            name, size = node.outputs[0], graph.type(node.outputs[0]).bytes
            if not find(node).view:
                new = machine.extra_s(_fresh(tiling, name, size))
                forward += new
                back += new
                fresh += 3 * new
            held = share_of(tiling, name, "held") if tiling is not None and tiling.mode == "stream" else share
            if held > share:
                calls += CALLS * sum(2 * (n - 1) * prod(phase.grid) // n for n in phase.grid)
                copied = JOIN * 2 * size * held / machine.bytes_per_s
                forward += copied
                back += copied
                moved += 2 * size * (held - share)
        for fold in phase.folds:
            fold_calls = FOLDS * (_runs(tiling, fold.reads[0]) if tiling is not None else 1)
            passed = 2 * graph.type(fold.reads[0]).bytes / machine.bytes_per_s
            folds = folds.plus(Spent(0.0, passed)).plus(call, fold_calls)
            back += 2 * passed
            back_calls += fold_calls
        stored = {v for v in (*phase.boxed, *phase.stores) if graph.value[v].kind.computed and len(graph.shape(v)) > 2}
        moved += sum(graph.type(v).bytes for v in stored)
        link = 0.0 if near else moved / machine.link_per_s
        back += MORE_KERNELS * runs * call.device
        again = Spent(0.0, forward).plus(call, calls)
        return PhaseSeconds(
            again.plus(folds),
            again,
            again.plus(Spent(0.0, skipped), -1),
            Spent(0.0, back).plus(call, calls + back_calls).plus(entered(machine), prod(phase.grid)),
            Spent(0.0, link),
            fresh,
        )

    def whole_s(self, node: Node, *, back: bool) -> float:
        once, factor, _ = self._node_seconds(node)
        return once * (1.0 + factor) if back else once

    def _node_seconds(self, node: Node) -> tuple[float, float, float]:
        if node.name not in self._cost:
            call = call_of(self.graph, node)
            self._cost[node.name] = *whole_seconds(call, self.machine), weights_seconds(call, self.machine)
        return self._cost[node.name]


def share_of(tiling: Tiling, name: str, which: str) -> float:
    """What all tiles together make or hold of a value, as a share of it."""
    found = 1.0
    for axis in tiling.tiled:
        track = getattr(tiling.spans[axis], which).get(name)
        if track is not None:
            found *= track.total / max(1, tiling.lines[axis].sizes[name])
    return found


def _fresh(tiling: Tiling | None, name: str, size: int) -> float:
    """Bytes of a value that tiles make in blocks that are new each time."""
    if tiling is None or not fresh_bytes(size):
        return fresh_bytes(size)
    tracks = [(tiling.spans[axis].own.get(name), tiling.lines[axis].sizes.get(name, 1)) for axis in tiling.tiled]
    shares = [track.sizes / max(1, length) for track, length in tracks if track is not None]
    if not fresh_bytes(size * prod(float(share.max()) for share in shares)):
        return 0.0
    tiles = np.full(1, float(size))
    for share in shares:
        tiles = np.outer(tiles, share).reshape(-1)
    return sum(map(fresh_bytes, tiles.tolist()))


def _cuts_last(tiling: Tiling, name: str, graph: Graph) -> bool:
    """Do tiles cut a value along its last dimension?"""
    rank = len(graph.shape(name))
    axis = tiling.axes.on(name, rank - 1) if rank > 2 else None
    track = tiling.spans[axis].own.get(name) if axis is not None and axis in tiling.tiled else None
    return track is not None and int(track.sizes.max()) < graph.shape(name)[-1]


def _runs(tiling: Tiling, name: str) -> int:
    """How many tiles make a part of a value."""
    tracks = (tiling.spans[axis].own.get(name) for axis in tiling.tiled)
    return prod(int(np.count_nonzero(track.sizes)) for track in tracks if track is not None)
