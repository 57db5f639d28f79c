"""The tiles that fit a budget in the least time: which are weighed, and which of those are rehearsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import TYPE_CHECKING

from ...bounds import check_axes, label_axes
from ...progress import stop
from ...schedule import KEPT, Again, TilePhase
from .again import Between
from .sizes import MOST_TILES, Family
from .weigh import SURE
from .weight import Weight

if TYPE_CHECKING:
    from ..tile import Fit, TileSearch

MOST_ISLANDS = 16384  # in all walks together
IDLE = 2  # numbers of tiles that fit and are no faster: then more are not weighed
NEAR = 1.02  # times the least time: of such tiles the fewest are taken, with what they store near by
REHEARSED = 5  # at most: the first is nearly always within some percent of what was weighed
RIVALS = 2  # of what was rehearsed and found slower than it was weighed
MISTRUST = 0.8  # of what was weighed, before anything was rehearsed: what may turn out to fit


@dataclass(frozen=True)
class Option:
    """Tiles that were weighed."""

    mode: str
    storage: str
    phases: tuple[TilePhase, ...] = field(repr=False)
    weight: Weight
    again: Again = KEPT

    def seconds(self, budget: float) -> float:
        """With as many tiles kept as fit."""
        return self.weight.keep(budget)[1]

    @property
    def tiles(self) -> int:
        return sum(prod(phase.grid) for phase in self.phases)


def fit_tiles(search: TileSearch, budget: int, storages: Sequence[str]) -> Fit | None:
    """The fastest tiles that fit, few where few do, wherever values are kept between phases; None where none fit."""
    if not search.axes:
        return None
    check_axes(search.graph, label_axes(search.graph), search.axes)
    for patience in (IDLE, MOST_TILES):  # what should have fitted does not: then all others, too
        options = _options(search, storages, budget, patience)
        found = _fastest(search, options, budget)
        if found is not None:
            try:
                return _against_rivals(search, search.dialled(found, budget), options, budget)
            except KeyboardInterrupt:
                stop()
                return found
    return None


def _against_rivals(search: TileSearch, found: Fit, options: Sequence[Option], budget: int) -> Fit:
    """Where fewer tiles can be kept than was thought: what may be faster than that."""
    best, seconds, room = found, found.seconds(search), SURE * (budget - search.loss_bytes)
    left = [o for o in options if o.weight.total_bytes <= room and not _is_of(o, found)]
    for _ in range(RIVALS):
        faster = [o for o in left if NEAR * o.seconds(room) < seconds]
        if not faster:
            break
        option = min(faster, key=lambda o: o.seconds(room))
        left.remove(option)
        fit = search.rehearse(option)
        if fit.prediction.total_bytes <= budget:
            fit = search.dialled(fit, budget)
            if (took := fit.seconds(search)) < seconds:
                best, seconds = fit, took
    return best


def _is_of(option: Option, fit: Fit) -> bool:
    grids = [[phase.grid for phase in phases] for phases in (option.phases, fit.schedule.phases)]
    return grids[0] == grids[1] and option.storage == fit.schedule.storage


def _options(search: TileSearch, storages: Sequence[str], budget: int, patience: int) -> list[Option]:
    """All tiles that are weighed. Where values are kept far away few ways are possible, so these come first: of those
    near by only what may be faster is looked at, unless what should fit did not."""
    found: dict[str, list[Option]] = {storage: [] for storage in storages}

    def least() -> float:
        if patience > IDLE:
            return inf
        every = (option for options in found.values() for option in options)
        return min((o.seconds(budget) for o in every if o.weight.total_bytes <= SURE * budget), default=inf)

    for storage in reversed(storages):
        for between in search.between(storage, budget, least):
            for family in search.families:
                found[storage] += _weighed(search, family, storage, budget, between, patience)
    return [option for options in found.values() for option in options]


def _weighed(
    search: TileSearch, family: Family, storage: str, budget: int, between: Between, patience: int
) -> Iterator[Option]:
    """Few tiles to many, until more of them fit and are no faster, so many numbers of them one after another, nor would
    be if all their memory were there already. Of tiles that are far too large the next ones are left out: what a tile
    needs shrinks no faster than the tile."""
    least, idle, largest, larger = inf, 0, inf, [family.whole]
    for sizes in family.every:
        if prod(sizes.values()) > largest:
            continue
        options: list[Option] = []
        for mode in search.modes:  # the second is for where the first does not fit
            weighed = search.weigh(mode, sizes, storage, budget, between, larger)
            options += (option for option in weighed if option.tiles <= MOST_ISLANDS)
            if any(o.weight.total_bytes <= SURE * budget for o in options):
                break
        larger.append(sizes)
        yield from options
        fitting = [(o.seconds(budget), o.weight.fresh_s) for o in options if o.weight.total_bytes <= budget]
        seconds = min((each for each, _ in fitting), default=inf)
        idle = idle + 1 if least <= seconds < inf else 0
        least = min(least, seconds)
        if idle >= patience and least <= min(each - fresh for each, fresh in fitting):
            return
        if least == inf and options:
            fixed = search.scale.floor(options[0].phases, storage)
            need = MISTRUST * min(o.weight.total_bytes for o in options) - fixed
            if need > budget - fixed:
                largest = prod(sizes.values()) * max(0.0, budget - fixed) / need


def _fastest(search: TileSearch, options: list[Option], budget: int) -> Fit | None:
    """Rehearse what is fastest of what should fit; where nothing should, what is smallest."""
    trust = MISTRUST  # what is needed, as a share of what was weighed
    nearest = list(dict.fromkeys(o.storage for o in options))
    for _ in range(REHEARSED):
        fitting = [o for o in options if trust * o.weight.total_bytes <= budget]
        if not fitting:
            return None
        sure = [o for o in fitting if max(1.0, trust) * o.weight.total_bytes <= budget]
        if sure:
            room = (budget - search.loss_bytes) / max(1.0, trust)
            least = min(o.seconds(room) for o in sure)
            alike = [o for o in sure if o.seconds(room) <= NEAR * least]
            option = min(alike, key=lambda o: (nearest.index(o.storage), o.tiles))
        else:
            option = min(fitting, key=lambda o: (o.weight.total_bytes, o.weight.seconds))
        again, weight = option.again, option.weight
        if again.values:
            room = budget / max(1.0, trust)
            again, weight = search.scale.without_need(option.phases, option.storage, again, room)
        fit = search.rehearse(replace(option, again=again, weight=weight))
        if fit.prediction.total_bytes <= budget:
            return fit
        trust = max(trust, fit.prediction.total_bytes / weight.total_bytes)
        options = [o for o in options if o is not option]
    return None
