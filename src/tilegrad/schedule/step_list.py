"""A training step as a list of whole nodes: what runs, what runs again, what is freed, what waits on the host.

Rule L1  A step reads, frees and copies only what is on the device: resident, or made or fetched and not freed since.
Rule L2  Every backward node runs once, in the graph's order; forward nodes run once in order, and again where needed.
Rule L3  Resident values (inputs, parameters and their gradients, buffers, constants) are never freed or moved.
Rule L4  An alias lives in its root's memory: the root is freed when no alias is read any more.
Rule L5  What is fetched is on the host, as it was when last written; fetching gives up the copy there.
Rule L6  What is handed over at the end is never freed or moved once it is made: somebody else may hold it by then.
Rule L7  Everything else is freed: before it is made again, and before the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import InternalError
from ..ir import Graph, Kind, Phase
from .steps import Fetch, Free, Offload, Run, WholeStep


@dataclass(frozen=True)
class StepList:
    """A schedule of whole nodes over a training graph."""

    graph: Graph = field(repr=False)
    planner: str
    steps: tuple[WholeStep, ...] = field(repr=False)
    notes: tuple[str, ...] = ()  # what the planner has to say: its gap, that it was stopped
    gap: float | None = None  # how far from the least time it may be, as a share of it, where the planner knows
    predicted: Mapping[str, int | float] = field(default_factory=dict)

    @cached_property
    def memory(self) -> Memory:
        return graph_memory(self.graph)

    @property
    def mode(self) -> str:
        return self.planner

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(step.node for step in self.steps if isinstance(step, Run))


class Memory:
    """Which values share memory, how large it is, and which of it is there throughout."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.root: dict[str, str] = {}
        for value in graph.values:  # an alias comes after what it lives in
            self.root[value.name] = self.root[value.alias] if value.alias is not None else value.name
        self.bytes = {name: graph.type(name).bytes for name in self.root.values()}
        outside = {v.name for v in graph.values if not v.kind.computed}
        targets = {v.name for v in graph.of_kind(Kind.GRADIENT) if v.target is not None}
        self.resident = frozenset(self.root[name] for name in outside | targets)
        self.resident_bytes = sum(self.bytes[name] for name in self.resident)
        self.kept = frozenset(self.root[name] for name in graph.outputs)  # handed over at the end

    def reads(self, node: str) -> list[str]:
        """Roots a node reads that come and go."""
        found = dict.fromkeys(self.root[name] for name in self.graph.node[node].reads)
        return [name for name in found if name not in self.resident]

    def writes(self, node: str) -> list[str]:
        """Roots a node makes; an alias is made in memory that is there."""
        values = self.graph.value
        outputs = [out for out in self.graph.node[node].outputs if values[out].alias is None]
        return [name for name in outputs if name not in self.resident]

    def lived_in(self, node: str) -> list[str]:
        """Roots in whose memory a node makes its outputs."""
        outs = self.graph.node[node].outputs
        return [root for out in outs if (root := self.root[out]) != out and root not in self.resident]


def graph_memory(graph: Graph) -> Memory:
    """The graph's memory, made once and kept with it: planners ask again and again."""
    found: Memory | None = graph.__dict__.get("_memory")
    if found is None:
        found = graph.__dict__["_memory"] = Memory(graph)
    return found


def list_steps(
    graph: Graph, runs: Sequence[str], moves: Mapping[int, Sequence[WholeStep]] | None = None
) -> list[WholeStep]:
    """Nodes in the order they run, each value freed right after its last use before it is made again. `moves`: what
    else happens right before the run of that number (a `Free` of an offloaded value, an `Offload`, a `Fetch`)."""
    memory, moves = graph_memory(graph), moves or {}
    last_use = _last_uses(memory, runs, moves)
    steps: list[WholeStep] = []
    for at, node in enumerate(runs):
        steps += moves.get(at, ())
        steps.append(Run(node))
        steps += [Free(name) for name in last_use.get(at, ())]
    return steps + list(moves.get(len(runs), ()))


def _last_uses(memory: Memory, runs: Sequence[str], moves: Mapping[int, Sequence[WholeStep]]) -> dict[int, list[str]]:
    """Run number -> roots that nothing reads any more until they are made again."""
    found: dict[int, list[str]] = {}
    wanted: set[str] = set()
    for at in reversed(range(len(runs))):
        for step in reversed(moves.get(at + 1, ())):
            if isinstance(step, Fetch):
                wanted.discard(step.value)
            elif not isinstance(step, Run):
                wanted.add(step.value)  # it is freed there, or copied from
        made = memory.writes(runs[at])
        touched = dict.fromkeys([*memory.reads(runs[at]), *made, *memory.lived_in(runs[at])])
        found[at] = [name for name in touched if name not in wanted and name not in memory.kept]
        wanted |= set(touched)
        wanted -= set(made)
    return found


def check_steps(schedule: StepList) -> None:
    """Raise `InternalError` naming the first broken rule and the step."""
    graph, memory = schedule.graph, schedule.memory
    on_device: set[str] = set()
    on_host: set[str] = set()
    for at, step in enumerate(schedule.steps):
        match step:
            case Run(node=node):
                for name in memory.reads(node):
                    if name not in on_device:
                        raise _fail("L1", at, f"'{node}' reads '{name}', which is not on the device")
                for name in memory.writes(node):
                    if name in on_device and name not in memory.kept:
                        raise _fail("L7", at, f"'{node}' makes '{name}', which is on the device already")
                on_device.update(memory.writes(node))
                on_host.difference_update(memory.writes(node), memory.lived_in(node))
            case Free(value=value) | Offload(value=value):
                if value in memory.resident or value != memory.root[value]:
                    raise _fail("L3", at, f"'{value}' is resident or an alias")
                if value in memory.kept:
                    raise _fail("L6", at, f"'{value}' is handed over at the end")
                if value not in on_device:
                    raise _fail("L1", at, f"'{value}' is not on the device")
                (on_device.discard if isinstance(step, Free) else on_host.add)(value)
            case Fetch(value=value):
                if value not in on_host or value in on_device:
                    raise _fail("L5", at, f"'{value}' is not on the host as it was last, or on the device already")
                on_device.add(value)
                on_host.discard(value)
    _check_order(graph, schedule.runs)
    for name in sorted(on_device - memory.kept):
        raise _fail("L7", len(schedule.steps), f"'{name}' is never freed")


def _check_order(graph: Graph, runs: Sequence[str]) -> None:
    first = list(dict.fromkeys(runs))
    if first != [n.name for n in graph.nodes]:
        raise InternalError("schedule breaks rule L2: nodes do not run first in the graph's order, or not all of them")
    backward = [name for name in runs if graph.node[name].phase is not Phase.FORWARD]
    if len(backward) != len(set(backward)):
        raise InternalError("schedule breaks rule L2: a backward node runs twice")


def _fail(rule: str, at: int, what: str) -> InternalError:
    return InternalError(f"schedule breaks rule {rule}: {what}", where=f"step {at}")
