"""Find the tiles that fit a memory budget in the least predicted time.

Samples, the longest axis of a sample, all axes of its image; few tiles to many, until more are no faster, in multiples
of the network's total stride; seams carried or where they cost least: all are weighed in closed form, with as many of
the last tiles kept as there is room for. The fastest that should fit is rehearsed; what that teaches counts for the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from ..errors import GridError
from ..ir import Graph, Kind
from ..schedule import KEPT, Again, Schedule, Storage, TilePhase
from ..sim.clock import measure_time
from ..sim.machine import CPU, Machine
from ..sim.memory import Prediction
from ..sim.rehearsal import Rehearsals
from .problem import Planner, Problem, Proposal
from .tiling import (
    GROWTH,
    MOST_ISLANDS,
    USUAL,
    Between,
    Family,
    Guesses,
    Option,
    Scale,
    TileSizes,
    Walks,
    cut_tiles,
    families,
    fit_tiles,
    keep_last,
    keepable,
    levels,
    make_schedule,
    plan_plain,
)

LOSS = 2  # times the outputs: what a loss holds besides them and their gradients
SAVED = 0.005  # of a step's time: what more tiles kept would save at most, and is not looked for
FULL = 0.015  # of a budget: so little room is not looked at
DIALLED = 5  # numbers of tiles kept that are looked at, at most
HALVED = 3  # the one that is half way, whatever was learned by then
MANY_PHASES = 3  # in tiles: then each has tiles of its own size
SPARE = 1.06  # times the least bytes that are weighed: of such tiles the fewest are called the smallest
MARGIN = 0.9  # of a budget: what few tiles should fit in, for they are weighed less well


class Tile(Planner):
    name = "tile"
    effort = 5

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        """The fastest tiles that fit, or the smallest of all that were tried."""
        if (search := problem.tiles) is None:
            return
        try:
            best = fit_tiles(search, problem.budget, problem.storages) or search.smallest(problem.storages)
        except GridError:  # nothing here has an axis that could be cut
            return
        if best is not None:
            cut = "; ".join(f"{many} along {axes}" for many, axes in best.schedule.cuts)
            remade = len(best.schedule.remade.values)
            again = f", {remade} stored values made again" if remade else ""
            detail = f"{best.schedule.mode}, {cut}, halos on {best.schedule.storage}{again}"
            yield Proposal(best.schedule, detail, best.prediction)

    def fastest_s(self, problem: Problem) -> float:
        """Tiles cost a forward pass more than plain, but for the memory that is new to it each time."""
        return problem.tiles.least_seconds if problem.tiles is not None else 0.0


@dataclass(frozen=True)
class Fit:
    """A schedule and what it is predicted to need."""

    schedule: Schedule
    prediction: Prediction
    table: Guesses | None = field(default=None, repr=False)  # what its islands need

    @property
    def planned(self) -> Schedule:
        return replace(self.schedule, predicted=self.prediction.figures)

    def seconds(self, search: TileSearch) -> float:
        """Predicted time of a step."""
        return measure_time(self.schedule, None, search.machine).total_s


@dataclass(frozen=True)
class TileSearch:
    """What to fit: a lowered graph, the axes that may be cut, and which outside values need gradients."""

    graph: Graph
    axes: tuple[str, ...]
    mode: str
    graded: tuple[str, ...]
    train: bool
    plain_bytes: Callable[[], int]  # what plain execution allocates: measured on the module itself, without data
    machine: Machine = CPU
    samples: bool = True  # may a batch be cut into samples?

    def plain(self) -> Fit:
        made, types = self.plain_bytes(), self.graph.value
        outside = self.graph.outside_bytes(whole=self.graph.inputs)
        grads = sum(types[name].type.bytes for name in self.graded if types[name].kind is Kind.PARAMETER)
        found = Prediction(max(0, made - grads), made + outside, 0, "plain execution", "")
        return Fit(plan_plain(self.graph, train=self.train), found)

    @cached_property
    def least_seconds(self) -> float:
        """What a step takes in a single tile that is kept, if its memory were not new each time: none are faster."""
        machine, plain = replace(self.machine, fresh_bytes_per_s=None), plan_plain(self.graph, train=self.train)
        return measure_time(keep_last(plain, len(keepable(plain))), None, machine).total_s

    @cached_property
    def walks(self) -> Walks:
        return Walks(self.graph)

    @cached_property
    def scale(self) -> Scale:
        return Scale(self.graph, self.graded, self.train, self.machine)

    @cached_property
    def loss_bytes(self) -> int:
        """Room for what a loss makes of the outputs."""
        return LOSS * sum(self.graph.type(name).bytes for name in dict.fromkeys(self.graph.outputs))

    def cut(self, sizes: TileSizes, storage: str) -> Schedule:
        """Tiles of these sizes, whatever they need."""
        mode = self.modes[0]
        return self._schedule(mode, self._cut_into(mode, sizes, USUAL), storage, KEPT)

    def _schedule(self, mode: str, phases: tuple[TilePhase, ...], storage: str, again: Again) -> Schedule:
        return make_schedule(self.graph, "stream" if mode == "auto" else mode, phases, storage, self.train, again)

    def tiled(self, sizes: TileSizes, storage: str, budget: float = inf) -> Fit:
        """Tiles of these sizes: the faster seams, or those that need least where the others do not fit."""
        options = [o for mode in self.modes for o in self.weigh(mode, sizes, storage, budget)]
        fits = sorted((self.rehearse(option) for option in options), key=_peak)
        return next((fit for fit in reversed(fits) if _peak(fit) <= budget), fits[0])

    @property
    def modes(self) -> tuple[str, ...]:
        return ("auto", "stream") if self.mode == "auto" else (self.mode,)

    def weigh(
        self,
        mode: str,
        sizes: TileSizes,
        storage: str,
        budget: float,
        between: Between = USUAL,
        larger: Sequence[TileSizes] = (),
    ) -> list[Option]:
        """These tiles, with nothing made again or as little as a budget asks for. `larger`: other sizes, the largest
        first; phases whose tiles need less than those of others may take them."""
        phases = self._cut_into(mode, sizes, between)
        mixed = self._with_larger(phases, mode, larger, storage, between)
        return [
            Option(mode, storage, each, weight, again)
            for each in ((phases,) if mixed is None else (phases, mixed))
            for again, weight in self.scale.weigh_within(each, storage, budget)
        ]

    def _with_larger(
        self,
        phases: tuple[TilePhase, ...],
        mode: str,
        larger: Sequence[TileSizes],
        storage: str,
        between: Between,
    ) -> tuple[TilePhase, ...] | None:
        """Each phase in the largest tiles that need no more than those of the phase that needs most."""
        near, tiled = storage == Storage.DEVICE, {at for at, phase in enumerate(phases) if phase.tiled}
        if len(tiled) < MANY_PHASES or not larger:
            return None
        most, found = max(self.scale.most_bytes(phases[at], near) for at in tiled), list(phases)
        for sizes in larger:
            others = self._cut_into(mode, sizes, between)
            if not _are_alike(phases, others):  # where others are kept whole
                continue
            fitting = {at for at in tiled if self.scale.most_bytes(others[at], near) <= most}
            for at in fitting:
                found[at] = others[at]
            tiled -= fitting
        return tuple(found) if any(a is not b for a, b in zip(found, phases, strict=True)) else None

    def _cut_into(self, mode: str, sizes: TileSizes, between: Between) -> tuple[TilePhase, ...]:
        key = mode, tuple(sizes.items()), between
        if key not in self._cut:
            self._cut[key] = cut_tiles(self.walks, mode, sizes, self.machine, between=between)
        return self._cut[key]

    @cached_property
    def _cut(self) -> dict[tuple[object, ...], tuple[TilePhase, ...]]:
        return {}

    @cached_property
    def families(self) -> list[Family]:
        """All sizes that are weighed."""
        return [*families(self.graph, self.axes, self.samples)]

    def floor(self, storage: str) -> float:
        """No tiles need less of what usually lies between phases."""
        return self.scale.floor(next(self._some_tiles(USUAL)), storage)

    def _some_tiles(self, between: Between, at: int = 0) -> Iterator[tuple[TilePhase, ...]]:
        """Few (0) or many (-1), along one axis or all."""
        for sizes in [family.few[at] for family in self.families if family.few] or [{}]:
            yield self._cut_into(self.modes[0], sizes, between)

    def between(self, storage: str, budget: float, least: Callable[[], float] = lambda: inf) -> Iterator[Between]:
        """What may lie between phases: as much as many tiles should leave room for, as few tiles, or half way. `least`:
        seconds of a step that is known by then; what takes longer however it is cut is not asked for."""
        if storage != Storage.DEVICE or not self.train:
            yield from [USUAL] if self.floor(storage) <= budget else []
            return
        found = levels(self.graph, self.scale.stock(next(self._some_tiles(USUAL))))
        tried = sorted({min(len(found) - 1, round(GROWTH**k) - 1) for k in range(20)})
        many = self._first_to_fit(found, tried, -1, budget, least)
        if many is None:
            return
        yield found[many]
        few = self._first_to_fit(found, [at for at in tried if at >= many], 0, MARGIN * budget, least)
        for at in sorted({many if few is None else few, many if few is None else (many + few) // 2} - {many}):
            if self._computed_s(found[at]) < least():
                yield found[at]

    def _first_to_fit(
        self, found: Sequence[Between], tried: Sequence[int], tiles: int, budget: float, least: Callable[[], float]
    ) -> int | None:
        """Of what may lie between phases, what leaves room for tiles; where nothing does, what leaves most. The further
        one goes, the less is stored, and the more is computed: None where that takes longer than is known to do."""

        def fits(at: int) -> bool:
            if self.scale.floor(next(self._some_tiles(found[at], tiles)), Storage.DEVICE) > budget:
                return False
            options = (self.scale.weigh_within(p, Storage.DEVICE, budget) for p in self._some_tiles(found[at], tiles))
            return any(weight.total_bytes <= budget for option in options for _, weight in option)

        for at in tried if budget > 0 else ():
            if self._computed_s(found[at]) >= least():
                return None
            if fits(at):
                return at
        return tried[-1]

    def _computed_s(self, between: Between) -> float:
        """Forward and backward of all phases, in no matter how many tiles, all of them kept, if calls took no time."""
        axes = tuple(self.families[-1].every[0]) if self.families and self.families[-1].every else ()
        parts = self.walks.parts(axes, complete=self.modes[0] != "gather", stored=between.stored, fluid=between.fluid)
        return self.scale.computed_s([node for part in parts for node in part.nodes])

    def smallest(self, storages: Sequence[str]) -> Fit | None:
        """The tiles that need least of all that are weighed, or a little more if they are far fewer."""
        if not self.axes:
            return None
        sizes = [size for family in self.families for size in (*family.few, *family.many[-1:])]
        between = next(self.between(storages[-1], 0.0), USUAL)
        every = [o for size in sizes for mode in self.modes for o in self.weigh(mode, size, storages[-1], 0.0, between)]
        options = [option for option in every if option.tiles <= MOST_ISLANDS] or every[:1]
        if not options:
            return None
        least = min(option.weight.total_bytes for option in options)
        near = [option for option in options if option.weight.total_bytes <= SPARE * least]
        return self.rehearse(min(near, key=lambda o: (o.tiles, o.weight.total_bytes)))

    def rehearse(self, option: Option) -> Fit:
        schedule = self._schedule(option.mode, option.phases, option.storage, option.again)
        table = self._table(schedule)
        return Fit(schedule, table.predict(schedule, option.weight.total_bytes), table)

    def _table(self, schedule: Schedule) -> Guesses:
        return Guesses(schedule, self.scale, Rehearsals(schedule, self.scale.graded))

    def dialled(self, fit: Fit, budget: int) -> Fit:
        """The same tiles, as many of the last ones kept as the budget allows: more are never less memory. Room is left
        for what a loss makes of the outputs."""
        budget -= self.loss_bytes
        if not self.train or _peak(fit) > budget:
            return fit
        best, low, high = fit, 0, len(keepable(fit.schedule)) + 1
        table = fit.table or self._table(fit.schedule)
        weight = self.scale.weigh(fit.schedule.phases, fit.schedule.storage, fit.schedule.remade)
        weighed = [(weight.total_bytes, _peak(fit))]  # and found, of `low` tiles kept and of `high`
        for tries in range(DIALLED):
            if (high - low - 1) * weight.kept_seconds <= SAVED * weight.seconds:
                break
            guess = _between(weighed, budget, flat=low == 0) if tries != HALVED else None
            middle = (low + high) // 2 if guess is None else weight.keep(guess)[0]
            middle = min(max(middle, low + 1), high - 1)
            schedule, about = keep_last(fit.schedule, middle), weight.with_kept(middle)
            learned = weighed[-1][1] / weighed[-1][0]
            found = Fit(schedule, table.predict(schedule, learned * about), table)
            if _peak(found) > budget:
                high, weighed = middle, [weighed[0], (about, _peak(found))]
            else:
                low, best, weighed = middle, found, [(about, _peak(found)), *weighed[1:]]
                if budget - _peak(best) < FULL * budget:
                    break
        return best


def _are_alike(phases: Sequence[TilePhase], others: Sequence[TilePhase]) -> bool:
    """The same nodes in the same phases?"""
    pairs = zip(phases, others, strict=False)
    return len(phases) == len(others) and all(a.nodes is b.nodes and a.stores == b.stores for a, b in pairs)


def _between(known: Sequence[tuple[float, int]], budget: float, *, flat: bool) -> float | None:
    """What may be weighed so that about a budget is found, given what was found of less and perhaps of more; None where
    that says nothing. `flat`: with less something else decides, so it does not tell how much each tile adds."""
    (less, needed), *others = known
    if not others:
        return less * budget / needed
    more, too_much = others[0]
    if more <= less:
        return None
    room = (1 - FULL / 2) * budget
    return more * room / too_much if flat else less + (more - less) * (room - needed) / (too_much - needed)


def _peak(fit: Fit) -> int:
    return fit.prediction.total_bytes
