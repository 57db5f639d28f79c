"""Seconds of a tiled schedule: what its tiles compute, forward, again and backward, and what calling them costs."""

from __future__ import annotations

from math import prod

from ..bounds import call_of
from ..ops import find
from ..schedule import Phase, Schedule
from .machine import Machine

DENSE, OTHER = 2.0, 1.5  # backward against forward: two products instead of one; three tensors moved instead of two


def tiled_seconds(schedule: Schedule, machine: Machine, *, train: bool) -> float:
    """Forward; in training once more to have the activations of each tile, and backward."""
    return sum(_phase_seconds(schedule, phase, machine, train) for phase in schedule.phases)


def _phase_seconds(schedule: Schedule, phase: Phase, machine: Machine, train: bool) -> float:
    graph, tiles, total = schedule.graph, prod(phase.grid), 0.0
    for node in (*phase.nodes, *phase.folds):
        call, op = call_of(graph, node), find(node)
        size = max(1, call.out.size)
        computed = phase.forward.computed(node.outputs[0]) if phase.forward and node in phase.nodes else size
        moved = sum(t.bytes for t in (*call.inputs, *call.outputs)) * computed / size
        flops = op.flops(call) * computed if op.dense else 0.0
        once = machine.seconds(flops, moved, call.out.dtype) + (tiles - 1) * machine.launch_s
        total += once * (2.0 + (DENSE if op.dense else OTHER) if train else 1.0)
    return total
