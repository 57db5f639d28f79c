"""Find the tiles whose predicted peak fits a memory budget in the least predicted time.

Families of tiles are tried in turn: samples, rows of a sample, all axes of its image; of each the fewest tiles that
fit, in multiples of the network's total stride. Where even plain execution fits, plain it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ..bounds import check_axes, label_axes, sort_nodes
from ..bounds.roles import NodePart
from ..errors import GridError
from ..ir import Graph, Kind
from ..progress import stop
from ..schedule import Schedule
from ..sim.clock import measure_time
from ..sim.machine import CPU, Machine
from ..sim.predict import Prediction, predict
from ..sim.rehearsal import Rehearsals
from .problem import Planner, Problem, Proposal
from .tiling import TileSizes, keep_last, keepable, plan_plain, plan_tiles

MOST_TILES = 1024  # in a walk: more of them cost more time than the memory they save is worth
FEW_TILES = 64  # in a walk: calling them costs next to nothing
LOSS = 2  # times the outputs: what a loss holds besides them and their gradients
GROWTH = 1.25  # from one number of tiles that is tried to the next


class Tile(Planner):
    name = "tile"
    effort = 5

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        """The fastest tiles that fit, or the smallest of all that were tried."""
        if (search := problem.tiles) is None:
            return
        tried = list[Fit]()
        try:
            fit = fit_tiles(search, problem.budget, problem.storages, tried)
        except GridError:  # nothing here has an axis that could be cut
            return
        except KeyboardInterrupt:
            stop()
            fitting = [f for f in tried if f.prediction.total_bytes <= problem.budget]
            fit = min(fitting, key=lambda f: f.seconds(search), default=None)
        best = fit or min(tried, key=lambda f: f.prediction.total_bytes, default=None)
        if best is not None:
            grids = {p.forward.tiled: p.grid for p in best.schedule.phases if p.forward is not None}
            cut = "; ".join(f"{'x'.join(map(str, grid))} along {','.join(axes)}" for axes, grid in grids.items())
            detail = f"{best.schedule.mode}, {cut}, halos on {best.schedule.storage}"
            yield Proposal(best.schedule, detail, best.prediction)

    def fastest_s(self, problem: Problem) -> float:
        """Tiles cost a forward pass more than plain."""
        return problem.tiles.least_seconds if problem.tiles is not None else 0.0


@dataclass(frozen=True)
class Fit:
    """A schedule and what it is predicted to need."""

    schedule: Schedule
    prediction: Prediction
    table: Rehearsals | None = field(default=None, repr=False)  # what its islands need

    @property
    def planned(self) -> Schedule:
        return replace(self.schedule, predicted=self.prediction.figures)

    @property
    def tiles(self) -> int:
        """In all walks."""
        return sum(prod(p.grid) for p in self.schedule.phases if p.tiled)

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
        outside = sum(v.type.bytes for v in self.graph.values if not v.kind.computed)
        grads = sum(types[name].type.bytes for name in self.graded if types[name].kind is Kind.PARAMETER)
        found = Prediction(max(0, made - grads), made + outside, 0, "plain execution", "")
        return Fit(plan_plain(self.graph, train=self.train), found)

    @cached_property
    def least_seconds(self) -> float:
        """What a step takes in a single tile: no tiles are faster."""
        return measure_time(plan_plain(self.graph, train=self.train), None, self.machine).total_s

    def tiled(self, sizes: TileSizes, storage: str) -> Fit:
        """Tiles of these sizes. Where seams are chosen, and for that the walk is cut, the smaller of both ways."""
        found = self._fit(self.mode, sizes, storage)
        if self.mode == "auto":
            carried = plan_tiles(self.graph, "stream", sizes, storage, train=self.train)
            if len(carried.phases) != len(found.schedule.phases):
                other = self._fit("stream", sizes, storage)
                return min(found, other, key=lambda f: f.prediction.total_bytes)
        return found

    def _fit(self, mode: str, sizes: TileSizes, storage: str) -> Fit:
        schedule = plan_tiles(self.graph, mode, sizes, storage, train=self.train, machine=self.machine)
        table = Rehearsals(schedule, self.graded if self.train else ())
        return Fit(schedule, predict(schedule, self.graded, table), table)

    def dialled(self, fit: Fit, budget: int) -> Fit:
        """The same tiles, as many of the last ones kept as the budget allows: more are never less memory. Room is left
        for what a loss makes of the outputs."""
        best, low, high = fit, 0, len(keepable(fit.schedule)) + 1
        budget -= LOSS * sum(self.graph.type(name).bytes for name in dict.fromkeys(self.graph.outputs))
        if not self.train or fit.prediction.total_bytes > budget:
            return fit
        while high - low > 1:
            middle = (low + high) // 2
            schedule = keep_last(fit.schedule, middle)
            found = Fit(schedule, predict(schedule, self.graded, fit.table), fit.table)
            if found.prediction.total_bytes <= budget:
                low, best = middle, found
            else:
                high = middle
        return best


def fit_tiles(search: TileSearch, budget: int, storages: Sequence[str], tried: list[Fit]) -> Fit | None:
    """The fastest tiles that fit, near storage before far; None where none do. `tried` gathers all that was tried."""
    if not search.axes:
        return None
    check_axes(search.graph, label_axes(search.graph), search.axes)
    for storage in storages:
        fits: list[Fit] = []
        for fixed, axes in _families(search):
            found = _largest(search, fixed, axes, storage, budget, tried)
            fits += [found] if found else []
            if found and found.tiles <= FEW_TILES:
                break  # more axes to cut would not make it faster
        if fits:
            return min((search.dialled(f, budget) for f in fits), key=lambda f: f.seconds(search))
    return None


def _families(search: TileSearch) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
    """Sizes that are fixed, and axes whose tile size is sought. Samples first: they have no halos."""
    image = tuple(a for a in search.axes if a != "n")
    batch = axis_lengths(search.graph, ("n",)).get("n", 1) if search.samples or "n" in search.axes else 1
    fixed = {"n": 1} if batch > 1 else {}
    if batch > 1:
        yield {}, ("n",)
    for axes in dict.fromkeys((image[:1], image)):
        if axes:
            yield fixed, axes


def _largest(
    search: TileSearch,
    fixed: dict[str, int],
    axes: tuple[str, ...],
    storage: str,
    budget: int,
    tried: list[Fit],
) -> Fit | None:
    """The fewest tiles that fit, by bisection over their number per axis."""
    lengths, unit = axis_lengths(search.graph, axes), total_stride(search.graph, axes)
    longest = max(lengths.values())
    most = min(longest // unit, int(MOST_TILES ** (1 / len(axes))))
    counts = sorted({max(1, round(GROWTH**k)) for k in range(1, 40) if round(GROWTH**k) < most} | {max(1, most)})
    counts = counts if fixed else [n for n in counts if n > 1]
    low, high, best = -1, len(counts), None  # counts[low] does not fit, counts[high] does
    while high - low > 1:
        middle = (low + high) // 2
        size = -(-longest // (counts[middle] * unit)) * unit
        fit = search.tiled({**fixed, **{axis: min(n, size) for axis, n in lengths.items()}}, storage)
        tried.append(fit)
        if fit.prediction.total_bytes <= budget:
            high, best = middle, fit
        else:
            low = middle
    return best


def axis_lengths(graph: Graph, axes: Sequence[str]) -> dict[str, int]:
    dims = label_axes(graph).dims
    found = {a: max((graph.shape(v)[d[a]] for v, d in dims.items() if a in d), default=0) for a in axes}
    return {a: n for a, n in found.items() if n}


def total_stride(graph: Graph, axes: Sequence[str]) -> int:
    """How many input elements the coarsest value steps over: cuts at its multiples give tiles of one shape."""
    labels = label_axes(graph)
    roles = sort_nodes(graph, labels, axes)
    local = [n.outputs[0] for n in graph.nodes if roles.part[n.name] is NodePart.LOCAL]
    lengths = axis_lengths(graph, axes)
    ratios = [lengths[a] / graph.shape(v)[labels.dims[v][a]] for v in local for a in axes]
    return max(1, round(max(ratios, default=1)))
