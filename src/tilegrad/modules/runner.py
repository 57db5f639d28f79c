"""A module planned for one input shape: binds tensors to the graph's values and runs sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ..bounds import lower_graph
from ..errors import BudgetError, RunError
from ..execution import Executor, Pass
from ..execution.compilation import Compilation
from ..importers import Captured
from ..ir import Graph, Kind
from ..planners import (
    Candidate,
    Effort,
    Fit,
    Planning,
    Problem,
    Slack,
    TileSearch,
    TrainingStep,
    plan_keep,
    plan_step,
)  # fmt: skip
from ..progress import Progress
from ..schedule import Schedule, Storage, check_schedule, fuse
from ..schedule.whole import NodeIslands
from ..sim.machine import Machine
from ..sim.measure import known_machine
from ..sim.predict import predict
from ..sim.rehearsal import outside_bytes
from ..sim.training import training_graph
from ..torch_private import copy_each
from ..units import format_bytes
from .options import Options
from .plan_file import Planned, plan_once

LOUD = 0.1  # of the predicted peak: from here on the log says what runs whole
_log = logging.getLogger("tilegrad")
SLACK = 0.01  # of what a step allocates
QUICK = Effort(nodes=0)  # a module is planned when it is first called: the heuristic, which is near the best


class Runner:
    """A planned input shape: binds tensors to the graph's values and runs sessions."""

    def __init__(
        self,
        captured: Captured,
        options: Options,
        graded: Sequence[str],
        plain: Callable[[], int],
        device: torch.device,
    ):
        self.captured = captured
        self.schedule, self.planning = plan_call(captured.graph, options.on(device), graded, cache(plain), device)
        if self.schedule.mode != "none" and self.schedule.phases:
            say_what_is_whole(self.schedule)
        self.compile = None if options.compile is None else dict(options.compile)
        self.engine = Executor(self.schedule, device.type, self.compile)
        self._plain: Compilation | None = None

    def plain(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """It fits as it is."""
        if self.compile is None:
            return module.forward(*args, **kwargs)
        if self._plain is not None:
            ran, found = self._plain.attempt(*args, **kwargs)
        else:
            self._plain = Compilation(module.forward, self.compile, type(module).__name__)
            with Progress("compiling") as progress:
                progress.tell(self._plain.what)
                ran, found = self._plain.attempt(*args, **kwargs)
        return found if ran else module.forward(*args, **kwargs)

    def __call__(self, tensors: Mapping[str, Tensor], device: torch.device, flat: Sequence[Any] = ()) -> Any:
        """Run on what `Captured.bind` gave. `flat`: the tensors among the arguments."""
        check_writable(self.captured, tensors)
        session = Pass(self.engine, tensors, device, seed=new_seed() if self.engine.draws else 0)
        return self.captured.assemble(run_pass(session), flat, tensors)


def new_seed() -> int:
    return int(torch.randint(1 << 62, ()).item())


def run_pass(session: Pass) -> list[Tensor]:
    """The outputs of a pass: to autograd one function, where anything needs a gradient."""
    tensors = session.tensors
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values()):
        return list(TiledFunction.apply(session, list(tensors), *tensors.values()))  # type: ignore[no-untyped-call]
    outputs, updates = session.forward()
    apply_updates(session, updates)
    return outputs


def say_what_is_whole(schedule: Schedule) -> None:
    """In the log, where one operator that runs whole holds much of the peak."""
    peak = schedule.predicted.get("total_bytes", 0)
    held = {
        node.name: sum(schedule.graph.type(v).bytes for v in {*node.reads, *node.outputs})
        for phase in schedule.phases
        if not phase.tiled
        for node in phase.nodes
    }
    worst = max(held, key=held.__getitem__, default=None)
    if worst is not None and held[worst] > LOUD * peak > 0:
        _log.warning(
            "%s runs whole and holds %s of the predicted peak of %s; see docs/operators.md#barriers",
            schedule.graph.node[worst].describe(),
            format_bytes(held[worst]),
            format_bytes(int(peak)),
        )


def check_writable(captured: Captured, tensors: Mapping[str, Tensor]) -> None:
    """What the model writes to in place must be what plain PyTorch may write to."""
    for name, _ in captured.graph.updates:
        if captured.graph.value[name].kind is Kind.INPUT and torch.is_grad_enabled() and tensors[name].requires_grad:
            raise RunError(
                f"the model writes to its input '{name}' in place, and that needs a gradient",
                hint="x.clone() in forward, or an input without requires_grad",
            )


class TiledFunction(Function):
    """The whole tiled module as one autograd function: parameters get their gradient once, whole."""

    @staticmethod
    def forward(ctx: Any, session: Pass, names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.session, ctx.names = session, names
        outputs, updates = session.forward()
        apply_updates(session, updates)
        plain = [o for o, name in zip(outputs, session.output_names, strict=True) if name not in session.needs]
        ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        session: Pass | None = ctx.session
        if torch.is_grad_enabled():
            raise RunError(
                "second-order gradients through a tiled module are not available",
                hint="backward without create_graph=True, or the module without tilegrad.tile",
            )
        if session is None or session.spent:
            raise RunError(
                "backward a second time through the same tiled call: what it kept is freed",
                hint="one backward per call (sum the losses first), or call the module again",
            )
        ctx.session = None  # whatever happens now, a second backward finds nothing
        found = session.backward(grads)
        tensors = session.tensors
        result = [found[n].to(tensors[n].dtype) if n in found and n in session.needs else None for n in ctx.names]
        return (None, None, *result)


def apply_updates(session: Pass, updates: Sequence[tuple[str, Tensor]]) -> None:
    if updates:
        with torch.no_grad():
            copy_each([session.tensors[name] for name, _ in updates], [value for _, value in updates])


def plan_call(
    graph: Graph, options: Options, graded: Sequence[str], plain: Callable[[], int], device: torch.device
) -> Planned:
    """What the options ask for, as the executor runs it. `graph`: as captured; `graded`: the outside values that need a
    gradient; `plain`: what plain execution allocates."""
    budget, machine = options.budget_on(device), known_machine(str(device))

    def plan() -> Planned:
        with Progress("planning") as progress:
            progress.tell(f"{len(graph.nodes)} nodes of {graph.name}")
            schedule, planning = _plan(graph, options, graded, plain, device, machine)
            if isinstance(schedule.islands, NodeIslands):
                schedule = executable(schedule, graph, graded, budget)
        return schedule, planning

    if options.mode == "none" or (options.tile is None and budget is None):
        return plan()  # there is nothing to look for
    asked = (
        replace(options, budget=None, compile=None),
        tuple(graded),
        str(device),
        plain() if budget is not None else None,
    )
    return plan_once(graph, machine, budget, asked, plan)


def _plan(
    captured: Graph,
    options: Options,
    graded: Sequence[str],
    plain: Callable[[], int],
    device: torch.device,
    machine: Machine,
) -> Planned:
    graph, mode = lower_graph(captured), options.mode
    sizes, budget = options.sizes(graph), options.budget_on(device)
    search = TileSearch(
        graph, options.cut_axes(graph), mode, tuple(graded), bool(graded), plain, machine, options.axes is None
    )
    if options.planner == "keep" and graded and (budget is None or search.plain().prediction.total_bytes <= budget):
        return plan_keep(training_graph(captured, graded)), None
    if mode == "none" or (sizes is None and budget is None):
        return search.plain().planned, None
    if sizes is not None:
        slack, storage = Slack(SLACK, outside_bytes(graph)), options.storage or Storage.DEVICE
        fit = search.tiled(sizes, storage, None if budget is None else slack.inside(budget))
        if budget is not None:
            fit = keep_what_fits(search, fit, slack, budget)
        check_schedule(fit.planned)
        return fit.planned, None
    assert budget is not None
    planning = plan_module(captured, search, budget, options, device)
    return planning.chosen.schedule, planning


def plan_module(graph: Graph, search: TileSearch, budget: int, options: Options, device: torch.device) -> Planning:
    """The full planner for a captured module: whole nodes again or on the host, tiles, or plain where it fits."""
    plain_fit = search.plain()
    plain_bytes = plain_fit.prediction.total_bytes
    train = bool(search.graded)
    outside = outside_bytes(graph)
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
    problem = Problem(budget, step, search, network, storages=options.storages(device), known=plain)
    return plan_step(problem, planner=options.planner, slack=Slack(SLACK, outside))


def keep_what_fits(search: TileSearch, fit: Fit, slack: Slack, budget: int) -> Fit:
    """Tiles that were asked for, and a budget: as many of them kept as fit."""
    need = fit.prediction.total_bytes
    if need > slack.inside(budget):
        raise BudgetError(
            f"these tiles need {format_bytes(need)}, more than {format_bytes(budget)}, with none of them kept",
            where=f"{fit.prediction.worst}, {fit.prediction.worst_node}".strip(", "),
            hint="a smaller tile=, or budget= alone",
        )
    return search.dialled(fit, slack.inside(budget))


def executable(plan: Schedule, forward: Graph, graded: Sequence[str], budget: int | None) -> Schedule:
    """A plan of whole nodes as the executor runs it: what is kept anyway in one piece, unless that needs more."""
    found = fuse(plan, forward)
    prediction = predict(found, graded)
    if budget is not None and prediction.total_bytes > max(budget, plan.predicted.get("total_bytes", 0)):
        found = fuse(plan, forward, apart=True)
        prediction = predict(found, graded)
    check_schedule(found)
    return replace(found, predicted={**plan.predicted, **prediction.figures})
