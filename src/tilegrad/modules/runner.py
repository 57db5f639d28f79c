"""A module planned for one input shape: binds tensors to the graph's values and runs sessions.

Rule R1  A step that runs out of memory is planned smaller and run again. Forward: buffers are written to at its end
         only. Backward: gradients are handed out at its end only, so forward runs again, its updates are dropped, and
         backward begins anew; a model whose outputs depend on buffers that it has written to by then is not run again.
Rule R2  On a GPU a step's allocator holds no more than the budget, and little more than is predicted if that is enough
         (`Limit`). Where that is not possible, and where steps are recorded, what they hold is looked at (`Reserved`);
         if it is more than the budget, steps are planned again, thrice at most, for less. A step that holds more only
         where it is recorded runs without a recording, if that is predicted to be faster than what fits recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ..bounds import lower_graph
from ..errors import BudgetError, RunError
from ..execution import Executor, Pass
from ..execution.compilation import Compilation
from ..execution.graphs import Flight, GraphPool, Recorded
from ..execution.walk import Sink
from ..images import ImageSource
from ..importers import Captured
from ..ir import Kind
from ..progress import Progress
from ..schedule import Schedule
from ..sim.clock import measure_time
from ..sim.measure import known_machine
from ..torch_private import copy_each
from ..units import format_bytes
from .options import Options
from .plan import Plan
from .plan_file import Planned
from .planned import plan_call, predicted, say_what_is_whole
from .reserved import Reserved, first_budget, give_back, is_out_of_memory

SMALLER = 0.75  # of a plan that ran out of memory: what the next one gets
T = TypeVar("T")
_log = logging.getLogger("tilegrad")


class Runner:
    """A planned input shape: binds tensors to the graph's values and runs sessions."""

    def __init__(
        self,
        captured: Captured,
        options: Options,
        graded: Sequence[str],
        plain: Callable[[], int],
        device: torch.device,
        pool: GraphPool | None = None,
    ):
        self.captured, self.options, self.device = captured, options.on(device), device
        self._graded, self._plain, self._pool = graded, cache(plain), pool
        budget = self.options.budget_on(device)
        self._use(self._planned(self.options) if budget is None or device.type != "cuda" else self._with_room(budget))
        looks = device.type == "cuda" and budget is not None and self.schedule.mode != "none"
        self.reserved = Reserved(device, budget) if looks and budget is not None else None

    def _planned(self, options: Options) -> Planned:
        return plan_call(self.captured.graph, options, self._graded, self._plain, self.device)

    def _with_room(self, budget: int) -> Planned:
        try:
            schedule, planning = self._planned(replace(self.options, budget=first_budget(budget)))
        except BudgetError:  # which would speak of another budget than the user's
            return self._planned(self.options)
        return schedule, None if planning is None else replace(planning, budget=budget)

    def _use(self, planned: Planned) -> None:
        self.schedule, self.planning = planned
        if self.schedule.mode != "none" and self.schedule.phases:
            say_what_is_whole(self.schedule, lambda: self.total_bytes)
        self.compile = None if self.options.compile is None else dict(self.options.compile)
        self.engine = Executor(self.schedule, self.device.type, self.compile)
        records = self._pool is not None and "recorded_bytes" in self.schedule.predicted
        self.recorded = Recorded(self.engine, self._pool) if self._pool is not None and records else None
        self._whole: Compilation | None = None

    @property
    def total_bytes(self) -> int:
        """What the plan is predicted to need."""
        self.schedule = predicted(self.schedule, self._graded)
        return int(self.schedule.predicted.get("total_bytes", 0))

    @property
    def plan(self) -> Plan:
        self.schedule = predicted(self.schedule, self._graded)
        budget = self.options.budget_on(self.device)
        return Plan(self.schedule, self.planning, budget, self.options.decimal, tuple(self._graded))

    def plain(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """It fits as it is."""
        if self.compile is None:
            return module.forward(*args, **kwargs)
        if self._whole is not None:
            ran, found = self._whole.attempt(*args, **kwargs)
        else:
            self._whole = Compilation(module.forward, self.compile, type(module).__name__)
            with Progress("compiling") as progress:
                progress.tell(self._whole.what)
                ran, found = self._whole.attempt(*args, **kwargs)
        return found if ran else module.forward(*args, **kwargs)

    def __call__(self, tensors: Mapping[str, Tensor], flat: Sequence[Any] = ()) -> Any:
        """Run on what `Captured.bind` gave. `flat`: the tensors among the arguments."""
        check_writable(self.captured, tensors)
        if self.reserved is not None and (less := self.reserved.lesson(self.schedule)) is not None:
            self._plan_within(less)
        return self.captured.assemble(run_pass(Step(self, tensors)), flat, tensors)

    def stream(self, tensors: Mapping[str, Tensor], sinks: Mapping[str, Sink]) -> list[Tensor]:
        """Run, with outputs that are written elsewhere, by their names; the others are given back."""
        check_writable(self.captured, tensors)
        return run_pass(Step(self, tensors, sinks))

    def session(
        self, tensors: Mapping[str, Tensor], seed: int, sinks: Mapping[str, Sink] | None = None
    ) -> Pass | Flight:
        flight = self.recorded.flight(tensors, self.device, seed) if self.recorded is not None else None
        return flight or Pass(self.engine, tensors, self.device, seed=seed, sinks=sinks)

    def plan_smaller(self) -> bool:
        """Rule R1. Is there a smaller plan? What was asked for otherwise (tiles of a size) does not count any more."""
        budget, need = self.options.budget_on(self.device), self.total_bytes
        if self.schedule.mode == "none" or not need:
            return False
        less = int(SMALLER * min(need, budget or need))
        _log.warning("out of memory in a step of %s: planned again for %s", format_bytes(need), format_bytes(less))
        if self.reserved is not None:
            self.reserved.near = True
        return self._plan_for(less)

    def _plan_within(self, less: int) -> None:
        """Rule R2."""
        before, recorded = (self.schedule, self.planning), self.recorded is not None
        if not self._plan_for(less) or not recorded:
            return
        if self._seconds(before[0], recorded=False) >= self._seconds(self.schedule, recorded=self.recorded is not None):
            return
        figures = dict(before[0].predicted)
        figures["total_bytes"] -= figures.pop("recorded_bytes")
        self._use((replace(before[0], predicted=figures), before[1]))
        _log.warning("the same plan is faster without a recording: steps of it are not recorded as CUDA graphs")

    def _seconds(self, schedule: Schedule, *, recorded: bool) -> float:
        machine = known_machine(str(self.device))
        return measure_time(schedule, None, machine.recorded if recorded else machine).total_s

    def _plan_for(self, budget: int) -> bool:
        self.recorded = None  # whose memory is its own as long as it lives
        give_back(self.device)
        try:
            self._use(self._planned(replace(self.options, budget=budget, tile=None)))
        except BudgetError as error:
            _log.warning("there is no smaller plan: %s", error)
            return False
        return True

    @cached_property
    def repeatable(self) -> bool:
        """Are outputs made from nothing that a step writes to?"""
        graph = lower_graph(self.captured.graph)
        seen, left = set[str](), list(graph.outputs)
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += graph.producer[name].reads if name in graph.producer else ()
        return not seen & {old for old, _ in graph.updates}


class Step:
    """One call of a planned module: to autograd a pass, which is run again where memory runs out (rule R1)."""

    def __init__(self, runner: Runner, tensors: Mapping[str, Tensor], sinks: Mapping[str, Sink] | None = None):
        self.runner, self.tensors, self.sinks = runner, tensors, sinks
        self.seed = new_seed() if runner.engine.draws else 0
        self.limit = runner.reserved.begin(tensors, runner.total_bytes) if runner.reserved is not None else None
        self.session = runner.session(tensors, self.seed, sinks)

    @property
    def needs(self) -> frozenset[str]:
        return self.session.needs

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.session.output_names

    @property
    def spent(self) -> bool:
        return self.session.spent

    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
        found = self._tried(lambda session: session.forward())
        if self.runner.reserved is not None and not self.needs:
            self.runner.reserved.end(self.runner.schedule)
        return found

    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        ahead = [True]  # has this session gone forward?

        def run(session: Pass | Flight) -> dict[str, Tensor]:
            if not ahead:
                session.forward()
            ahead.clear()
            return session.backward(grads)

        found = self._tried(run, self.runner.repeatable)
        if self.runner.reserved is not None:
            self.runner.reserved.end(self.runner.schedule, found.values())
        return found

    def _tried(self, run: Callable[[Pass | Flight], T], again: bool = True) -> T:
        while True:
            try:
                limit = self.limit if again and isinstance(self.session, Pass) else None
                with limit or nullcontext():
                    return run(self.session)
            except RuntimeError as error:
                if not again or not is_out_of_memory(error):
                    raise
                failed = error.with_traceback(None)  # whose frames hold tensors
            del self.session
            reserved = self.runner.reserved
            if (reserved is None or not reserved.widen(limit)) and not self.runner.plan_smaller():
                if limit is None or reserved is None:
                    raise failed
                self.limit = None
                reserved.lift()
            self.session = self.runner.session(self.tensors, self.seed, self.sinks)


class Stepping(Protocol):
    """What autograd sees of a step: a pass of any kind."""

    @property
    def tensors(self) -> Mapping[str, Any]: ...
    @property
    def needs(self) -> Collection[str]: ...
    @property
    def output_names(self) -> Sequence[str]: ...
    @property
    def spent(self) -> bool: ...
    def forward(self) -> tuple[list[Tensor], list[tuple[str, Tensor]]]: ...
    def backward(self, grads: Sequence[Tensor | None]) -> dict[str, Tensor]: ...


def new_seed() -> int:
    return int(torch.randint(1 << 62, ()).item())


def run_pass(session: Stepping) -> list[Tensor]:
    """The outputs of a pass: to autograd one function, where anything needs a gradient."""
    tensors = session.tensors
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values()):
        return list(TiledFunction.apply(session, list(tensors), *tensors.values()))  # type: ignore[no-untyped-call]
    outputs, updates = session.forward()
    apply_updates(session, updates)
    return outputs


def check_writable(captured: Captured, tensors: Mapping[str, Tensor]) -> None:
    """What the model writes to in place must be what plain PyTorch may write to."""
    for name, _ in captured.graph.updates:
        if isinstance(tensors[name], ImageSource):
            raise RunError(f"the model writes to its input '{name}' in place", hint="x.clone() in forward")
        if captured.graph.value[name].kind is Kind.INPUT and torch.is_grad_enabled() and tensors[name].requires_grad:
            raise RunError(
                f"the model writes to its input '{name}' in place, and that needs a gradient",
                hint="x.clone() in forward, or an input without requires_grad",
            )


class TiledFunction(Function):
    """The whole tiled module as one autograd function: parameters get their gradient once, whole."""

    @staticmethod
    def forward(ctx: Any, session: Stepping, names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.session, ctx.names = session, names
        outputs, updates = session.forward()
        apply_updates(session, updates)
        plain = [o for o, name in zip(outputs, session.output_names, strict=True) if name not in session.needs]
        ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        session: Stepping | None = ctx.session
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


def apply_updates(session: Stepping, updates: Sequence[tuple[str, Tensor]]) -> None:
    if updates:
        with torch.no_grad():
            copy_each([session.tensors[name] for name, _ in updates], [value for _, value in updates])
