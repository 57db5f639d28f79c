"""Find the largest tile whose predicted peak fits a memory budget.

Two families are tried, rows only and tiles along all axes, each by bisection over multiples of the network's total
stride; the larger tile wins, and at equal size the one with fewer cuts. Where even plain execution fits, plain it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from .bounds import check_axes, label_axes, sort_nodes
from .bounds.roles import Part
from .errors import BudgetError
from .ir import Graph, Kind
from .planners import TileSizes, plan_plain, plan_tiles
from .runtime import Prediction, predict
from .schedule import Schedule, Storage
from .units import format_bytes

MOST_TILES = 1024  # in a walk: more of them cost more time than the memory they save is worth


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


@dataclass(frozen=True)
class Search:
    """What to fit: a lowered graph, the axes that may be cut, and which outside values need gradients."""

    graph: Graph
    axes: tuple[str, ...]
    mode: str
    graded: tuple[str, ...]
    train: bool
    plain_bytes: Callable[[], int]  # what plain execution allocates: measured on the module itself, without data

    def plain(self) -> Fit:
        made, types = self.plain_bytes(), self.graph.value
        outside = sum(v.type.bytes for v in self.graph.values if not v.kind.computed)
        grads = sum(types[name].type.bytes for name in self.graded if types[name].kind is Kind.PARAMETER)
        found = Prediction(max(0, made - grads), made + outside, 0, "plain execution", "")
        return Fit(plan_plain(self.graph), found)

    def tiled(self, sizes: TileSizes, storage: Storage) -> Fit:
        schedule = plan_tiles(self.graph, self.mode, sizes, storage)
        return Fit(schedule, predict(schedule, self.graded, train=self.train))


def fit_budget(search: Search, budget: int, storages: Sequence[Storage]) -> Schedule:
    """The schedule with the largest tile that fits; `BudgetError` says what the smallest would be."""
    plain = search.plain()
    if plain.prediction.total_bytes <= budget:
        return plain.planned
    tried: list[Fit] = [plain]
    if search.axes:
        check_axes(search.graph, label_axes(search.graph), search.axes)
        for storage in storages:
            fits = [
                found for family in _families(search) if (found := _largest(search, family, storage, budget, tried))
            ]
            if fits:
                return max(fits, key=lambda f: (_area(search.graph, f), -len(_cut_axes(f)))).planned
    raise _nothing_fits(budget, tried)


def _families(search: Search) -> Iterator[tuple[str, ...]]:
    yield search.axes[:1]
    if len(search.axes) > 1:
        yield search.axes


def _largest(search: Search, axes: tuple[str, ...], storage: Storage, budget: int, tried: list[Fit]) -> Fit | None:
    """Bisection over the tile size, in units of the total stride."""
    lengths, unit = _lengths(search.graph, axes), _stride(search.graph, axes)
    high, best = max(1, -(-max(lengths.values()) // unit)), None
    low = int(high / MOST_TILES ** (1 / len(axes)))  # smaller tiles are never tried
    while high - low > 1:
        middle = (low + high) // 2
        fit = search.tiled({axis: min(n, middle * unit) for axis, n in lengths.items()}, storage)
        tried.append(fit)
        if fit.prediction.total_bytes <= budget:
            low, best = middle, fit
        else:
            high = middle
    return best


def _lengths(graph: Graph, axes: Sequence[str]) -> dict[str, int]:
    dims = label_axes(graph).dims
    return {a: max(graph.shape(v)[d[a]] for v, d in dims.items() if a in d) for a in axes}


def _stride(graph: Graph, axes: Sequence[str]) -> int:
    """How many input elements the coarsest value steps over: cuts at its multiples give tiles of one shape."""
    labels = label_axes(graph)
    roles = sort_nodes(graph, labels, axes)
    local = [n.outputs[0] for n in graph.nodes if roles.part[n.name] is Part.LOCAL]
    lengths = _lengths(graph, axes)
    ratios = [lengths[a] / graph.shape(v)[labels.dims[v][a]] for v in local for a in axes]
    return max(1, round(max(ratios, default=1)))


def _cut_axes(fit: Fit) -> tuple[str, ...]:
    return next((p.forward.tiled for p in fit.schedule.phases if p.forward is not None), ())


def _area(graph: Graph, fit: Fit) -> float:
    """Size of a tile as a share of the image."""
    return 1.0 / max((prod(p.grid) for p in fit.schedule.phases if p.tiled), default=1)


def _nothing_fits(budget: int, tried: Sequence[Fit]) -> BudgetError:
    best = min(tried, key=lambda f: f.prediction.total_bytes).prediction
    return BudgetError(
        f"nothing fits {format_bytes(budget)}: the smallest plan found needs {format_bytes(best.total_bytes)}",
        where=f"{best.worst}, {best.worst_node}",
        hint=f'budget="{-(-best.total_bytes // 2**20)}MiB", halos="disk", or a smaller batch',
    )
