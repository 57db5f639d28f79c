"""A schedule, ready to run again and again."""

from __future__ import annotations

from ..bounds import call_of
from ..kernels import Fused, with_kernels
from ..ops import Call, Op, Reduction, find
from ..region import Box
from ..schedule import Backward, Island, IslandStep, Run, Schedule, ScheduleStep


class Executor:
    """A schedule, ready to run: operators looked up, and when what is held for the last time. `device`: the kind of
    device it runs on, for which there may be kernels."""

    def __init__(self, schedule: Schedule, device: str = "cpu"):
        self.schedule, self.graph, self.device = schedule, schedule.graph, device
        self._programs: dict[str, tuple[IslandStep | Fused, ...]] = {}
        self.calls: dict[str, Call] = {node.name: call_of(self.graph, node) for node in self.graph.nodes}
        self.ops: dict[str, Op] = {node.name: find(node) for node in self.graph.nodes}
        self.full = {value.name: Box.full(value.type.shape) for value in self.graph.values}
        self.owned = {value.name: schedule.owned(value.name) for value in self.graph.values}
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
        self.members: dict[str, list[str]] = {}  # values by whose memory they lie in
        for value in self.graph.values:
            root = value.name
            while (alias := self.graph.value[root].alias) is not None:
                root = alias
            self.members.setdefault(root, []).append(value.name)

    def program(self, island: Island) -> tuple[IslandStep | Fused, ...]:
        """An island's steps, made once: several nodes are one step where there is a kernel for them."""
        if island.name not in self._programs:
            self._programs[island.name] = with_kernels(island, self.graph, self.calls, self.device)
        return self._programs[island.name]

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

    def reduction(self, node: str) -> Reduction:
        op = self.ops[node]
        assert isinstance(op, Reduction)
        return op
