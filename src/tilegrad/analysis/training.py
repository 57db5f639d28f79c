"""What training would need where a profile shows inference only, and what tilegrad would do about it: plans for the
profile's graph at several budgets. Times are the measured ones; backward is predicted at the rates of the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BudgetError, FormatError, TilegradError
from ..ir import Graph, Kind, Phase
from ..planners import Effort
from ..planners.evict import smallest_peak
from ..planners.problem import make_problem
from ..profile import Profile
from ..runtime.training import training_graph
from ..schedule import Storage
from ..schedule.step_list import StepList
from ..schedule.steps import Run, WholeStep
from ..search import Candidate, Planning, Search, Steps, imported_tiles, plan_step
from ..sim.machine import Machine
from .calibration import calibrate

SHARES = (0.75, 0.5, 0.25)  # of what plain training needs beyond weights, inputs and the weights' gradients
QUICK = Effort(heuristic_s=1.0, exact_s=0.0)


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
    steps = Steps(graph, machine, QUICK, hosted=False)
    plain, tiles = steps.keep, imported_tiles(forward, machine)
    found = [(budget, _plan(steps, tiles, budget)) for budget in budgets or _shares(plain, graph)]
    least = smallest_peak(make_problem(graph, steps.seconds)).peak
    return Training(graph, machine, plain, _saved(plain), least, tuple(found))


def _shares(plain: Candidate, graph: Graph) -> list[int]:
    assert plain.memory is not None
    weights = sum(v.type.bytes for v in graph.of_kind(Kind.PARAMETER))
    floor = min(plain.peak_bytes, plain.memory.resident_bytes + weights)
    return [floor + int((plain.peak_bytes - floor) * share) for share in SHARES]


def _training_graph(graph: Graph, name: str) -> Graph:
    if any(node.phase is Phase.BACKWARD for node in graph.nodes):
        return graph
    foreign = sorted({node.op for node in graph.nodes if not node.target and "." in node.op})
    if foreign:
        what = f"operators that PyTorch has no name for: {', '.join(foreign[:5])}"
        raise FormatError(what, where=name, hint="a network of convolutions, pools, matrix products and arithmetic")
    graded = [v.name for v in graph.of_kind(Kind.PARAMETER) if v.type.floating]
    try:
        return training_graph(graph, graded)
    except TilegradError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # torch, about shapes that do not fit together
        what = f"the graph cannot be differentiated: {str(error).splitlines()[0][:200]}"
        raise FormatError(what, where=name, hint="is the profile damaged?") from None


def _plan(steps: Steps, tiles: Search | None, budget: int) -> Planning | str:
    try:
        return plan_step(steps, tiles, budget, storages=(Storage.DEVICE, Storage.HOST))
    except BudgetError as error:
        return error.what
    except TilegradError as error:
        return str(error)


def _saved(plain: Candidate) -> int:
    """Alive when backward begins, beyond what is there before and after a step."""
    memory, schedule = plain.memory, plain.schedule
    assert memory is not None and isinstance(schedule, StepList)
    turn = next((at for at, step in enumerate(schedule.steps) if _begins(step, schedule.graph)), None)
    return 0 if turn is None else sum(life.bytes for life in memory.lifetimes if life.start < turn < life.stop)


def _begins(step: WholeStep, graph: Graph) -> bool:
    return isinstance(step, Run) and graph.node[step.node].phase is Phase.BACKWARD
