"""The full planner: every way to fit a step into a budget, ranked by predicted time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BudgetError, GridError, InputError
from ..ir import Graph, Phase
from ..planners.evict import smallest_peak
from ..planners.offload import least_by_copies
from ..planners.problem import make_problem
from ..planners.segments import best_segments
from ..schedule import Storage
from ..sim.machine import Machine
from ..units import format_bytes
from .candidates import PLANNERS, Candidate, Steps, fastest
from .mixed import Mixed
from .tiles import Fit, Search, fit_tiles

MUCH = 1.1  # times plain: from here on a mix of tiles and whole nodes is worth a search


@dataclass(frozen=True)
class Slack:
    """What a plan leaves free: kernels may want a little more than is predicted."""

    share: float  # of what is not `outside`
    outside: int  # bytes that are there before and after a step

    def inside(self, budget: int) -> int:
        return budget - int(self.share * max(0, budget - self.outside))

    def around(self, peak: int) -> int:
        """The least budget that a peak fits in."""
        budget = peak if peak <= self.outside else int(self.outside + (peak - self.outside) / (1 - self.share))
        while self.inside(budget - 1) >= peak > 0:  # what was rounded
            budget -= 1
        while self.inside(budget) < peak:
            budget += 1
        return budget


@dataclass(frozen=True)
class Planning:
    """What was asked, all candidates, and the chosen one."""

    graph: Graph = field(repr=False)
    machine: Machine
    budget: int
    plain: Candidate
    candidates: tuple[Candidate, ...]
    chosen: Candidate

    def to_json(self) -> dict[str, Any]:
        base = self.plain.time_s
        return {
            "schema": 1,
            "network": self.graph.name,
            "machine": self.machine.name,
            "budget_bytes": self.budget,
            "plain": self.plain.to_json(base, offsets=True),
            "plan": self.chosen.to_json(base, offsets=True),
            "candidates": [c.to_json(base) | {"fits": c.peak_bytes <= self.budget} for c in self.candidates],
        }


def plan_step(
    steps: Steps | None,
    tiles: Search | None,
    budget: int,
    *,
    planner: str = "auto",
    storages: Sequence[Storage] = (Storage.DEVICE,),
    plain: Candidate | None = None,
    slack: Slack | None = None,
    mixed: Mixed | None = None,
) -> Planning:
    """The fastest schedule that fits. `steps`: plans of whole nodes; `tiles`: tiled ones; `plain`: what running the
    module itself costs, where that is known better than `steps` knows it; `slack`: what to leave free; `mixed`: plans
    of tiles and whole nodes together."""
    slack = slack or Slack(0.0, 0)
    asked_budget, budget = budget, slack.inside(budget)
    if planner not in (*PLANNERS, "auto"):
        raise InputError(f"'{planner}' is not a planner", hint=f"one of {', '.join((*PLANNERS, 'auto'))}")
    asked = PLANNERS if planner == "auto" else (planner,)
    plain = plain or (steps.keep if steps is not None else None)
    assert plain is not None
    found, tried = [plain], list[Fit]()
    if plain.peak_bytes > asked_budget or "keep" not in asked:
        if steps is not None:
            found += [c for c in steps.candidates(budget, asked) if c.planner != "keep"]
        best = fastest([c for c in found if c.planner in asked], budget)
        if mixed is not None and "tile" in asked and (best is None or best.time_s > MUCH * plain.time_s):
            found += mixed.candidates(budget)
            best = fastest([c for c in found if c.planner in asked], budget)
        # Tiles cost a forward pass more than plain: no need to look where something else is cheaper than that.
        if tiles is not None and "tile" in asked and (best is None or best.time_s > tiles.least_seconds):
            found += _tiled(tiles, budget, storages, tried)
    chosen = fastest([c for c in found if c.planner in asked], budget)
    if chosen is None and plain.peak_bytes <= asked_budget and "keep" in asked:
        chosen = plain  # it is what it is: nothing to leave free for
    if chosen is None:
        raise _nothing_fits(asked_budget, found, steps, tried, slack, asked)
    graph = steps.graph if steps is not None else tiles.graph if tiles is not None else plain.schedule.graph
    machine = steps.machine if steps is not None else tiles.machine if tiles is not None else None
    assert machine is not None
    return Planning(graph, machine, asked_budget, plain, tuple(found), chosen)


def sweep(steps: Steps | None, tiles: Search | None, budgets: Sequence[int], **options: Any) -> list[Planning]:
    """Plans for several budgets, in their order. A plan for less serves for more: time never rises with the budget."""
    best: Candidate | None = None
    found: dict[int, Planning] = {}
    for budget in sorted(set(budgets)):
        planning = plan_step(steps, tiles, budget, **options)
        if best is not None and best.time_s < planning.chosen.time_s:
            planning = replace(planning, candidates=(*planning.candidates, best), chosen=best)
        best, found[budget] = planning.chosen, planning
    return [found[budget] for budget in budgets]


def forward_part(graph: Graph) -> Graph:
    """The forward pass of a training graph, whose outputs are what none of its nodes reads."""
    nodes = tuple(n for n in graph.nodes if n.phase is Phase.FORWARD)
    read, made = {v for n in nodes for v in n.reads}, {v for n in nodes for v in n.outputs}
    values = tuple(v for v in graph.values if v.name in made or not v.kind.computed)
    return Graph(values, nodes, tuple(v for n in nodes for v in n.outputs if v not in read), (), graph.name)


def _tiled(tiles: Search, budget: int, storages: Sequence[Storage], tried: list[Fit]) -> list[Candidate]:
    try:
        fit = fit_tiles(tiles, budget, storages, tried)
    except GridError:  # nothing here has an axis that could be cut
        return []
    best = fit or min(tried, key=lambda f: f.prediction.total_bytes, default=None)
    return [] if best is None else [tile_candidate(best, tiles)]


def tile_candidate(fit: Fit, tiles: Search) -> Candidate:
    grids = {p.forward.tiled: p.grid for p in fit.schedule.phases if p.forward is not None}
    detail = "; ".join(f"{'x'.join(map(str, grid))} along {','.join(axes)}" for axes, grid in grids.items())
    return Candidate(
        "tile",
        f"{fit.schedule.mode}, {detail}, halos on {fit.schedule.storage}",
        fit.planned,
        fit.prediction.total_bytes,
        fit.seconds(tiles),
        host_bytes=0 if fit.schedule.storage is Storage.DEVICE else 2 * fit.prediction.halo_bytes,
        memory=fit.prediction.memory,
    )


def _nothing_fits(
    budget: int,
    found: Sequence[Candidate],
    steps: Steps | None,
    tried: Sequence[Fit],
    slack: Slack,
    asked: Sequence[str],
) -> BudgetError:
    """The smallest feasible budget, and what stands in the way of less."""
    plain_too = tuple(asked) != ("tile",)  # every other planner may also just keep everything
    options = [(c.peak_bytes, _why(c)) for c in found if c.planner in asked or (c.planner == "keep" and plain_too)]
    options += [
        (f.prediction.total_bytes, f"{f.prediction.worst}, {f.prediction.worst_node}".strip(", ")) for f in tried
    ]
    if steps is not None:
        options += _least_of_steps(steps, asked)
    if not options:
        return BudgetError(f"the planner '{asked[0]}' has no plan for this network", hint='planner="auto"')
    least, where = min(options)
    least = slack.around(least)
    return BudgetError(
        f"nothing fits {format_bytes(budget)}: the smallest plan found needs {format_bytes(least)} ({least} bytes)",
        where=where,
        hint=f'budget="{-(-least // 2**20)}MiB", or a smaller batch',
    )


def _least_of_steps(steps: Steps, asked: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The smallest peaks of planners of whole nodes. Each finds its own again when it is the budget."""
    problem = make_problem(steps.graph, steps.seconds)
    if "segments" in asked and problem.backward:
        yield best_segments(problem, 0, steps.effort.heuristic_s).peak, "segments of the forward pass"
    if "recompute" in asked and problem.backward:
        low = smallest_peak(problem)
        worst = max(range(len(low.costs)), key=lambda s: low.costs[s].peak)
        yield low.peak, f"recompute alone, before {problem.backward[worst]}"
    if "offload" in asked and steps.hosted and steps.graph.nodes:
        least, node = least_by_copies(steps.graph)
        yield least, f"copies alone, at {steps.graph.node[node].describe()}"


def _why(candidate: Candidate) -> str:
    if candidate.memory is None or not candidate.memory.alive:
        return f"{candidate.planner}: {candidate.detail}"
    largest = candidate.memory.alive[0]
    return f"{candidate.planner}, while it holds {largest.value} ({format_bytes(largest.bytes)}) of {largest.source}"
