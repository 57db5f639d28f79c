"""Find the tiles whose predicted peak fits a memory budget in the least predicted time.

Families of tiles are tried in turn: samples, rows of a sample, all axes of its image; of each the fewest tiles that
fit, in multiples of the network's total stride. Where even plain execution fits, plain it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from ..bounds import check_axes, label_axes, sort_nodes
from ..bounds.roles import Part
from ..errors import BudgetError
from ..ir import Graph, Kind
from ..planners import TileSizes, plan_plain, plan_tiles
from ..runtime import Prediction, predict
from ..schedule import Schedule, Storage
from ..sim.machine import CPU, Machine
from ..sim.tiled import tiled_seconds
from ..units import format_bytes

MOST_TILES = 1024  # in a walk: more of them cost more time than the memory they save is worth
FEW_TILES = 64  # in a walk: calling them costs next to nothing
GROWTH = 1.25  # from one number of tiles that is tried to the next


@dataclass(frozen=True)
class Fit:
    """A schedule and what it is predicted to need."""

    schedule: Schedule
    prediction: Prediction

    @property
    def planned(self) -> Schedule:
        found = self.prediction
        figures = {"peak_bytes": found.peak_bytes, "total_bytes": found.total_bytes, "halo_bytes": found.halo_bytes}
        return replace(self.schedule, predicted=figures)

    @property
    def tiles(self) -> int:
        """In the longest walk."""
        return max((prod(p.grid) for p in self.schedule.phases if p.tiled), default=1)

    def seconds(self, search: Search) -> float:
        """Predicted time of a step."""
        return tiled_seconds(self.schedule, search.machine, train=search.train)


@dataclass(frozen=True)
class Search:
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
        return Fit(plan_plain(self.graph), found)

    @cached_property
    def least_seconds(self) -> float:
        """What a step takes in a single tile: no tiles are faster."""
        return tiled_seconds(plan_plain(self.graph), self.machine, train=self.train)

    def tiled(self, sizes: TileSizes, storage: Storage) -> Fit:
        schedule = plan_tiles(self.graph, self.mode, sizes, storage)
        return Fit(schedule, predict(schedule, self.graded, train=self.train))


def fit_budget(search: Search, budget: int, storages: Sequence[Storage]) -> Schedule:
    """The fastest tiles that fit, or plain; `BudgetError` says what the smallest would be."""
    plain = search.plain()
    if plain.prediction.total_bytes <= budget:
        return plain.planned
    tried: list[Fit] = [plain]
    best = fit_tiles(search, budget, storages, tried)
    if best is None:
        raise _nothing_fits(budget, tried)
    return best.planned


def fit_tiles(search: Search, budget: int, storages: Sequence[Storage], tried: list[Fit]) -> Fit | None:
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
            return min(fits, key=lambda f: f.seconds(search))
    return None


def _families(search: Search) -> Iterator[tuple[dict[str, int], tuple[str, ...]]]:
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
    search: Search,
    fixed: dict[str, int],
    axes: tuple[str, ...],
    storage: Storage,
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
    local = [n.outputs[0] for n in graph.nodes if roles.part[n.name] is Part.LOCAL]
    lengths = axis_lengths(graph, axes)
    ratios = [lengths[a] / graph.shape(v)[labels.dims[v][a]] for v in local for a in axes]
    return max(1, round(max(ratios, default=1)))


def _nothing_fits(budget: int, tried: Sequence[Fit]) -> BudgetError:
    best = min(tried, key=lambda f: f.prediction.total_bytes).prediction
    return BudgetError(
        f"nothing fits {format_bytes(budget)}: the smallest plan found needs {format_bytes(best.total_bytes)}",
        where=f"{best.worst}, {best.worst_node}",
        hint=f'budget="{-(-best.total_bytes // 2**20)}MiB", halos="disk", or a smaller batch',
    )
