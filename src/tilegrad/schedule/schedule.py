"""A schedule: steps over islands. Tiles, whole nodes, recompute, copies to other stores and all mixtures are one type.

Planners make schedules, the predictor and the executor walk them; `rules` says when one is sound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from typing import NamedTuple

from ..bounds import call_of, share_of
from ..ir import Graph
from ..ops import find
from ..region import Box
from ..units import format_sizes
from .island import Island
from .phase import TilePhase
from .steps import Backward, Finish, Free, Move, Run, ScheduleStep, Turn


class Storage:
    """Where halos and values between phases are kept: the stores that come with tilegrad, by name."""

    DEVICE, HOST, DISK = ALL = "device", "host", "disk"


class Islands(Mapping[str, Island]):
    """The islands of phases, made when they are asked for."""

    def __init__(self, phases: Sequence[TilePhase]):
        self._makers = {
            phase.name(tile, backward=backward): (phase, tile, backward)
            for phase in phases
            for backward in (False, True)
            for tile in phase.tiles(backward=backward)
        }
        self._made: dict[str, Island] = {}

    def __getitem__(self, name: str) -> Island:
        if name not in self._made:
            phase, tile, backward = self._makers[name]
            self._made[name] = phase.island(tile, backward=backward)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class Seat:
    """One rank's place in a mesh: which box of each value it owns, and which it holds (with margins for what it reads
    of others); all of it where nothing is said. `mute`: outputs whose gradient counts on another rank; `tail`: nodes
    whose gradients are made on the first rank alone (`bounds.placement`, rule P5); `shared`: those of it whose channels
    ranks share (rule P6), the ranks that differ along `axes`, of which this is number `place[0]` of `place[1]`."""

    rank: int
    owned: Mapping[str, Box] = field(repr=False)
    regions: Mapping[str, Box] = field(repr=False)
    mute: frozenset[str] = frozenset()
    tail: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    axes: frozenset[str] = frozenset()
    place: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Schedule:
    """The steps of a forward pass and, behind `Turn`, of its backward pass. `phases`: the walks that its islands are
    tiles of."""

    graph: Graph = field(repr=False)
    mode: str
    phases: tuple[TilePhase, ...] = ()
    storage: str = Storage.DEVICE
    predicted: Mapping[str, int | float] = field(default_factory=dict)
    steps: tuple[ScheduleStep, ...] = field(default=(), repr=False)
    islands: Mapping[str, Island] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()  # what the planner has to say: its gap, that it was stopped
    seat: Seat | None = None  # on a mesh: whose schedule this is
    gap: float | None = None  # how far from the least time it may be, as a share of it, where the planner knows

    def owned(self, value: str) -> Box:
        """What is ours of a value."""
        full = Box.full(self.graph.shape(value))
        return full if self.seat is None else self.seat.owned.get(value, full)

    def region(self, value: str) -> Box:
        """What is here of a value."""
        full = Box.full(self.graph.shape(value))
        return full if self.seat is None else self.seat.regions.get(value, full)

    @cached_property
    def turn(self) -> int:
        """The place of `Turn`; the end where there is no backward pass."""
        return next((at for at, step in enumerate(self.steps) if isinstance(step, Turn)), len(self.steps))

    @cached_property
    def trains(self) -> bool:
        return any(isinstance(step, Backward) for step in self.steps)

    @property
    def early(self) -> bool:
        """Do gradients of weights have their memory from the beginning of a step on?"""
        return "early_bytes" in self.predicted

    @cached_property
    def kept(self) -> frozenset[str]:
        """Islands whose record stays from the forward pass to their backward."""
        found = {step.island for step in self.steps[: self.turn] if isinstance(step, Run) and step.keep}
        again = {step.island for step in self.steps[self.turn :] if isinstance(step, Run) and step.keep}
        return frozenset(found - again)

    @cached_property
    def written(self) -> dict[int, frozenset[str]]:
        """By step: what an island that runs writes. Before the turn all that it stores; behind it, where it runs once
        more, what was freed, and is read before it is freed again."""
        root, wanted, uses = _roots(self.graph), self._wanted, self._uses
        gone: dict[str, set[str]] = {}  # and not read since: the islands that have made their parts of it
        found: dict[int, frozenset[str]] = {}
        for at, step in enumerate(self.steps):
            match step:
                case Run(island=name) if at < self.turn:
                    found[at] = uses[name].stores
                case Run(island=name):
                    used = uses[name]
                    makes = [v for v in used.makes & wanted[at] if name not in gone.get(v, (name,))]
                    found[at] = frozenset(v for v in used.stores if root[v] in makes) if makes else _NONE
                    for value in makes:
                        gone[value].add(name)
                    for value in used.reads:
                        gone.pop(value, None)
                case Backward(island=name):
                    for value in uses[name].reads_back:
                        gone.pop(value, None)
                case Free(value=value):
                    gone[value] = set()
                case Move(value=value, store=Storage.DEVICE):
                    gone.pop(value, None)
        return found

    @cached_property
    def _wanted(self) -> dict[int, frozenset[str]]:
        """By step behind the turn that runs an island: of what it stores, the memories that are read before they are
        freed, or before the same island makes its part of them once more."""
        uses, found = self._uses, dict[int, frozenset[str]]()
        read: dict[str, set[str] | None] = {}  # what is read next, and the islands that make their parts of it before
        for at in reversed(range(self.turn, len(self.steps))):
            match self.steps[at]:
                case Run(island=name):
                    used = uses[name]
                    found[at] = frozenset(v for v in used.makes if v in read and name not in (read[v] or ()))
                    for value in found[at]:
                        read[value] = makers = read[value] or set()
                        makers.add(name)
                    read.update(dict.fromkeys(used.reads))
                case Backward(island=name):
                    read.update(dict.fromkeys(uses[name].reads_back))
                case Free(value=value) | Move(value=value, store=Storage.DEVICE):
                    read.pop(value, None)
                case Move(value=value):
                    read[value] = None
        return found

    @cached_property
    def _uses(self) -> dict[str, _Uses]:
        """By island: found once for all of a kind."""
        root, graph, kinds = _roots(self.graph), self.graph, dict[int, _Uses]()
        found: dict[str, _Uses] = {}
        for step in self.steps:
            if isinstance(step, Run | Backward) and step.island not in found:
                island = self.islands[step.island]
                if (kind := id(island.kind)) not in kinds:
                    kinds[kind] = _Uses.of(island, graph, root)
                found[step.island] = kinds[kind]
        return found

    @cached_property
    def remade(self) -> Again:
        """Values that are freed before the turn, and made once more behind it, or more than once."""
        runs = [(name, self.steps[at]) for at, names in self.written.items() if at > self.turn for name in names]
        return Again(frozenset(name for name, _ in runs), len(runs) > len(set(runs)))

    def is_for_backward(self, at: int) -> bool:
        """Does an island run here for its backward alone, which comes next?"""
        step = self.steps[at]
        following = self.steps[at + 1] if at + 1 < len(self.steps) else None
        comes = isinstance(step, Run) and isinstance(following, Backward) and following.island == step.island
        return comes and not self.written[at]

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """Into how many tiles phases are cut, the most of all, and along which axes: ("up to 3x3", "h,w")."""
        grids: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
        for phase in self.phases:
            if phase.forward is not None:
                grids.setdefault(phase.forward.tiled, set()).add(phase.grid)
        return [
            (f"{'up to ' if len(found) > 1 else ''}{format_sizes(max(found, key=prod))}", ",".join(axes))
            for axes, found in grids.items()
        ]

    @property
    def runs(self) -> tuple[str, ...]:
        """Islands in the order they run."""
        return tuple(step.island for step in self.steps if isinstance(step, Run))

    @cached_property
    def whole_share(self) -> float:
        """The share of all bytes that is made by whole nodes."""
        tiled = {node.name for phase in self.phases if phase.tiled for node in (*phase.nodes, *phase.folds)}
        return share_of(self.graph, lambda node: node.name not in tiled)

    @cached_property
    def work(self) -> float:
        """Arithmetic of the forward pass relative to running every node once."""
        plain = done = 0.0
        once: set[str] = set()
        for phase in self.phases:
            for node in phase.nodes:
                call = call_of(self.graph, node)
                cost = find(node).flops(call)
                size = call.out.size
                if node.name not in once:
                    plain += cost * size
                    once.add(node.name)
                done += cost * (phase.forward.computed(node.outputs[0]) if phase.forward else size)
        return done / plain if plain else 1.0


class _Uses(NamedTuple):
    """What an island stores; and the memories of that, of what it reads, and of what its backward reads."""

    stores: frozenset[str]
    makes: frozenset[str]
    reads: frozenset[str]
    reads_back: frozenset[str]

    @classmethod
    def of(cls, island: Island, graph: Graph, root: Mapping[str, str]) -> _Uses:
        names = island.stores, island.reads(graph), island.reads_back(graph)
        return cls(frozenset(island.stores), *(frozenset(root[name] for name in each) for each in names))


_NONE = frozenset[str]()


def _roots(graph: Graph) -> dict[str, str]:
    """The value in whose memory each lies."""
    found: dict[str, str] = {}
    for value in graph.values:
        found[value.name] = found[value.alias] if value.alias is not None else value.name
    return found


@dataclass(frozen=True)
class Again:
    """Stored values that go after their last reader forward, and are made once more for backward. `fleeting`: those
    that are only made for others to be made go once more, and are made once more again for their own backward."""

    values: frozenset[str] = frozenset()
    fleeting: bool = False


KEPT = Again()  # nothing is made again


def phase_steps(
    graph: Graph,
    phases: Sequence[TilePhase],
    *,
    train: bool,
    keep: frozenset[str] = frozenset(),
    again: Again = KEPT,
) -> tuple[ScheduleStep, ...]:
    """All phases in order and, to train, in reverse order: islands of `keep` have their records still, the others run
    once more. What is stored goes after the last phase that reads it, and is made again if `again` says so."""
    groups: list[Group] = []
    for phase in phases:
        steps = [*phase.runs(keep if train else ()), *(Finish(fold.name) for fold in phase.folds)]
        groups.append((steps, forward_uses(phase)))
    groups.append(([Turn()], {*graph.outputs, *(new for _, new in graph.updates)}))
    uses = [(read_uses(phase), backward_uses(phase, keep)) for phase in phases]
    remade: dict[int, frozenset[str]] = {}
    order = BackwardOrder([phase.stores for phase in phases], uses)
    for at, bits in order(again) if train else ():
        if bits:
            made = remade[len(groups)] = frozenset(order.names[place] for place in places(bits))
            groups.append((phases[at].runs(), uses[at][0] | made))
        else:
            groups.append((phases[at].backwards(keep), uses[at][1]))
    return with_frees(graph, phases, groups, remade)


Group = tuple[Sequence[ScheduleStep], set[str]]  # steps, and the stored values that they use


def with_frees(
    graph: Graph,
    phases: Sequence[TilePhase],
    groups: Sequence[Group],
    remade: Mapping[int, frozenset[str]] | None = None,
) -> tuple[ScheduleStep, ...]:
    """What phases store goes after the last group that uses it, and after the last before one that makes it once more
    (`remade`); what is handed over stays."""
    last: dict[str, int] = {}
    frees: set[tuple[str, int]] = set()
    for at, (_, uses) in enumerate(groups):
        frees |= {(name, last[name]) for name in (remade or {}).get(at, ())}
        last |= {name: at for name in uses if graph.value[name].kind.computed}
    frees |= set(last.items())
    stored = {name for phase in phases for name in phase.made} - {*graph.outputs, *(new for _, new in graph.updates)}
    found: list[ScheduleStep] = []
    for at, (steps, uses) in enumerate(groups):
        found += [*steps, *(Free(name) for name in sorted(uses) if name in stored and (name, at) in frees)]
    return tuple(found)


class BackwardOrder:
    """What phases do behind the turn. `stores`, `reads`: of each phase, what it stores, and what it reads forward and
    backward. Asked of the same phases many times, so sets of values are bits of a number."""

    def __init__(self, stores: Sequence[Collection[str]], reads: Sequence[tuple[Collection[str], Collection[str]]]):
        self.names = sorted({name for names in stores for name in names})
        self._bit = {name: 1 << at for at, name in enumerate(self.names)}
        self._stores = [self.bits(names) for names in stores]
        self.reads = [(self.bits(forward), self.bits(backward)) for forward, backward in reads]
        self._maker = {1 << bit: at for at, bits in enumerate(self._stores) for bit in places(bits)}

    def bits(self, names: Collection[str]) -> int:
        return sum(self._bit[name] for name in names if name in self._bit)

    def __call__(self, again: Again, most: float = inf) -> list[tuple[int, int]]:
        """In reverse order, a phase's backward (and 0), and before it those that run once more, with what each of them
        makes for it. No more than about so many are listed."""
        remade, fleeting = self.bits(again.values), again.fleeting
        there = served = 0  # made; read by a backward since
        found: list[tuple[int, int]] = []

        def make(names: int) -> None:
            nonlocal there
            while (missing := names & remade & ~there) and len(found) <= most:
                at = self._maker[missing & -missing]
                made = self._stores[at] & remade & ~there & (names if fleeting else remade)
                there |= made
                make(self.reads[at][0])
                found.append((at, made))

        for at in reversed(range(len(self._stores))):
            make(self.reads[at][1])
            served |= self.reads[at][1]
            if fleeting:
                there &= served
            found.append((at, 0))
        return found


def places(bits: int) -> Iterator[int]:
    """Which bits are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def forward_uses(phase: TilePhase) -> set[str]:
    return read_uses(phase) | set(phase.made)


def read_uses(phase: TilePhase) -> set[str]:
    beside = {name for fold in phase.folds for name in fold.reads[1:]}
    return {*phase.boxed, *phase.whole, *beside}


def backward_uses(phase: TilePhase, keep: frozenset[str]) -> set[str]:
    again = any(phase.name(tile, backward=True) not in keep for tile in phase.tiles(backward=True))
    folded = {fold.reads[0] for fold in phase.folds}
    return {*phase.boxed, *phase.whole, *folded} if again else folded & set(phase.stores)
