"""Plan a captured module for one input shape: what the options ask for, as the executor runs it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from ..bounds import check_axes, label_axes, lower_graph
from ..errors import BudgetError
from ..execution import Executor
from ..execution.early import early_bytes
from ..execution.graphs import copied_bytes, why_not
from ..execution.heap import asked_for
from ..garbage import no_collections
from ..ir import Graph
from ..planners import (
    Candidate,
    Effort,
    Fit,
    Planning,
    Problem,
    Slack,
    TileSearch,
    TrainingStep,
    fuse_within,
    plan_keep,
    plan_step,
    tiles_too_large,
)  # fmt: skip
from ..planners.tiling import TileSizes
from ..progress import Progress
from ..schedule import Schedule, Storage, check_schedule
from ..schedule.whole import NodeIslands, whole_bytes
from ..sim.clock import measure_time
from ..sim.machine import Machine
from ..sim.measure import known_machine
from ..sim.predict import predict
from ..sim.training import training_graph
from ..units import format_bytes
from .options import Options
from .plan_file import Planned, plan_once
from .process import plan_for_process
from .reserved import between_bytes

EARLY = 16  # th of a budget: so much gradients of weights may have from the beginning of a step
LOUD = 0.1  # of the predicted peak: from here on the log says what runs whole
SLACK = 0.01  # of what a step allocates
WORTH = 1.03  # times a recorded step: from here on one that is not recorded takes so much longer that it pays
QUICK = Effort(nodes=0)  # a module is planned when it is first called: the heuristic, which is near the best
_log = logging.getLogger("tilegrad")


@no_collections()
def plan_call(
    graph: Graph, options: Options, graded: Sequence[str], plain: Callable[[], int], device: torch.device
) -> Planned:
    """What the options ask for, as the executor runs it. `graph`: as captured; `graded`: the outside values that need a
    gradient; `plain`: what plain execution allocates."""
    ask = Ask(graph, options, tuple(graded), plain, device, known_machine(str(device)))
    if options.mode == "none" or (options.tile is None and ask.budget is None):
        return ask.plan()  # there is nothing to look for
    whole = plain() if ask.budget is not None else None
    asked = replace(options, budget=None, compile=None, decimal=False), ask.graded, str(device), whole, asked_for()
    return plan_once(graph, ask.machine, ask.budget, asked, ask.answer)


@dataclass(frozen=True)
class Ask:
    """What a plan depends on."""

    graph: Graph
    options: Options
    graded: tuple[str, ...]
    plain: Callable[[], int]
    device: torch.device
    machine: Machine

    @property
    def budget(self) -> int | None:
        return self.options.budget_on(self.device)

    def answer(self) -> Planned:
        with Progress("planning") as progress:
            progress.tell(f"{len(self.graph.nodes)} nodes of {self.graph.name}")
            recorded = self._recorded() if self.options.records(self.device) else None
            return recorded or plan_for_process(self._with, self.options, self.device)

    def _with(self, options: Options) -> Planned:
        return replace(self, options=options).plan()

    def _recorded(self) -> Planned | None:
        """For steps that are recorded as CUDA graphs: no Python between kernels, and room for what is copied. None
        where that is not possible, or makes little difference."""
        room, fast = copied_bytes(self.graph, self.graded), self.machine.recorded
        inside = self.options if self.budget is None else replace(self.options, budget=max(1, self.budget - room))
        try:
            schedule, planning = replace(self, options=inside, machine=fast).plan()
        except BudgetError:
            return self._unrecorded("there is no room for what is copied")
        why = "plain PyTorch fits" if schedule.mode == "none" else why_not(Executor(schedule, self.device.type))
        if why is not None:
            return self._unrecorded(why)
        slow_s, fast_s = (measure_time(schedule, None, each).total_s for each in (self.machine, fast))
        if self.options.cuda_graphs is None and slow_s < WORTH * fast_s:
            return None
        total = schedule.predicted["total_bytes"] + room
        figures = {**schedule.predicted, "total_bytes": total, "recorded_bytes": room}
        planning = None if planning is None or self.budget is None else replace(planning, budget=self.budget)
        return replace(schedule, predicted=figures), planning

    def _unrecorded(self, why: str) -> Planned | None:
        """Nothing; who asked for it is told."""
        if self.options.cuda_graphs:
            _log.warning("steps of %s are not recorded as CUDA graphs: %s", self.graph.name, why)
        return None

    def plan(self) -> Planned:
        graph, mode = lower_graph(self.graph), self.options.mode
        check_axes(graph, label_axes(graph), self.options.axes or ())
        sizes, axes = self.options.sizes(graph), self.options.cut_axes(graph)
        trains, samples = bool(self.graded), self.options.axes is None
        search = TileSearch(graph, axes, mode, self.graded, trains, self.plain, self.machine, samples)
        fits = self.budget is None or search.plain().prediction.total_bytes <= self.budget
        if self.options.planner == "keep" and trains and fits:
            return self._executable(plan_keep(training_graph(self.graph, self.graded)), self.budget), None
        if mode == "none" or (sizes is None and self.budget is None):
            return search.plain().planned, None
        if sizes is not None:
            return self._of_size(search, sizes), None
        assert self.budget is not None
        if self.device.type == "cuda" and self.graded and not fits:
            early = early_bytes(self.graph, self.graded)
            with contextlib.suppress(BudgetError):
                return self._within(search, early if early <= self.budget // EARLY else 0, between_bytes(self.budget))
        return self._within(search)

    def _within(self, search: TileSearch, early: int = 0, between: int = 0) -> Planned:
        """`early`: what gradients of weights get besides; `between`: what plans of whole nodes leave free."""
        assert self.budget is not None
        budget = self.budget - early
        planning = plan_module(self.graph, search, budget, self.options, self.device, between)
        schedule, planning = self._first_that_fits(planning, search)
        if not early:
            return schedule, planning
        total = schedule.predicted["total_bytes"] + early
        figures = {**schedule.predicted, "total_bytes": total, "early_bytes": early}
        return replace(schedule, predicted=figures), replace(planning, budget=self.budget)

    def _of_size(self, search: TileSearch, sizes: TileSizes) -> Schedule:
        slack, storage = Slack(SLACK, search.graph.outside_bytes()), self.options.storage or Storage.DEVICE
        if self.budget is None:
            found = search.cut(sizes, storage)  # what it needs is predicted for who asks
            found = predicted(found, self.graded) if self.options.records(self.device) else found
        else:
            fit = search.tiled(sizes, storage, slack.inside(self.budget))
            found = keep_what_fits(search, fit, slack, self.budget).planned
        check_schedule(found)
        return found

    def _first_that_fits(self, planning: Planning, search: TileSearch) -> tuple[Schedule, Planning]:
        """The chosen plan as the executor runs it; where that needs more than was planned, the next."""
        others = [c for c in planning.candidates if c is not planning.chosen and c.peak_bytes <= planning.budget]
        for candidate in (planning.chosen, *sorted(others, key=lambda c: c.time_s)):
            schedule = self._executable(candidate.schedule, planning.budget)
            if schedule.predicted.get("total_bytes", 0) <= max(planning.budget, candidate.peak_bytes):
                return schedule, replace(planning, chosen=candidate)
        if self.options.planner == "auto":  # tiles are predicted as they are run
            again = plan_module(self.graph, search, planning.budget, replace(self.options, planner="tile"), self.device)
            return again.chosen.schedule, again
        return self._executable(planning.chosen.schedule, planning.budget), planning

    def _executable(self, plan: Schedule, budget: int | None) -> Schedule:
        if not isinstance(plan.islands, NodeIslands):
            return plan
        return executable(plan, self.graph, self.graded, budget)


def plan_module(
    graph: Graph, search: TileSearch, budget: int, options: Options, device: torch.device, between: int = 0
) -> Planning:
    """The full planner for a captured module: whole nodes again or on the host, tiles, or plain where it fits."""
    plain_fit = search.plain()
    plain_bytes = plain_fit.prediction.total_bytes
    train = bool(search.graded)
    outside = graph.outside_bytes()
    step = None
    if train and plain_bytes > budget and options.planner != "tile":
        # On the CPU there is nowhere to copy to but a file, and that only if it is asked for.
        hosted = device.type == "cuda" or options.storage == Storage.DISK or options.planner == "offload"
        step = TrainingStep(training_graph(graph, search.graded), search.machine, QUICK, hosted)
    seconds = step.keep.time_s if step is not None else plain_fit.seconds(search)
    plain = Candidate("keep", "plain PyTorch", plain_fit.planned, plain_bytes, seconds)
    if plain_bytes <= budget:
        return Planning(graph, search.machine, budget, plain, (plain,), plain)
    network = graph if step is not None else None
    problem = Problem(budget, step, search, network, storages=options.storages(device), known=plain, between=between)
    return plan_step(problem, planner=options.planner, slack=Slack(SLACK, outside))


def keep_what_fits(search: TileSearch, fit: Fit, slack: Slack, budget: int) -> Fit:
    """Tiles that were asked for, and a budget: as many of them kept as fit."""
    need = fit.prediction.total_bytes
    if need > slack.inside(budget):
        raise tiles_too_large(search, fit, budget, slack.around(need))
    return search.dialled(fit, slack.inside(budget))


def executable(plan: Schedule, forward: Graph, graded: Sequence[str], budget: int | None) -> Schedule:
    """A plan of whole nodes as the executor runs it: what runs together in one piece, as far as there is room."""
    limit = inf if budget is None else max(budget, plan.predicted.get("total_bytes", 0))
    found, prediction = fuse_within(plan, forward, graded, limit)
    check_schedule(found)
    return replace(found, predicted={**plan.predicted, **prediction.figures})


def predicted(schedule: Schedule, graded: Sequence[str]) -> Schedule:
    """With what it needs, where that was not asked for yet."""
    if schedule.mode == "none" or schedule.predicted:
        return schedule
    return replace(schedule, predicted=predict(schedule, graded).figures)


def say_what_is_whole(schedule: Schedule, peak_bytes: Callable[[], int]) -> None:
    """In the log, where one operator that runs whole holds much of the peak."""
    held = {
        node.name: whole_bytes(schedule.graph, node)
        for phase in schedule.phases
        if not phase.tiled
        for node in phase.nodes
    }
    worst = max(held, key=held.__getitem__, default=None)
    if worst is None or held[worst] <= LOUD * (held[worst] + schedule.graph.outside_bytes()):
        return  # no peak is so low
    if held[worst] > LOUD * (peak := peak_bytes()) > 0:
        _log.warning(
            "%s runs whole and holds %s of the predicted peak of %s; see docs/operators.md#barriers",
            schedule.graph.node[worst].describe(),
            format_bytes(held[worst]),
            format_bytes(peak),
        )
