"""What is to be planned, what a planner answers, and what its answer is predicted to cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..bounds.mesh import Mesh
from ..ir import Graph
from ..schedule import Schedule, Storage, check_schedule
from ..schedule.whole import NodeIslands, list_steps, whole_schedule
from ..sim.clock import Time, measure_time
from ..sim.cost import node_seconds
from ..sim.machine import CPU, Machine
from ..sim.memory import Memory, Prediction
from ..sim.offsets import Layout, assign_offsets, check_layout
from ..sim.predict import measure_memory, predict
from .stages.problem import StageProblem, make_problem
from .stages.search import Effort as Effort
from .stages.search import RecomputeSearch

if TYPE_CHECKING:
    from .tile import TileSearch


@dataclass(frozen=True)
class MeshProblem:
    """A network on a mesh. All ranks plan alike, so machine and link come from a table, by the kind of device."""

    graph: Graph = field(repr=False)  # lowered
    mesh: Mesh
    rank: int  # who asks
    graded: tuple[str, ...] = ()
    exchange: str = "auto"
    machine: Machine = CPU


@dataclass(frozen=True)
class Problem:
    """A step of a network on a machine, in so many bytes. What a planner does not find here it proposes nothing for."""

    budget: int
    step: TrainingStep | None = None  # its nodes, each run whole
    tiles: TileSearch | None = None  # its boxes
    network: Graph | None = field(default=None, repr=False)  # as captured, where stretches of it may run apart
    ranks: MeshProblem | None = None  # the mesh it runs on
    storages: Sequence[str] = (Storage.DEVICE,)
    known: Candidate | None = field(default=None, repr=False)  # plain PyTorch, where that was measured
    between: int = 0  # bytes that lie between tensors of very different sizes, as whole nodes make them: left free

    @property
    def plain(self) -> Candidate | None:
        """What running it as it is costs."""
        return self.known or (self.step.keep if self.step is not None else None)

    @property
    def _given(self) -> TrainingStep | TileSearch | MeshProblem:
        found = self.step or self.tiles or self.ranks
        assert found is not None, "a problem without a network"
        return found

    @property
    def machine(self) -> Machine:
        return self._given.machine

    @property
    def graph(self) -> Graph:
        return self._given.graph

    @property
    def graded(self) -> tuple[str, ...]:
        """The outside values that need a gradient."""
        found = self.tiles or self.ranks
        return found.graded if found is not None else ()


@dataclass(frozen=True)
class Proposal:
    """A planner's answer."""

    schedule: Schedule = field(repr=False)
    detail: str  # what sets it apart from others of its planner
    prediction: Prediction | None = field(default=None, repr=False)  # where the planner had to make it anyway
    busiest: Schedule | None = field(default=None, repr=False)  # on a mesh: the rank's whose figures count
    source: Any = field(default=None, repr=False)  # what the planner made it from


class Planner:
    """One way to run a step in a budget. A subclass in a file of this folder is found by itself."""

    name = ""
    effort = 0  # cheap planners are asked first
    whole = False  # does it plan whole nodes, at least for the most part?
    ordered = False  # do proposals come fastest first? Then the first that fits is the last that is asked for

    def propose(self, problem: Problem) -> Iterable[Proposal]:
        """Schedules; whether they fit is for the reader to see."""
        raise NotImplementedError

    def fastest_s(self, problem: Problem) -> float:
        """No plan of it is faster than this: where a plan is known that is, there is no need to ask. Whole nodes run at
        least once, as they do in a plain step."""
        return problem.plain.time_s if self.whole and problem.plain is not None else 0.0

    def least(self, problem: Problem) -> Iterable[tuple[int, str]]:
        """The smallest budgets that it can meet, besides those of its proposals, and what stands in the way of less."""
        return ()


@dataclass(frozen=True)
class Candidate:
    """A schedule with its predicted cost."""

    planner: str
    detail: str
    schedule: Schedule = field(repr=False)
    peak_bytes: int
    time_s: float
    host_bytes: int = 0  # copied to the host and back in a step
    memory: Memory | None = field(default=None, repr=False)
    time: Time | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    where: str = ""  # the peak
    source: Any = field(default=None, repr=False)

    @cached_property
    def layout(self) -> Layout | None:
        """Addresses for everything that comes and goes; tiled schedules are left to the allocator."""
        if self.memory is None or not self.memory.lifetimes:
            return None
        layout = assign_offsets(self.memory.lifetimes)
        check_layout(self.memory.lifetimes, layout)
        return layout

    @property
    def offset_bytes(self) -> int | None:
        """The address range a step needs, what is resident included."""
        if self.memory is None or self.layout is None:
            return None
        return self.memory.resident_bytes + self.layout.range_bytes

    def to_json(self, plain_s: float, *, offsets: bool = False) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "detail": self.detail,
            "peak_bytes": self.peak_bytes,
            "time_s": self.time_s,
            "extra_time": self.time_s / plain_s - 1 if plain_s else 0.0,
            "host_bytes": self.host_bytes,
            "offset_bytes": self.offset_bytes if offsets else None,
            "gap": self.schedule.gap,
            "notes": list(self.notes),
        }


def judge(problem: Problem, planner: str, proposal: Proposal) -> Candidate:
    """Check a schedule against its rules, and predict its bytes and seconds."""
    if problem.step is not None and isinstance(proposal.schedule.islands, NodeIslands):
        return replace(problem.step.judge(proposal.schedule, proposal.detail), planner=planner)
    check_schedule(proposal.schedule)
    measured = proposal.busiest or proposal.schedule
    found = proposal.prediction or predict(measured, problem.graded)
    time = measure_time(measured, None, problem.machine)
    return Candidate(
        planner,
        proposal.detail,
        replace(proposal.schedule, predicted=found.figures),
        found.total_bytes,
        time.total_s,
        time.host_bytes,
        found.memory,
        notes=proposal.schedule.notes,
        where=f"{found.worst}, {found.worst_node}".strip(", "),
        source=proposal.source,
    )


@dataclass(frozen=True)
class TrainingStep:
    """A training graph (forward and backward nodes) on a machine."""

    graph: Graph
    machine: Machine
    effort: Effort = field(default_factory=Effort)
    hosted: bool = True  # is there a host to copy to?

    @cached_property
    def seconds(self) -> dict[str, float]:
        return node_seconds(self.graph, self.machine)

    @cached_property
    def stages(self) -> StageProblem:
        return make_problem(self.graph, self.seconds)

    @cached_property
    def reruns(self) -> RecomputeSearch:
        """One search for all budgets."""
        return RecomputeSearch(self.stages)

    @cached_property
    def keep(self) -> Candidate:
        return self.judge(plan_keep(self.graph), "everything")

    def judge(self, schedule: Schedule, detail: str) -> Candidate:
        check_schedule(schedule)
        memory, time = measure_memory(schedule), measure_time(schedule, self.seconds, self.machine)
        figures = {
            "peak_bytes": memory.peak_bytes - memory.resident_bytes,
            "total_bytes": memory.peak_bytes,
            "halo_bytes": 0,
            "time_s": time.total_s,
            "host_bytes": time.host_bytes,
        }
        schedule = replace(schedule, predicted=figures)
        return Candidate(
            schedule.mode,
            detail,
            schedule,
            memory.peak_bytes,
            time.total_s,
            time.host_bytes,
            memory,
            time,
            schedule.notes,
        )


def plan_keep(graph: Graph) -> Schedule:
    """Every node once, every value until its last use: what plain PyTorch does."""
    return whole_schedule(graph, "keep", list_steps(graph, [n.name for n in graph.nodes]))
