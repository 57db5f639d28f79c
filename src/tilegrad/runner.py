"""A module planned for one input shape: binds tensors to the graph's values and runs sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .bounds import lower_graph
from .errors import RunError
from .importers import Captured
from .ir import Graph, Kind
from .ops import find
from .options import Options
from .planners import Effort
from .runtime import Engine, Session
from .runtime.measure import known_machine
from .runtime.step_session import StepEngine, StepSession
from .runtime.training import training_graph
from .schedule import Schedule, Storage, check_schedule
from .schedule.step_list import StepList
from .search import Candidate, Mixed, Planning, Search, Slack, Steps, plan_step
from .units import format_bytes

LOUD = 0.1  # of the predicted peak: from here on the log says what runs whole
_log = logging.getLogger("tilegrad")
SLACK = 0.01  # of what a step allocates
QUICK = Effort(exact_s=0.0)  # a module is planned when it is first called: the heuristic, which is near the best


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
        graph = lower_graph(captured.graph)
        self.schedule, self.planning = self._plan(graph, options.on(device), graded, plain, device)
        if isinstance(self.schedule, Schedule) and self.schedule.mode != "none":
            say_what_is_whole(self.schedule)
        self.engine: Engine | StepEngine
        if isinstance(self.schedule, StepList):
            assert self.planning is not None
            chosen = self.planning.chosen
            self.engine = StepEngine(self.schedule, chosen.around or captured.graph, chosen.segments)
        else:
            self.engine = Engine(self.schedule)

    def _plan(
        self, graph: Graph, options: Options, graded: Sequence[str], plain: Callable[[], int], device: torch.device
    ) -> tuple[Schedule | StepList, Planning | None]:
        """The schedule that the options ask for. `graph`: lowered; `graded`: the outside values that need a gradient;
        `plain`: what plain execution allocates."""
        mode = "stream" if options.mode == "auto" else options.mode
        sizes, budget = options.sizes(graph), options.budget_on(device)
        machine = known_machine(str(device))
        search = Search(
            graph, options.cut_axes(graph), mode, tuple(graded), bool(graded), plain, machine, options.axes is None
        )
        if mode == "none" or (sizes is None and budget is None):
            return search.plain().planned, None
        if sizes is not None:
            schedule = search.tiled(sizes, options.storage or Storage.DEVICE).planned
            check_schedule(schedule)
            return schedule, None
        assert budget is not None
        planning = plan_module(self.captured.graph, search, budget, options, device)
        return planning.chosen.schedule, planning

    def __call__(self, tensors: Mapping[str, Tensor], device: torch.device, flat: Sequence[Any] = ()) -> Any:
        """Run on what `Captured.bind` gave. `flat`: the tensors among the arguments."""
        check_writable(self.captured, tensors)
        train = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
        seed = int(torch.randint(1 << 62, ()).item()) if self._random else 0
        session: Session | StepSession
        if isinstance(self.engine, StepEngine):
            session = StepSession(self.engine, tensors, device, seed=seed)
        else:
            session = Session(self.engine, tensors, device, train=train, seed=seed)
        if train:
            names = list(tensors)
            found = TiledFunction.apply(session, names, *tensors.values())  # type: ignore[no-untyped-call]
            outputs = list(found)
        else:
            outputs, updates = session.forward()
            apply_updates(session, updates)
        return self.captured.assemble(outputs, flat, tensors)

    @property
    def _random(self) -> bool:
        return any(find(n).random for n in self.captured.graph.nodes)


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
    def forward(ctx: Any, session: Session | StepSession, names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.session, ctx.names = session, names
        outputs, updates = session.forward()
        apply_updates(session, updates)
        plain = [o for o, name in zip(outputs, session.output_names, strict=True) if name not in session.needs]
        ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        session: Session | StepSession | None = ctx.session
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


def apply_updates(session: Session | StepSession, updates: Sequence[tuple[str, Tensor]]) -> None:
    with torch.no_grad():
        for name, value in updates:
            session.tensors[name].copy_(value)


def plan_module(graph: Graph, search: Search, budget: int, options: Options, device: torch.device) -> Planning:
    """The full planner for a captured module: whole nodes again or on the host, tiles, or plain where it fits."""
    plain_fit = search.plain()
    plain_bytes = plain_fit.prediction.total_bytes
    train = bool(search.graded)
    outside = sum(v.type.bytes for v in graph.values if not v.kind.computed)
    steps = None
    if train and plain_bytes > budget and options.planner != "tile":
        # On the CPU there is nowhere to copy to but a file, and that only if it is asked for.
        hosted = device.type == "cuda" or options.storage is Storage.DISK or options.planner == "offload"
        steps = Steps(training_graph(graph, search.graded), search.machine, QUICK, hosted)
    seconds = steps.keep.time_s if steps else plain_fit.seconds(search)
    plain = Candidate("keep", "plain PyTorch", plain_fit.planned, plain_bytes, seconds)
    if plain_bytes <= budget:
        return Planning(graph, search.machine, budget, plain, (plain,), plain)
    planning = plan_step(
        steps,
        search,
        budget,
        planner=options.planner,
        storages=options.storages(device),
        plain=plain,
        slack=Slack(SLACK, outside),
        mixed=Mixed(graph, search.axes, search.graded, search.machine) if steps is not None and search.axes else None,
    )
    if isinstance(planning.chosen.schedule, Schedule):
        check_schedule(planning.chosen.schedule)
    return planning
