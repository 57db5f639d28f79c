"""From a schedule over a training graph to one over its forward graph, which can be executed.

The backward node of a forward node becomes the `Backward` of its island. What runs together is fused: nodes that run
one after another whenever they run, and whose backward nodes find all that they read without a gap since the last time,
are one island under one autograd record. Nothing is fused across a value that is freed or moved in between, so that no
memory is held longer than planned; but a rectifier, which kernels make where its input lies, needs none itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..bounds import call_of
from ..ir import Graph, Node, Phase
from ..ops import find
from ..ops.pointwise import RECTIFIERS
from ..region import Box
from .island import Island
from .phase import with_frees
from .schedule import Schedule
from .steps import Backward, Compute, Free, IslandStep, Move, Run, ScheduleStep, Store, Turn
from .whole import DEVICE, roots_of


def fuse(plan: Schedule, forward: Graph, *, alone: Collection[str] = (), apart: bool = False) -> Schedule:
    """`forward`: the graph that was differentiated. `alone`: nodes that stay islands by themselves; `apart`: all do."""
    return _Fuse(plan, forward, forward.node if apart else alone).schedule()


@dataclass
class _Node:
    """Where a forward node runs, and where its backward does."""

    runs: list[int] = field(default_factory=list)
    back: int | None = None
    kept: int | None = None  # the run whose record its backward uses


class _Fuse:
    def __init__(self, plan: Schedule, forward: Graph, alone: Collection[str]):
        self.plan, self.training, self.roots = plan, plan.graph, roots_of(plan.graph)
        known = self.training.value
        values = tuple(replace(v, alias=known[v.name].alias) if v.name in known else v for v in forward.values)
        self.graph = replace(forward, values=values)
        self.where = self._find()
        self.steps = plan.steps
        self.aliases: dict[str, str] = {}  # memory of gradients that is away, and what we call it
        self.gradients: dict[str, list[str]] = {}  # by their memory: of which values
        for name, root in self.roots.root.items():
            if (of := _of_gradient(name)) in self.graph.value:
                self.gradients.setdefault(root, []).append(of)
        self.refers = {name: self._refers(self.graph.node[name]) for name in self.where}
        self.groups = self._groups(alone)
        self.group = {name: at for at, group in enumerate(self.groups) for name in group}
        self.islands = {island.name: island for island in map(self._island, self.groups)}
        self.name = {name: _name(group) for group in self.groups for name in group}

    def _find(self) -> dict[str, _Node]:
        found = {n.name: _Node() for n in self.graph.nodes}
        for at, step in enumerate(self.plan.steps):
            if isinstance(step, Run):
                if step.island in found:
                    found[step.island].runs.append(at)
                elif (of := str(self.training.node[step.island].attrs.get("of", ""))) in found:
                    found[of].back = at
        for name, node in found.items():
            if node.back is not None:
                before = [at for at in node.runs if at < node.back]
                hidden = f"{name}.saved" in self.training.node[name].outputs
                node.kept = before[-1] if hidden else before[0]
        return found

    def _refers(self, node: Node) -> frozenset[str]:
        """What a node reads and makes that the plan has there for its backward."""
        back = self.training.node.get(f"{node.name}.backward")
        root = self.roots.root
        wanted = {root[name] for name in back.reads} if back is not None else set()
        names = (*node.reads, *node.outputs)
        return frozenset(n for n in names if root[n] in wanted or root[n] in self.roots.resident)

    # -- which nodes are one island ------------------------------------------------------------------------------------

    def _groups(self, alone: Collection[str]) -> list[list[str]]:
        gone = self._gone()
        order = [n.name for n in self.graph.nodes]
        steady = {name: name not in alone and self._steady(name, gone) for name in order}
        found: list[list[str]] = []
        for name in order:
            group = found[-1] if found else []
            if group and steady[name] and steady[group[-1]] and self._follows(group, name):
                group.append(name)
            else:
                found.append([name])
        return found

    def _gone(self) -> dict[str, list[int]]:
        """Where each root is freed or moved."""
        found: dict[str, list[int]] = {}
        for at, step in enumerate(self.steps):
            if isinstance(step, Free | Move):
                found.setdefault(step.value, []).append(at)
        return found

    def _steady(self, name: str, gone: Mapping[str, Sequence[int]]) -> bool:
        """What its backward reads stays there from the last time it runs."""
        node = self.where[name]
        if node.back is None:
            return True
        roots, last = {self.roots.root[v] for v in self.refers[name]} | {f"{name}.saved"}, node.runs[-1]
        return last < node.back and not any(last < at < node.back for root in roots for at in gone.get(root, ()))

    def _follows(self, group: Sequence[str], name: str) -> bool:
        """Is nothing in between, neither forward nor backward, whenever they run, but frees of what the group itself
        made, or of anything where nothing is made?"""
        made = {root for member in group for root in self.roots.writes(member)}
        before, runs = self.where[group[-1]].runs, self.where[name].runs
        if len(before) != len(runs):
            return False
        light = self._is_light(group[-1], name)
        for first, then in zip(before, runs, strict=True):
            between = self.steps[first + 1 : then]
            if first > then or not all(isinstance(s, Free) and (light or s.value in made) for s in between):
                return False
        backs = [at for member in group if (at := self.where[member].back) is not None]
        back = self.where[name].back
        if back is None or not backs:
            return True
        return back < min(backs) and all(isinstance(step, Free) for step in self.steps[back + 1 : min(backs)])

    def _is_light(self, before: str, name: str) -> bool:
        """Is it made where a convolution's or a norm's result lies, which nobody else wants?"""
        node, maker = self.graph.node[name], self.graph.node[before]
        source = maker.outputs[0]
        alone = node.reads == (source,) and len(self.graph.consumers[source]) == 1 and source not in self.graph.outputs
        return alone and node.op in RECTIFIERS and (find(maker).dense or maker.op == "batch_norm")

    def _island(self, group: Sequence[str]) -> Island:
        nodes = [self.graph.node[name] for name in group]
        made = {v for node in nodes for v in node.outputs}
        inside = {node.name for node in nodes}
        ends = {*self.graph.outputs, *(new for _, new in self.graph.updates)}
        alone = len(group) == 1
        steps: list[IslandStep] = []
        for node in nodes:
            out = node.outputs[0]
            full = Box.full(self.graph.shape(out))
            reads = find(node).needs(call_of(self.graph, node), full)
            steps.append(Compute(node.name, full, reads or tuple(Box.full(self.graph.shape(v)) for v in node.reads)))
            if alone or out in ends or any(n.name not in inside for n in self.graph.consumers[out]):
                steps.append(Store(out, full))
        whole = frozenset(v for node in nodes for v in node.reads if v not in made)
        refers = self.refers[group[0]] if alone else None
        return Island(_name(group), tuple(with_frees(self.graph, steps, whole)), whole, refers)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        steps: list[ScheduleStep] = []
        turned = False
        moved: set[str] = set()
        for at, step in self._behind_islands():
            backward = isinstance(step, Run) and self.training.node[step.island].phase is not Phase.FORWARD
            if backward and not turned:
                steps.append(Turn())
                turned = True
            if isinstance(step, Run):
                steps += self._run(at, step.island)
            elif isinstance(step, Free | Move) and (value := self._called(step.value, at)) is not None:
                if isinstance(step, Move):
                    steps.append(Move(value, step.store))
                    (moved.discard if step.store == DEVICE else moved.add)(value)
                    if step.store == DEVICE:
                        self.aliases.pop(step.value, None)
                elif value in self.graph.value or value in moved:
                    steps.append(Free(value))
        if not turned:
            steps.append(Turn())
        plan = self.plan
        found = Schedule(
            self.graph, plan.mode, steps=tuple(steps), islands=self.islands, notes=plan.notes, gap=plan.gap
        )
        return replace(found, steps=tuple(self._useful(found)))

    def _behind_islands(self) -> Iterator[tuple[int, ScheduleStep]]:
        """The plan's steps and their places; what is freed between nodes of an island comes behind it."""
        inside, late = False, list[tuple[int, ScheduleStep]]()
        for at, step in enumerate(self.steps):
            if inside and isinstance(step, Free):
                late.append((at, step))
                continue
            yield at, step
            inside = isinstance(step, Run) and step.island in self.where and self._last_of(step.island) != step.island
            if not inside:
                yield from late
                late.clear()

    def _last_of(self, name: str) -> str:
        return self.groups[self.group[name]][-1]

    def _useful(self, schedule: Schedule) -> Iterator[ScheduleStep]:
        """Without the frees of what is not there: inside an island, or made again for nothing."""
        there: set[str] = set()
        for at, step in enumerate(schedule.steps):
            if isinstance(step, Run):
                there |= {self.roots.root[v] for v in schedule.written[at]}
            elif isinstance(step, Move) and step.store == DEVICE:
                there.add(step.value)
            elif isinstance(step, Free) and step.value in self.graph.value:
                if step.value not in there:
                    continue
                there.discard(step.value)
            yield step

    def _run(self, at: int, name: str) -> list[ScheduleStep]:
        if name in self.where:
            group = self.groups[self.group[name]]
            if len(group) == 1:
                return [Run(name, keep=self.where[name].kept == at)]
            last = at == self.where[name].runs[-1]
            keep = last and any(self.where[member].back is not None for member in group)
            return [Run(self.name[name], keep=keep)] if name == group[-1] else []
        of = str(self.training.node[name].attrs.get("of", ""))
        if of not in self.where:
            return []  # it brings the gradients of the outputs
        first = next(m for m in self.groups[self.group[of]] if self.where[m].back is not None)
        return [Backward(self.name[of])] if of == first else []

    def _called(self, value: str, at: int) -> str | None:
        """What the executor calls a piece of memory; None where it looks after it by itself."""
        if value in self.graph.value or value.endswith(".saved"):
            return value
        if value in self.aliases:  # as it was called when it went away
            return self.aliases[value]
        for head in self.gradients.get(value, ()):
            if self._waits(head, at):
                self.aliases[value] = f"{head}.grad"
                return f"{head}.grad"
        return None

    def _waits(self, value: str, at: int) -> bool:
        """Is the gradient of a value still needed?"""
        maker = self.graph.producer.get(value)
        back = self.where[maker.name].back if maker is not None else None
        return back is not None and back > at


def _of_gradient(name: str) -> str:
    """ "x.grad" and "x.grad.2" -> "x"."""
    head, dot, tail = name.rpartition(".grad")
    return head if dot and (not tail or tail[1:].isdigit()) else ""


def _name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]}..{group[-1]}"
