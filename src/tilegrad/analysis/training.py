"""What training would need where a profile shows inference only, and what tilegrad would do about it: plans for the
profile's graph at several budgets. Times are the measured ones; backward is predicted at the rates of the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BudgetError, FormatError, TilegradError
from ..ir import Graph, Kind, Phase
from ..planners import Candidate, Effort, Planning, Problem, TrainingStep, imported_tiles, plan_step
from ..profile import Profile
from ..schedule import Run, ScheduleStep, Storage
from ..sim.machine import Machine
from ..sim.training import training_graph
from .calibration import calibrate

SHARES = (0.75, 0.5, 0.25)  # of what plain training needs beyond weights, inputs and the weights' gradients
QUICK = Effort(nodes=0)


@dataclass(frozen=True)
class Training:
    """A training step of a profiled network. `plans`: for each budget a planning, or why there is none."""

    graph: Graph
    machine: Machine
    plain: Candidate
    saved_bytes: int  # what forward keeps for backward, weights and inputs apart
    least_bytes: int  # by recompute alone
    plans: tuple[tuple[int, Planning | str], ...]

    def to_json(self) -> dict[str, Any]:
        memory = self.plain.memory
        assert memory is not None
        return {
            "machine": self.machine.name,
            "flops_per_s": self.machine.flops_per_s,
            "bytes_per_s": self.machine.bytes_per_s,
            "plain_peak_bytes": self.plain.peak_bytes,
            "plain_time_s": self.plain.time_s,
            "resident_bytes": memory.resident_bytes,
            "saved_bytes": self.saved_bytes,
            "least_recompute_bytes": self.least_bytes,
            "budgets": [self._plan(budget, found) for budget, found in self.plans],
        }

    def _plan(self, budget: int, found: Planning | str) -> dict[str, Any]:
        if isinstance(found, str):
            return {"budget_bytes": budget, "fits": False, "why": found}
        return {"budget_bytes": budget, "fits": True, **found.chosen.to_json(self.plain.time_s)}


def plan_training(profile: Profile, base: Machine, budgets: Sequence[int] = ()) -> Training:
    """Plans for these budgets, or for shares of what plain training needs. base: for the links between host and
    device, and for rates that the profile does not show."""
    forward = profile.graph
    if forward is None:
        raise FormatError(
            "the profile does not tell which operator reads what: nothing can be planned",
            where=profile.name,
            hint="tilegrad plan MODEL --input ..., or a profile with a graph",
        )
    machine = calibrate(profile, base) if profile.operators else base
    graph = _training_graph(forward, profile.name)
    step = TrainingStep(graph, machine, QUICK, hosted=False)
    as_torch = TrainingStep(_training_graph(forward, profile.name, plain=True), machine)
    plain, storages = as_torch.keep, (Storage.DEVICE, Storage.HOST)
    problem = Problem(0, step, imported_tiles(forward, machine), storages=storages, known=plain)
    found = [(budget, _plan(replace(problem, budget=budget))) for budget in budgets or _shares(plain, graph)]
    least = step.reruns.least.peak
    return Training(graph, machine, plain, _saved(plain), least, tuple(found))


def _shares(plain: Candidate, graph: Graph) -> list[int]:
    assert plain.memory is not None
    weights = sum(v.type.bytes for v in graph.of_kind(Kind.PARAMETER))
    floor = min(plain.peak_bytes, plain.memory.resident_bytes + weights)
    return [floor + int((plain.peak_bytes - floor) * share) for share in SHARES]


def _training_graph(graph: Graph, name: str, *, plain: bool = False) -> Graph:
    if any(node.phase is Phase.BACKWARD for node in graph.nodes):
        return graph
    foreign = sorted({node.op for node in graph.nodes if not node.target and "." in node.op})
    if foreign:
        what = f"operators that PyTorch has no name for: {', '.join(foreign[:5])}"
        raise FormatError(what, where=name, hint="a network of convolutions, pools, matrix products and arithmetic")
    graded = [v.name for v in graph.of_kind(Kind.PARAMETER) if v.type.floating]
    try:
        return training_graph(graph, graded, plain=plain)
    except TilegradError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # torch, about shapes that do not fit together
        what = f"the graph cannot be differentiated: {str(error).splitlines()[0][:200]}"
        raise FormatError(what, where=name, hint="is the profile damaged?") from None


def _plan(problem: Problem) -> Planning | str:
    try:
        return plan_step(problem)
    except BudgetError as error:
        return error.what
    except TilegradError as error:
        return str(error)


def _saved(plain: Candidate) -> int:
    """Alive when backward begins, beyond what is there before and after a step."""
    memory, schedule = plain.memory, plain.schedule
    assert memory is not None
    turn = next((at for at, step in enumerate(schedule.steps) if _begins(step, schedule.graph)), None)
    return 0 if turn is None else sum(life.bytes for life in memory.lifetimes if life.start < turn < life.stop)


def _begins(step: ScheduleStep, graph: Graph) -> bool:
    return isinstance(step, Run) and graph.node[step.island].phase is Phase.BACKWARD
