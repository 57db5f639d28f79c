"""A schedule, ready to run again and again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..bounds import call_of, needed_gradients, reached_by
from ..kernels import Fused, Kernel, kernels, with_kernels
from ..ops import Call, Op, Reduction, find
from ..region import Box
from ..schedule import (
    Backward,
    Compute,
    Free,
    Island,
    IslandStep,
    Join,
    Load,
    Run,
    Schedule,
    ScheduleStep,
    Store,
    unread_nodes,
)  # fmt: skip
from .compiled import Compiled, PartStep, with_compiled
from .heap import is_tight
from .prepared import prepared
from .stores import let_go
from .stretch import Stretch, WholeChain, WholeNode, WholeStep
from .sums import PAIR

AnyStep = IslandStep | Fused | WholeStep
ProgramStep = PartStep | Compiled


class Executor:
    """A schedule, ready to run: operators looked up, and when what is held for the last time. `device`: the kind of
    device it runs on, for which there may be kernels. `compile`: options of `torch.compile`, if it shall be used."""

    def __init__(self, schedule: Schedule, device: str = "cpu", compile: Mapping[str, Any] | None = None):
        self.schedule, self.graph, self.device, self.compile = schedule, schedule.graph, device, compile
        if schedule.steps:
            weakref.finalize(self, let_go).atexit = False  # room that its values had in stores
        self.met: set[str] = set()  # islands that are compiled, as far as we got
        self.rank_programs: dict[Any, Any] = {}  # of a rank that keeps everything, by the gradients that are wanted
        self._programs: dict[str, tuple[ProgramStep, ...]] = {}
        self._plain: dict[str, bool] = {}
        self._unread: dict[str, frozenset[str]] = {}
        self._needs: dict[frozenset[str], frozenset[str]] = {}
        self._reached: dict[frozenset[str], frozenset[str]] = {}
        self._loads: dict[frozenset[str], list[tuple[str, Box]]] = {}
        self.calls: dict[str, Call] = {node.name: call_of(self.graph, node) for node in self.graph.nodes}
        self.ops: dict[str, Op] = {node.name: find(node) for node in self.graph.nodes}
        self.full = {value.name: Box.full(value.type.shape) for value in self.graph.values}
        owned = {value.name: schedule.owned(value.name) for value in self.graph.values}
        self.owned = {name: self.full[name] if box == self.full[name] else box for name, box in owned.items()}
        self.region = {value.name: schedule.region(value.name) for value in self.graph.values}
        self.last_run: dict[str, int] = {}
        self.readers: dict[str, int] = {}  # how many islands read a value whole
        made: dict[str, int] = {}
        for at, step in enumerate(schedule.steps):
            if isinstance(step, Run):
                if step.island not in self.last_run:
                    for name in schedule.islands[step.island].whole:
                        self.readers[name] = self.readers.get(name, 0) + 1
                self.last_run[step.island] = at
            elif isinstance(step, Backward):
                made |= dict.fromkeys(self.made_by(schedule.islands[step.island]), at)
        self.ends: dict[int, list[str]] = {}  # step -> values whose gradients nobody wants any more
        for name, at in made.items():
            self.ends.setdefault(at, []).append(name)
        self.read_again = frozenset(name for step in schedule.steps[schedule.turn :] for name in self._reads(step))
        writes = (name for node in self.graph.nodes for name in self.ops[node.name].writes(node))
        self.written = [name for name in dict.fromkeys(writes) if not self.graph.value[name].kind.computed]
        self.write_readers = {name: len(self.graph.consumers[name]) for name in self.written}
        self.apart = schedule.seat.shared if schedule.seat is not None else frozenset[str]()  # shared nodes
        self.draws = any(op.random for op in self.ops.values())
        self.members: dict[str, list[str]] = {}  # values by whose memory they lie in
        for value in self.graph.values:
            root = value.name
            while (alias := self.graph.value[root].alias) is not None:
                root = alias
            self.members.setdefault(root, []).append(value.name)

    def is_summed(self, name: str) -> bool:
        """Do so many islands add to the gradient of a value that half precision would not do?"""
        return self.readers.get(name, 0) > PAIR

    def program(self, island: Island) -> tuple[ProgramStep, ...]:
        """An island's steps, made once: several nodes are one step where there is a kernel for them."""
        if island.name not in self._programs:
            shared = not self.apart.isdisjoint(island.nodes)
            fused = island.steps if shared else with_kernels(island, self.graph, self.calls, self.device, offered())
            steps = [
                prepared(self, step) if isinstance(step, Compute | Fused | Join) else step
                for step in _in_stretches(self._with_whole(island, fused))
            ]
            apart = self.compile is None or island.refers is not None  # no record of a function can refer to values
            self._programs[island.name] = tuple(steps if apart else with_compiled(self, island, steps))
        return self._programs[island.name]

    def _with_whole(self, island: Island, steps: Sequence[IslandStep | Fused]) -> Iterator[AnyStep]:
        """With nodes that run whole as such."""
        all_of = set(island.whole)  # values of which everything is in hand
        for step in steps:
            for name, box in self._has(step):
                if box == self.full[name]:
                    all_of.add(name)
                else:
                    all_of.discard(name)
            found = self._whole(step)
            yield found if found is not None and all_of.issuperset((found.out, *found.reads)) else step

    def _whole(self, step: IslandStep | Fused) -> WholeStep | None:
        match step:
            case Compute(node=name, out=box, answers=None):
                call, op = self.calls[name], self.ops[name]
                written = op.writes(call.node)
                alone = op.random or call.attr("device") is not None or not call.node.reads
                alone = alone or any(self.write_readers.get(read, 1) > 1 for read in call.node.reads)
                alone = alone or name in self.apart
                return WholeNode(call, op, box, written, alone)
            case Fused(steps=steps):
                return WholeChain(step, tuple(self.calls[each.node] for each in steps), steps[-1].out)
        return None

    def _has(self, step: IslandStep | Fused) -> Iterator[tuple[str, Box]]:
        """What a step puts into an island's hands."""
        match step:
            case Compute(node=name, out=box):
                yield self.graph.node[name].outputs[0], box
            case Fused(steps=steps):
                yield from self._has(steps[-1])
            case Join(value=value, held=box) | Load(value=value, box=box):
                yield value, box
            case Free(value=value):
                yield value, Box(())

    def is_plain(self, island: Island) -> bool:
        """Does it run just as a module does: whole, by torch's own rules?"""
        if island.name not in self._plain:
            steps = self.program(island)
            self._plain[island.name] = all(isinstance(step, Stretch | WholeNode | Store | Free) for step in steps)
        return self._plain[island.name]

    def unread(self, island: Island) -> frozenset[str]:
        """Nodes that need not be run where the island runs for its backward alone."""
        if island.name not in self._unread:
            self._unread[island.name] = unread_nodes(self.graph, island)
        return self._unread[island.name]

    def needs(self, graded: frozenset[str]) -> frozenset[str]:
        """The values whose gradient is wanted, given the outside values that require one."""
        if graded not in self._needs:
            self._needs[graded] = needed_gradients(self.graph, graded)
        return self._needs[graded]

    def reached(self, outputs: frozenset[str]) -> frozenset[str]:
        """The values that a gradient of these outputs comes by."""
        if outputs not in self._reached:
            self._reached[outputs] = reached_by(self.graph, outputs)
        return self._reached[outputs]

    def made_by(self, island: Island) -> tuple[str, ...]:
        """What an island makes for others."""
        return (*island.stores, *(self.graph.node[name].outputs[0] for name in island.folds))

    def _reads(self, step: ScheduleStep) -> tuple[str, ...]:
        match step:
            case Run(island=name):
                return self.schedule.islands[name].reads(self.graph)
            case Backward(island=name):
                return self.schedule.islands[name].reads_back(self.graph)
        return ()

    def loads(self, names: frozenset[str]) -> list[tuple[str, Box]]:
        """The boxes of these values that steps read, in order."""
        if names not in self._loads:
            runs = (self.schedule.islands[s.island] for s in self.schedule.steps if isinstance(s, Run))
            steps = (step for island in runs for step in island.steps)
            found = [(step.value, step.box) for step in steps if isinstance(step, Load) and step.value in names]
            self._loads[names] = found
        return self._loads[names]

    def reduction(self, node: str) -> Reduction:
        op = self.ops[node]
        assert isinstance(op, Reduction)
        return op


def offered() -> list[Kernel]:
    """Kernels that this process may use."""
    return [kernel for kernel in kernels() if not (kernel.holes and is_tight())]


def _in_stretches(steps: Iterable[AnyStep]) -> Iterator[IslandStep | Fused | WholeNode | Stretch]:
    """Whole nodes in a row as one step; what they store is stored behind it. What is freed there must be made there:
    the rest is in other hands."""
    row: dict[str, WholeStep] = {}  # by what they make
    freed: list[str] = []
    behind: dict[str, list[IslandStep]] = {}  # by what is stored
    hidden: set[str] = set()  # inside of a kernel: nobody ever has it
    for step in steps:
        if isinstance(step, WholeNode | WholeChain) and not step.alone:
            row[step.out] = step
            hidden |= set(step.hidden)
        elif isinstance(step, Free) and step.value in hidden:
            continue
        elif isinstance(step, Store) and step.value in row:
            behind.setdefault(step.value, []).append(step)
        elif isinstance(step, Free) and step.value in behind:
            behind[step.value].append(step)
        elif isinstance(step, Free) and step.value in row:
            freed.append(step.value)
        else:
            yield from _flushed(row, freed, behind)
            row, freed, behind = {}, [], {}
            assert not isinstance(step, WholeChain)
            yield step
    yield from _flushed(row, freed, behind)


def _flushed(
    row: Mapping[str, WholeStep], freed: Sequence[str], behind: Mapping[str, Sequence[IslandStep]]
) -> Iterator[IslandStep | Fused | WholeNode | Stretch]:
    if row:
        yield Stretch(tuple(row.values()), freed)
    for stores in behind.values():
        yield from stores
