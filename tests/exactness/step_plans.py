"""Modules that run under plans of whole nodes: planned ones, and random ones that no planner would think of.

Every plan is run in two ways: as one island per node, and with what runs together fused into large ones.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tilegrad.execution import Executor
from tilegrad.importers import Captured, export_module, take
from tilegrad.ir import Graph
from tilegrad.modules.runner import Runner
from tilegrad.planners import Candidate, Effort, Problem, TrainingStep, candidates, offload, plan_keep, planners
from tilegrad.planners.stages.problem import make_problem
from tilegrad.planners.stages.stages import Solution, Stages
from tilegrad.schedule import Schedule, check_schedule, fuse
from tilegrad.schedule.whole import list_steps, roots_of, whole_schedule
from tilegrad.sim.machine import CPU
from tilegrad.sim.predict import measure_memory, predict
from tilegrad.sim.training import training_graph
from tilegrad.testing import PeakBytes, assert_same, run_step

QUICK = Effort(work=50_000, nodes=0)
Choose = Callable[[Graph], Schedule]
Graphs = dict[Any, tuple[Captured, Graph]]


@dataclass(frozen=True)
class Apart:
    """A plan that is run as one island per node; any other is fused."""

    choose: Choose

    def __call__(self, graph: Graph) -> Schedule:
        return self.choose(graph)


def both(choose: Choose) -> tuple[Choose, Choose]:
    """The two ways to run a plan."""
    return choose, Apart(choose)


class Planned(Runner):
    """A runner of a schedule that was made by hand. `chosen`: the plan whose bytes it needs."""

    def __init__(self, captured: Captured, schedule: Schedule, plan: Schedule | None = None):
        check_schedule(schedule)
        self.captured, self.planning, self.schedule, self.chosen = captured, None, schedule, plan
        self.engine, self.device = Executor(schedule), torch.device("cpu")
        self.recorded = self.reserved = None


class Stepped(nn.Module):
    """A module that runs under the plan that `choose` picks for its training graph. Names of parameters stay.
    `graphs`: captured once, for all copies of a module."""

    wrapped: nn.Module
    choose: Choose
    graphs: Graphs
    runners: dict[Any, Planned]

    def __init__(self, module: nn.Module, choose: Choose, graphs: Graphs | None = None):
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = module.__dict__[part]
        graphs = {} if graphs is None else graphs
        self.__dict__.update(wrapped=module, choose=choose, graphs=graphs, runners={}, training=module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        flat: list[Tensor] = []
        take((args, kwargs), flat)
        return run_on(self.runner(*args, **kwargs), self.wrapped, flat)

    def runner(self, *args: Any, **kwargs: Any) -> Planned:
        flat, spec = pytree.tree_flatten((args, kwargs))
        key = str(spec), tuple((tuple(x.shape), x.requires_grad) if isinstance(x, Tensor) else x for x in flat)
        if key not in self.graphs:
            self.graphs[key] = graph_for(self.wrapped, args, kwargs)
        if key not in self.runners:
            self.runners[key] = runner_of(*self.graphs[key], self.choose)
        return self.runners[key]


def graph_for(module: nn.Module, args: Any, kwargs: Any = None) -> tuple[Captured, Graph]:
    """A module captured, and its training graph."""
    captured = export_module(module, args, kwargs or {})
    flat: list[Tensor] = []
    take((tuple(args), kwargs or {}), flat)
    return captured, training_graph(captured.graph, captured.graded(flat))


def run_on(runner: Runner, module: nn.Module, flat: Sequence[Any]) -> Any:
    """Run with the tensors of `module`, which may be a copy of the one that was captured."""
    return runner(runner.captured.bind(flat, module), flat)


def runner_of(captured: Captured, graph: Graph, choose: Choose) -> Planned:
    plan, apart = choose(graph), isinstance(choose, Apart)
    check_schedule(plan)
    return Planned(captured, fuse(plan, captured.graph, apart=apart), plan if apart else None)


# Plans


def at_random(seed: int, *, drop: float = 0.5, move: float = 0.3) -> Choose:
    """Any legal plan: values forgotten with probability `drop` after every stage, moved away with probability `move`
    whenever they are idle."""

    def choose(graph: Graph) -> Schedule:
        rng = random.Random(seed)
        problem = make_problem(graph, dict.fromkeys(graph.node, 1.0))
        stages, last = Stages(problem), problem.last_need
        if not problem.backward:
            return whole_schedule(graph, "random", list_steps(graph, problem.forward))
        keep = []
        for stage in range(len(problem.backward)):
            kept = (1 << v for v in range(len(last)) if last[v] > stage and rng.random() > drop)
            keep.append(stages.handed | sum(kept))
        runs = problem.runs(Solution(stages, keep).again)
        base = whole_schedule(graph, "random", list_steps(graph, runs))
        return moved_at_random(base, rng, move)

    return choose


def moved_at_random(base: Schedule, rng: random.Random, move: float) -> Schedule:
    with mock.patch.object(offload, "SMALL", 0):
        gaps, _ = offload._idle(roots_of(base.graph), base.runs)
    chosen = []
    for gap in gaps:
        if rng.random() < move:
            gone = rng.randint(gap.use + 1, gap.again - 1)
            chosen.append(replace(gap, gone=gone, back=rng.randint(gone + 1, gap.again)))
    return replace(offload._schedule(base.graph, base.runs, chosen, base), mode="random")


SEVERAL: tuple[Choose, ...] = (plan_keep, at_random(0), at_random(1, move=0.0), at_random(2, drop=0.1), at_random(3))


def plans(graph: Graph, shares: tuple[float, ...], names: tuple[str, ...]) -> Iterator[tuple[int, Candidate]]:
    """What planners find for budgets between nothing (0) and plain (1) that fits them, beside keeping everything."""
    steps = TrainingStep(graph, CPU, QUICK)
    assert steps.keep.memory is not None
    low, high = steps.keep.memory.resident_bytes, steps.keep.peak_bytes
    for share in shares:
        budget = int(low + share * (high - low))
        for candidate in (c for n in names for c in candidates(Problem(budget, steps), planners()[n])):
            if candidate.peak_bytes <= budget:
                yield budget, candidate


def fixed(schedule: Schedule) -> Choose:
    """The plan that was made for this graph."""
    return lambda graph: replace(schedule, graph=graph) if graph.nodes == schedule.graph.nodes else _other(schedule)


def _other(schedule: Schedule) -> Schedule:
    raise AssertionError(f"a plan of {schedule.graph.name} for another graph")


# Checks


def assert_plans(
    module: nn.Module,
    inputs: Sequence[Any],
    choices: Sequence[Choose] = SEVERAL,
    *,
    exact: bool = True,
    tolerance: float = 1e-10,
    constant: Sequence[int] = (),
    peak: bool = True,
) -> None:
    """A step under every plan, run both ways, leaves behind what a plain step does and, if `peak`, needs the predicted
    bytes."""
    wanted = run_step(copy.deepcopy(module), inputs, constant=constant)
    graphs: Graphs = {}
    for at, choose in enumerate(choices):
        for way in both(choose):
            note = f"plan {at}, {'apart' if isinstance(way, Apart) else 'fused'}"
            found = run_step(Stepped(copy.deepcopy(module), way, graphs), inputs, constant=constant)
            assert_same(found, wanted, exact=exact, tolerance=tolerance, note=note)
            if peak:
                captured, graph = next(iter(graphs.values()))
                measured, predictions = peaks(runner_of(captured, graph, way), graph, copy.deepcopy(module), inputs)
                for predicted in predictions:
                    # Scalars here and there are not worth a prediction; a value of these networks is larger.
                    assert -1500 < measured - predicted < 1000, (note, measured, predictions)


def peaks(runner: Planned, graph: Graph, module: nn.Module, inputs: Sequence[Any]) -> tuple[int, list[int]]:
    """Bytes that a step allocates at most, measured and predicted: for the schedule that runs, and for the plan that
    needs the same. Inputs need gradients where the training graph has them."""
    graded = [f"{name}.grad" in graph.value for name in runner.captured.user_inputs]
    flat = [
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_(need) if isinstance(x, Tensor) else x
        for x, need in zip(pytree.tree_leaves(list(inputs)), graded, strict=True)
    ]
    predictions = [predict(runner.schedule, runner.captured.graded(flat)).total_bytes]
    if runner.chosen is not None:
        predictions.append(measure_memory(runner.chosen).peak_bytes)
    with PeakBytes() as peak:
        outputs = pytree.tree_leaves(run_on(runner, module, flat))
        # what the graph makes: not what was handed in and out again, and each but once
        made = list({id(x): x for x in outputs if isinstance(x, Tensor) and x.grad_fn is not None}.values())
        del outputs
        if made:
            torch.autograd.backward(made, [torch.ones_like(x) for x in made])
        del made
    outside = sum(v.type.bytes for v in runner.schedule.graph.values if not v.kind.computed)
    return peak.bytes, [predicted - outside for predicted in predictions]
