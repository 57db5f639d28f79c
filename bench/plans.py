"""Many plans for one network, captured once, and a way to run each as `tilegrad.tile` would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import inf
from typing import Any, TypeVar
from unittest import mock

from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import choose_axes, lower_graph
from tilegrad.errors import InternalError
from tilegrad.importers import export_module
from tilegrad.modules import planned, runner, tiled
from tilegrad.modules.options import Options
from tilegrad.planners import Effort, Fit, Planning, Problem, TileSearch, TrainingStep, candidates, planners
from tilegrad.planners.tiling import Option, axis_lengths, keep_last, keepable, total_stride
from tilegrad.schedule import Schedule
from tilegrad.schedule.whole import NodeIslands
from tilegrad.sim.clock import measure_time
from tilegrad.sim.measure import known_machine
from tilegrad.sim.plain import plain_bytes
from tilegrad.sim.predict import predict
from tilegrad.sim.training import training_graph

COUNTS = {1: (2, 4, 8, 16, 32), 2: (2, 4, 8)}  # tiles along each axis, by the number of axes
KEPT = (0.0, 0.5, 0.9)  # of all tiles, the last ones
SLOW = 6.0  # times plain, predicted: what takes longer is not measured,
FEWEST = 4  # unless there are no more of these
PLANNING: Any = planned
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
        graph = training_graph(self.graph, self.graded)
        self.step = TrainingStep(graph, self.machine, Effort(nodes=0), image.is_cuda)

    @cached_property
    def plain(self) -> Plan:
        return Plan("plain", self.step.keep.time_s, self.search.plain().prediction.total_bytes, None)

    def chosen(self, budget: int) -> Plan:
        """What `tilegrad.tile(net, budget=…)` takes."""
        schedule, planning = self._planned(budget)
        assert planning is not None
        return self._plan(f"{planning.chosen.planner}: {planning.chosen.detail}", schedule)

    def _planned(self, budget: int) -> tuple[Schedule, Planning | None]:
        options = Options.parse(budget, None, None, "auto", "auto")
        return planned.plan_call(self.graph, options, self.graded, self.plain_bytes, self.device)

    def plans(self, budgets: Sequence[int], count: int) -> list[Plan]:
        """So many others: a third of them whole nodes again or on the host and mixtures, the rest tiles."""
        whole = some(list(dict.fromkeys(self._whole(budgets))), count // 3)
        return [*whole, *self._tiles(count - len(whole))]

    def _whole(self, budgets: Sequence[int]) -> Iterator[Plan]:
        names = ("segments", "recompute", "mixed", *(("offload",) if self.image.is_cuda else ()))
        for budget, name in product(budgets[::2], names):
            for found in candidates(Problem(budget, self.step, self.search, self.graph), planners()[name]):
                try:
                    yield self._finished(f"{name}: {found.detail}", self._fused(found.schedule, budget))
                except InternalError as error:
                    print(f"{name}: {found.detail} is left out: {error.what}", flush=True)

    def _fused(self, schedule: Schedule, budget: int) -> Schedule:
        if not isinstance(schedule.islands, NodeIslands):
            return schedule
        schedule = PLANNING.executable(schedule, self.graph, self.graded, budget)
        return replace(schedule, islands=dict(schedule.islands))  # nothing is left to be fused

    def _tiles(self, count: int) -> Iterator[Plan]:
        """One axis and all, few tiles and many, seams carried and chosen, none of the last tiles kept and most."""
        options = sorted(self._options(), key=lambda each: each[1].weight.seconds)
        quick = sum(option.weight.seconds <= SLOW * self.plain.seconds for _, option in options)
        known: dict[str, Fit] = {}
        for (words, option), share in some(list(product(options[: max(FEWEST, quick)], KEPT)), count):
            fit = known[words] = known.get(words) or self.search.rehearse(option)
            kept = keep_last(fit.schedule, round(share * len(keepable(fit.schedule))))
            fit = Fit(kept, predict(kept, self.graded, fit.table), fit.table)
            yield self._finished(words, fit.planned)

    def _options(self) -> Iterator[tuple[str, Option]]:
        low, axes = self.search.graph, self.search.axes
        for cut in dict.fromkeys((axes[:1], axes)):
            unit, lengths = total_stride(low, cut), axis_lengths(low, cut)
            for tiles, mode in product(COUNTS[len(cut)], self.search.modes):
                sizes = {axis: -(-lengths[axis] // (tiles * unit)) * unit for axis in cut}
                words = f"{mode}, {'x'.join([str(tiles)] * len(cut))} tiles along {','.join(cut)}"
                yield words, self.search.weigh(mode, sizes, "device", inf)[0]

    def _finished(self, words: str, schedule: Schedule) -> Plan:
        """As `tilegrad.tile` would run it, had it been chosen."""
        keep = self.step.keep
        found = Planning(self.graph, self.machine, 0, keep, (), replace(keep, schedule=schedule))
        with (
            mock.patch.object(PLANNING, "plan_module", return_value=found),
            mock.patch.object(PLANNING, "plan_once", lambda graph, machine, budget, asked, plan: plan()),
        ):
            return self._plan(words, self._planned(self.plain.bytes)[0])

    def _plan(self, words: str, schedule: Schedule) -> Plan:
        recorded = "recorded_bytes" in schedule.predicted  # as CUDA graphs
        machine = getattr(self.machine, "recorded", self.machine) if recorded else self.machine
        kept = f", {len(schedule.kept)} kept" if schedule.phases else ""
        seconds = measure_time(schedule, None, machine).total_s
        return Plan(words + kept, seconds, int(schedule.predicted["total_bytes"]), schedule)

    def runs(self, plan: Plan) -> Callable[[Tensor], Tensor]:
        """The network under a plan: what `tilegrad.tile` makes, but for capture and planning."""
        if plan.schedule is None:
            return self.net
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(tiled, "export_call", return_value=self.captured))
            stack.enter_context(mock.patch.object(runner, "plan_call", return_value=(plan.schedule, None)))
            found = tilegrad.tile(self.net)
            found.plan_for(self.image)
        return found


def some(items: Sequence[T], count: int) -> list[T]:
    """So many of them, evenly."""
    if len(items) <= count:
        return list(items)
    return [items[at * len(items) // count] for at in range(count)]
