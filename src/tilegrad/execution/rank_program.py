"""A rank's forward pass where everything is kept, as a flat list of calls, made once: backward is autograd's.

Nodes run on the boxes that the schedule gives them, and meetings (`Meeting`) stand where ranks exchange halos or
combine reductions. Autograd goes back through all of it in the opposite order, on every rank alike: what is recorded
last comes first. So no rank waits for a call that another makes in another order (rule D5), as long as every rank has a
part of everything (`MeshPlan.full`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import InternalError
from ..ops import Place
from ..ops.frame import cropped
from ..region import Box
from ..schedule import Exchange, Finish, Fold, Run, Store, Sum
from .buckets import Bucket, in_buckets
from .by_channels import shared_convs
from .compiled import frame_of
from .executor import Executor, ProgramStep
from .meeting import FoldPart, HeldValue, Meeting
from .messages import named_dtypes
from .prepared import TileChain, TileNode
from .stretch import Stretch, WholeNode
from .tail import Tail, Threshold

if TYPE_CHECKING:
    from .rank_pass import RankPass

Function = Callable[["RankPass", list[Tensor]], Sequence[Tensor]]


@dataclass
class Entry:
    """A call: its arguments and results are slots; `dead`: nobody reads these behind it."""

    function: Function
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    dead: tuple[int, ...] = ()


@dataclass
class _Gathering:
    """Steps of a schedule that become one meeting."""

    folds: list[Finish] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


class RankProgram:
    """`needs`: the values whose gradient is wanted. `outside`: slots of values that come as they are."""

    def __init__(self, executor: Executor, needs: frozenset[str], device: torch.device):
        self.executor, self.needs, self.device, self.graph = executor, needs, device, executor.graph
        self.dtypes = named_dtypes(executor.graph.value)
        self.entries: list[Entry] = []
        self.outside: list[tuple[str, int]] = []
        self.size = 0
        self._have: dict[str, list[tuple[Box, int]]] = {}
        self._early: set[int] = set()
        self._folded: dict[str, Box] = {}  # by node: what is folded
        self._hulls = self._all_boxes()
        forth = executor.schedule.steps[: executor.schedule.turn]
        self._moved = {value for step in forth if isinstance(step, Exchange) for value in step.values}
        self._tail, self._behind = Tail(executor.schedule), False  # is what is built now of the tail?
        self._shared = shared_convs(executor, needs)
        self._weights = {conv.weight for conv in self._shared.values()}  # these tell of their gradients themselves
        steps = executor.schedule.steps
        sums = [step for step in steps if isinstance(step, Sum) and step.later and step.value not in self._weights]
        self._crossed: dict[int, int] = {}  # slots of what the tail reads, by what they are before it
        each = in_buckets(executor, sums, needs, self._tail.mute)
        self._buckets = {n: bucket for bucket in each for n in bucket.names}
        self._build()
        self.outputs = {name: self._get(name, executor.owned[name]) for name in self._wanted()}
        self._find_dead()

    @property
    def shared(self) -> frozenset[str]:
        """What is made where all ranks go back, also those whose gradients count elsewhere."""
        return self._tail.makes if self._tail.is_shared else frozenset()

    def _wanted(self) -> list[str]:
        names = dict.fromkeys((*self.graph.outputs, *(new for _, new in self.graph.updates)))
        return [name for name in names if name in self.graph.producer or name in self.needs]

    def _all_boxes(self) -> dict[str, Box]:
        """What is computed of a value, in all phases together."""
        found: dict[str, Box] = {}
        for island in self.executor.schedule.islands.values():
            for step in self.executor.program(island):
                if isinstance(step, TileNode):
                    found[step.out] = step.step.out.hull(found.get(step.out, step.step.out))
        return found

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _put(self, value: str, box: Box) -> int:
        self._have.setdefault(value, []).append((box, self.size))
        self.size += 1
        return self.size - 1

    def _find(self, value: str, box: Box) -> tuple[Box, int] | None:
        """The latest that is there and holds a box: with margins that have come, where any have."""
        return next((each for each in reversed(self._have.get(value, ())) if each[0].holds(box)), None)

    def _get(self, value: str, box: Box) -> int:
        if value not in self._have and value not in self.graph.producer:
            self._enter(value)
        found = self._find(value, box)
        if found is None:
            raise InternalError(f"'{value}' is read and not there: {box}", where=self.graph.name)
        have, slot = found
        if have == box:
            return slot
        frame = frame_of(have, box)
        self._add(lambda _, tensors: (cropped(tensors[0], frame),), (slot,), (self._put(value, box),))
        return self.size - 1

    def _read(self, value: str, box: Box) -> int:
        """For a node."""
        slot, tail, bucket = self._get(value, box), self._tail, self._buckets.get(value)
        crosses = self._behind and value in self.needs and value in tail.carries and value not in tail.makes
        if not crosses or (bucket.first if bucket is not None else value in self._weights):
            return slot
        if slot not in self._crossed:
            self._crossed[slot], self.size = self.size, self.size + 1
            threshold = Threshold(value, tail.mute, tail.is_shared)
            self._add(_crossing(threshold), (slot,), (self._crossed[slot],))
        return self._crossed[slot]

    def _enter(self, value: str) -> None:
        """A value of the caller's, and with it those whose gradients are added up together."""
        bucket = self._buckets.get(value)
        if bucket is None:
            self.outside.append((value, self._put(value, self.executor.owned[value])))
            return
        gives = tuple(self._put(name, self.executor.owned[name]) for name in bucket.names)
        self._add(_entrance(bucket), (), gives)

    def _add(self, function: Function, takes: Iterable[int], gives: Iterable[int], *, early: bool = False) -> None:
        """`early`: what is made of a value before its halos have come does not stand for what later phases make."""
        self.entries.append(Entry(function, tuple(takes), tuple(gives)))
        if early or not self._early.isdisjoint(self.entries[-1].takes):
            self._early.update(self.entries[-1].gives)

    def _find_dead(self) -> None:
        last = {slot: at for at, entry in enumerate(self.entries) for slot in (*entry.takes, *entry.gives)}
        kept = set(self.outputs.values())
        for at, entry in enumerate(self.entries):
            every = dict.fromkeys((*entry.takes, *entry.gives))
            entry.dead = tuple(slot for slot in every if last[slot] == at and slot not in kept)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        before, runs = self._gathered()
        for gathering in before:
            self._meet(gathering)
        for step, behind in runs:
            island = self.executor.schedule.islands[step.island]
            self._behind = self._tail.holds(island.nodes)
            for each in self.executor.program(island):
                self._step(each)
            self._behind = False
            for gathering in behind:
                self._meet(gathering)

    def _gathered(self) -> tuple[list[_Gathering], list[tuple[Run, list[_Gathering]]]]:
        """What ranks tell each other before all runs, and behind each: reductions where they are due, and halos as soon
        as they are made."""
        behind: list[list[_Gathering]] = [[]]
        runs: list[Run] = []
        made: dict[str, tuple[int, int]] = {}  # behind which run a value is there, and behind which gathering there
        last, place = tuple[str, ...](), _Gathering()
        for step in self.executor.schedule.steps[: self.executor.schedule.turn]:
            match step:
                case Run(island=name):
                    runs.append(step)
                    behind.append([])
                    stores = self.executor.schedule.islands[name].stores
                    made |= dict.fromkeys(stores, (len(runs), 0))
                case Finish(node=name):
                    behind[-1] = behind[-1] or [_Gathering()]
                    behind[-1][0].folds.append(step)
                    made[self.graph.node[name].outputs[0]] = (len(runs), 1)
                case Exchange(values=values):
                    if last != values:  # else its next axis
                        run, least = max(made.get(value, (0, 0)) for value in values)
                        free = [g for g in behind[run][least:] if not g.exchanges]
                        place = free[0] if free else _Gathering()
                        behind[run] += [] if free else [place]
                    place.exchanges.append(step)
            last = step.values if isinstance(step, Exchange) else ()
        return behind[0], list(zip(runs, behind[1:], strict=True))

    def _step(self, step: ProgramStep) -> None:
        match step:
            case TileNode():
                self._compute(step)
            case TileChain():
                takes = [self._read(*read) for reads in step.reads for read in reads]
                out = self._put(step.out, step.fused.steps[-1].out)
                self._add(_chain(step, self.device), takes, (out,), early=step.out in self._moved)
            case Stretch():
                takes = [self._whole(name) for name in step.reads]
                gives = [self._put(name, box) for name, box in step.makes]
                early = any(name in self._moved for name, _ in step.makes)
                self._add(_stretch(step), takes, gives, early=early)
            case WholeNode():
                takes = [self._whole(name) for name in step.reads]
                shared = self._shared.get(step.call.node.name)
                function = _whole_node(step) if shared is None else shared.run
                self._add(function, takes, (self._put(step.out, step.box),), early=step.out in self._moved)
            case Fold(node=name, box=box):
                self._folded[name] = box
            case Store(value=value) if value not in self._have:
                raise InternalError(f"'{value}' is stored and not there", where=self.graph.name)

    def _whole(self, value: str) -> int:
        return self._read(value, self.executor.full[value])

    def _compute(self, node: TileNode) -> None:
        """Once for all phases that use it, where what it reads is there."""
        step, box = node.step, self._hulls[node.out]
        if (known := self._find(node.out, step.out)) is not None and known[1] not in self._early:
            return
        raw = node.op.needs(node.call, box) if box != step.out else None
        reads = [(n, r.clip(self.graph.shape(n))) for n, r in zip(node.call.node.reads, raw or (), strict=False)]
        if raw is None or any(self._missing(*read) for read in reads):
            box, raw, reads = step.out, step.reads, list(node.reads)
        place = Place(box, tuple(raw), 0, self.device)
        takes, early = [self._read(*read) for read in reads], node.out in self._moved
        self._add(_node(node, place), takes, (self._put(node.out, box),), early=early)

    def _missing(self, value: str, box: Box) -> bool:
        have = self.executor.owned[value] if value not in self.graph.producer and value not in self._have else None
        return self._find(value, box) is None if have is None else not have.holds(box)

    # -- meetings ------------------------------------------------------------------------------------------------------

    def _meet(self, gathering: _Gathering) -> None:
        moved = dict.fromkeys(s.value for step in gathering.exchanges for s in (*step.gives, *step.takes))
        owned, region = self.executor.owned, self.executor.region
        spreads = [HeldValue(value, owned[value], region[value]) for value in moved]
        takes = [self._get(value, owned[value]) for value in moved]
        parts = [self._part(step, list(moved), takes) for step in gathering.folds]
        if not spreads and not parts:
            return
        meeting = Meeting(spreads, parts, gathering.exchanges, self.dtypes, self.device, self._tail.goes_back)
        gives = [self._put(spread.value, spread.region) for spread in spreads]
        for part in parts:
            out = part.call.node.outputs[0]
            gives.append(self._put(out, owned[out]))
        self._add(lambda run, tensors: meeting(run.peers, tensors), takes, gives)
        self._early.difference_update(gives)

    def _part(self, step: Finish, moved: list[str], takes: list[int]) -> FoldPart:
        """`takes`: slots that the meeting reads, to which are added those that a reduction reads besides."""
        call, op, box = self.executor.calls[step.node], self.executor.reduction(step.node), self._folded[step.node]
        source, *names = call.node.reads
        place = Place(self.executor.owned[call.node.outputs[0]], (box,))

        def also(value: str, wanted: Box) -> int:
            takes.append(self._get(value, wanted))
            return len(takes) - 1

        shared = source in moved and self.executor.owned[source] == box
        at = moved.index(source) if shared else also(source, box)
        others = [also(*pair) for pair in zip(names, op.beside(call, box), strict=True)]
        return FoldPart(call, op, place, step.axes, at, tuple(others))


def _node(node: TileNode, place: Place) -> Function:
    op, call = node.op, node.call
    if op.random:
        name = call.node.name
        return lambda run, tensors: (op.run(call, tensors, replace(place, seed=run.seed_of(name))),)
    return lambda _, tensors: (op.run(call, tensors, place),)


def _chain(chain: TileChain, device: torch.device) -> Function:
    kernel, calls, counts = chain.fused.kernel, chain.calls, [len(reads) for reads in chain.reads]
    place = Place(chain.first.out, chain.first.reads, 0, device)

    def run(_: RankPass, tensors: list[Tensor]) -> tuple[Tensor]:
        given = iter(tensors)
        return (kernel.run(calls, [[next(given) for _ in range(count)] for count in counts], place),)

    return run


def _stretch(stretch: Stretch) -> Function:
    return lambda _, tensors: [tensor for _, tensor, _ in stretch.run(tensors)]


def _whole_node(step: WholeNode) -> Function:
    op, call, name = step.op, step.call, step.call.node.name

    def run(run: RankPass, tensors: list[Tensor]) -> tuple[Tensor]:
        return (op.run_whole(call, tensors, run.seed_of(name) if op.random else 0, run.device),)

    return run


def _entrance(bucket: Bucket) -> Function:
    def enter(run: RankPass, _: list[Tensor]) -> Sequence[Tensor]:
        found = bucket.enter(run.arrivals, [run.tensors[name] for name in bucket.names], run.device)
        return run.behind_end(found) if bucket.first else found

    return enter


def _crossing(threshold: Threshold) -> Function:
    return lambda run, tensors: run.behind_end(threshold.cross(run.arrivals, tensors[0]))
