"""Many plans for one network, captured once, and a way to run each as `tilegrad.tile` would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from typing import TypeVar
from unittest import mock

from torch import Tensor, nn

from tilegrad.bounds import choose_axes, lower_graph
from tilegrad.importers import export_module
from tilegrad.modules import runner
from tilegrad.modules.options import Options
from tilegrad.planners import Fit, Problem, TileSearch, TrainingStep, candidates, planners
from tilegrad.planners.tile import axis_lengths, total_stride
from tilegrad.planners.tiling import keep_last, keepable
from tilegrad.schedule import Schedule
from tilegrad.schedule.whole import NodeIslands
from tilegrad.sim.measure import known_machine
from tilegrad.sim.plain import plain_bytes
from tilegrad.sim.predict import predict
from tilegrad.sim.training import training_graph

COUNTS = {1: (2, 4, 8, 16, 32), 2: (2, 4, 8)}  # tiles along each axis, by the number of axes
KEPT = (0.0, 0.5, 0.9)  # of all tiles, the last ones
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """A plan and what it is predicted to cost."""

    words: str
    seconds: float
    bytes: int
    schedule: Schedule | None = field(repr=False, compare=False)  # None: plain PyTorch


class Subject:
    """A network and all that is known of it without running it."""

    def __init__(self, net: nn.Module, image: Tensor):
        self.net, self.image, self.device = net, image, image.device
        self.captured = export_module(net, (image,))
        self.graph, self.graded = self.captured.graph, self.captured.graded([image])
        self.plain_bytes = cache(lambda: plain_bytes(net, (image,), {}, train=True))
        self.machine = known_machine(str(image.device))
        low = lower_graph(self.graph)
        self.search = TileSearch(
            low, choose_axes(low), "auto", tuple(self.graded), True, self.plain_bytes, self.machine
        )
        self.step = TrainingStep(training_graph(self.graph, self.graded), self.machine, runner.QUICK, image.is_cuda)

    @cached_property
    def plain(self) -> Plan:
        return Plan("plain", self.step.keep.time_s, self.search.plain().prediction.total_bytes, None)

    def chosen(self, budget: int) -> Plan:
        """What `tilegrad.tile(net, budget=…)` takes."""
        options = Options.parse(budget, None, None, "auto", "auto")
        schedule, planning = runner.plan_call(self.graph, options, self.graded, self.plain_bytes, self.device)
        assert planning is not None
        found = planning.chosen
        return self._plan(f"{found.planner}: {found.detail}", found.time_s, schedule)

    def plans(self, budgets: Sequence[int], count: int) -> list[Plan]:
        """So many others: a third of them whole nodes again or on the host and mixtures, the rest tiles."""
        whole = some(list(dict.fromkeys(self._whole(budgets))), count // 3)
        return [*whole, *self._tiles(count - len(whole))]

    def _whole(self, budgets: Sequence[int]) -> Iterator[Plan]:
        names = ("segments", "recompute", "mixed", *(("offload",) if self.image.is_cuda else ()))
        for budget, name in product(budgets[::2], names):
            for found in candidates(Problem(budget, self.step, self.search, self.graph), planners()[name]):
                yield self._plan(f"{name}: {found.detail}", found.time_s, found.schedule)

    def _tiles(self, count: int) -> Iterator[Plan]:
        """One axis and all, few tiles and many, seams carried and chosen, none of the last tiles kept and most."""
        axes = self.search.axes
        cuts = [(cut, tiles) for cut in dict.fromkeys((axes[:1], axes)) for tiles in COUNTS[len(cut)]]
        for (cut, tiles), mode, share in some(list(product(cuts, self.search.modes, KEPT)), count):
            fit = self._rehearsed(cut, tiles, mode)
            kept = keep_last(fit.schedule, round(share * len(keepable(fit.schedule))))
            fit = Fit(kept, predict(kept, self.graded, fit.table), fit.table)
            words = f"{mode}, {'x'.join([str(tiles)] * len(cut))} tiles along {','.join(cut)}"
            yield self._plan(words, fit.seconds(self.search), fit.planned)

    @cache  # noqa: B019 - as long as the bench runs
    def _rehearsed(self, cut: tuple[str, ...], tiles: int, mode: str) -> Fit:
        low = self.search.graph
        unit, lengths = total_stride(low, cut), axis_lengths(low, cut)
        sizes = {axis: -(-lengths[axis] // (tiles * unit)) * unit for axis in cut}
        return self.search.rehearse(self.search.weigh(mode, sizes, "device"))

    def _plan(self, words: str, seconds: float, schedule: Schedule) -> Plan:
        if isinstance(schedule.islands, NodeIslands):
            schedule = runner.executable(schedule, self.graph, self.graded, None)
        kept = f", {len(schedule.kept)} kept" if schedule.phases else ""
        return Plan(words + kept, seconds, int(schedule.predicted["total_bytes"]), schedule)

    def runs(self, plan: Plan) -> Callable[[Tensor], Tensor]:
        """The network under a plan: what `tilegrad.tile` makes, but for the planning."""
        if plan.schedule is None:
            return self.net
        with mock.patch.object(runner, "plan_call", return_value=(plan.schedule, None)):
            options = Options.parse(None, None, None, "auto", "auto")
            made = runner.Runner(self.captured, options, self.graded, self.plain_bytes, self.device)
        return lambda image: made(self.captured.bind([image]), self.device, [image])


def some(items: Sequence[T], count: int) -> list[T]:
    """So many of them, evenly."""
    if len(items) <= count:
        return list(items)
    return [items[at * len(items) // count] for at in range(count)]
