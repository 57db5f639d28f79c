"""Plans and graphs that never ran, as profiles: what a machine is predicted to make of them.

Limits: tiles have no predicted time of their own: their memory is drawn in order, and in one piece but at the peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import TilegradError
from ..ir import Graph, Kind, Node
from ..planners import Candidate, TrainingStep
from ..profile import Block, BlockKind, Operator, Profile, Span
from ..schedule import Move, Run, Schedule, ScheduleStep
from ..schedule.whole import DEVICE as HERE
from ..schedule.whole import NodeIslands, roots_of
from ..sim.cost import node_cost, node_seconds
from ..sim.machine import Machine

RESIDENT = "parameters, inputs and their gradients"
DEVICE, HOST = "device", "host"


def simulate(graph: Graph, machine: Machine, name: str) -> Profile:
    """A graph that was never timed, as a machine is predicted to run it, keeping everything."""
    found = plan_profile(TrainingStep(graph, machine).keep, machine)
    notes = (*found.notes, f"times are predicted for {machine.name}, and addresses are ours: the file has none")
    return replace(found, name=name, graph=graph, notes=notes)


def is_timed(plan: Candidate) -> bool:
    """Are the times of its steps predicted?"""
    return plan.time is not None and math.isfinite(plan.time_s) and isinstance(plan.schedule.islands, NodeIslands)


def plan_profile(plan: Candidate, machine: Machine, *, addresses: bool = True) -> Profile:
    """As if the plan had been run and recorded: a tick is a step. Without predicted times the clock counts steps.
    Addresses take some seconds to find."""
    schedule, memory = plan.schedule, plan.memory
    assert memory is not None  # a plan of which only the peak is known cannot be drawn
    name = f"{plan.planner}: {plan.detail}"
    resident = Block(RESIDENT, memory.resident_bytes, 0, len(memory.device), BlockKind.WEIGHT, None, DEVICE)
    if not isinstance(schedule.islands, NodeIslands):
        operators, held = _tiles(memory)
        clock = tuple(float(at) for at in range(len(memory.device)))
        return Profile(name, "simulated", operators, (resident, *held), clock)
    starts = plan.time.starts if plan.time is not None and is_timed(plan) else None
    made = _Steps(schedule, starts, machine)
    offsets = plan.layout.offsets if addresses and plan.layout is not None else None
    base = memory.resident_bytes
    blocks = tuple(
        Block(
            life.name,
            life.bytes,
            life.start,
            life.stop,
            made.kind(life.name),
            None if offsets is None else base + offsets[i],
            DEVICE,
            made.operator_of.get(life.start),
        )
        for i, life in enumerate(memory.lifetimes)
    )
    if offsets is not None:  # what is always there lies below what comes and goes
        resident = Block(RESIDENT, base, 0, len(memory.device), BlockKind.WEIGHT, 0, DEVICE)
    return Profile(name, "simulated", tuple(made.operators), (resident, *blocks, *made.copies), tuple(made.clock))


def _tiles(memory: Any) -> tuple[tuple[Operator, ...], list[Block]]:
    """Of tiles only sums are known, and what is alive at the peak."""
    labels = [memory.labels[i] if i < len(memory.labels) else f"step {i + 1}" for i in range(len(memory.device))]
    operators = tuple(
        Operator(str(i), label, "tile", device=Span(i, i + 1), stream="compute") for i, label in enumerate(labels)
    )
    blocks = list[Block]()
    for at, total in enumerate(memory.device):
        rest = max(0, total - memory.resident_bytes)
        if at == memory.peak_step:
            for item in memory.alive:
                name = f"{item.value}, {item.source}" if item.source else item.value
                blocks.append(Block(name, item.bytes, at, at + 1, BlockKind.ACTIVATION, device=DEVICE, maker=at))
                rest -= item.bytes
        if rest > 0:
            blocks.append(Block(labels[at], rest, at, at + 1, BlockKind.ACTIVATION, device=DEVICE, maker=at))
    return operators, blocks


class _Steps:
    """Walk a step list: operators on three streams, and the copies that wait on the host."""

    def __init__(self, schedule: Schedule, starts: Sequence[float] | None, machine: Machine):
        self.graph, self.sizes = schedule.graph, roots_of(schedule.graph).bytes
        self.steps = schedule.steps
        self.clock = list(starts) if starts is not None else [float(at) for at in range(len(self.steps))]
        self.timed, self.machine = starts is not None, machine
        self.seconds = node_seconds(schedule.graph, machine) if self.timed else {}
        self.operators: list[Operator] = []
        self.operator_of: dict[int, int] = {}  # step -> place of its operator
        self.copies: list[Block] = []
        self._ran: set[str] = set()
        self._on_host: dict[str, tuple[int, int]] = {}  # value -> step of its copy, place of the operator
        self._free_s = {"out": 0.0, "in": 0.0}  # when the link is free again
        for at, step in enumerate(self.steps):
            self._walk(at, step)
        for value, (since, maker) in self._on_host.items():
            self._host_block(value, since, len(self.steps), maker)

    def kind(self, value: str) -> BlockKind:
        gradient = self.graph.value[value].kind is Kind.GRADIENT
        return BlockKind.GRADIENT if gradient else BlockKind.ACTIVATION

    def _walk(self, at: int, step: ScheduleStep) -> None:
        if not isinstance(step, Run | Move):
            return
        place = self.operator_of[at] = len(self.operators)
        if isinstance(step, Run):
            self.operators.append(self._run(at, self.graph.node[step.island]))
            return
        self.operators.append(self._copy(at, step))
        if step.store != HERE:
            self._on_host.setdefault(step.value, (at, place))
        elif step.value in self._on_host:
            since, maker = self._on_host.pop(step.value)
            self._host_block(step.value, since, at + 1, maker)

    def _host_block(self, value: str, start: int, stop: int, maker: int) -> None:
        self.copies.append(Block(value, self.sizes[value], start, stop, self.kind(value), device=HOST, maker=maker))

    def _run(self, at: int, node: Node) -> Operator:
        again, start = node.name in self._ran, self.clock[at]
        self._ran.add(node.name)
        end = start + self.seconds[node.name] if self.timed else start + 1
        if at + 1 < len(self.clock):  # nothing else computes meanwhile
            end = min(end, self.clock[at + 1])
        flops, moved = self._cost(node)
        return Operator(
            str(at),
            node.name,
            node.op,
            device=Span(start, max(start, end)),
            stream="compute",
            flops=flops,
            bytes=moved,
            in_shapes=tuple(self.graph.shape(name) for name in node.reads),
            out_shapes=tuple(self.graph.shape(name) for name in node.outputs),
            attrs={"again": True} if again else {},
            module=node.source.module,
            source=node.source.line,
            phase=node.phase,
        )

    def _copy(self, at: int, step: Move) -> Operator:
        """Copies of one direction run one after another, beside computing."""
        out, size = step.store != HERE, self.sizes[step.value]
        if self.timed:
            way = "out" if out else "in"
            start = max(self.clock[at], self._free_s[way])
            end = start + size / (self.machine.to_host_per_s if out else self.machine.from_host_per_s)
            self._free_s[way] = end
        else:
            start, end = self.clock[at], self.clock[at] + 1
        attrs = {} if out else {"fetched": True}
        kind, stream = ("copy to host", "to host") if out else ("copy from host", "from host")
        return Operator(
            str(at), step.value, kind, device=Span(start, end), stream=stream, bytes=size, attrs=attrs,
            out_shapes=(self.graph.shape(step.value),),
        )  # fmt: skip

    def _cost(self, node: Node) -> tuple[int | None, int | None]:
        """An operator that we do not know has no count."""
        try:
            cost = node_cost(self.graph, node)
        except TilegradError:
            return None, None
        return (int(cost.flops) if cost.flops else None), int(cost.bytes)
