"""Seconds: walk a step list with one compute stream and one copy stream each way.

Copies run beside computing, one after another in each direction. A node waits for what it reads to be fetched; giving
back the device memory of an offloaded value waits for its copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schedule.step_list import StepList
from ..schedule.steps import Fetch, Free, Offload, Run
from .machine import Machine


@dataclass(frozen=True)
class Time:
    """Predicted time of a schedule."""

    total_s: float
    compute_s: float  # all nodes, reruns included
    stall_s: float  # waiting for copies
    host_bytes: int  # copied, both ways together
    starts: tuple[float, ...] = field(repr=False)  # of each step


def measure_time(schedule: StepList, seconds: Mapping[str, float], machine: Machine) -> Time:
    """`seconds`: of every node."""
    now = out_free = in_free = compute = stall = 0.0
    gone: dict[str, float] = {}  # value -> when its copy to the host is done
    there: dict[str, float] = {}  # value -> when its copy from the host is done
    sizes, memory = schedule.memory.bytes, schedule.memory
    moved, starts = 0, list[float]()
    for step in schedule.steps:
        wait = 0.0
        match step:
            case Run(node=node):
                wait = max((there.get(name, 0.0) for name in memory.reads(node)), default=0.0)
            case Free(value=value):
                wait = max(gone.pop(value, 0.0), there.pop(value, 0.0))
            case Offload(value=value):
                out_free = gone[value] = max(now, out_free) + sizes[value] / machine.to_host_per_s
                moved += sizes[value]
            case Fetch(value=value):
                in_free = there[value] = max(now, in_free) + sizes[value] / machine.from_host_per_s
                moved += sizes[value]
        stall += max(0.0, wait - now)
        now = max(now, wait)
        starts.append(now)
        if isinstance(step, Run):
            now += seconds[step.node]
            compute += seconds[step.node]
    return Time(now, compute, stall, moved, tuple(starts))
