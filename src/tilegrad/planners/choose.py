"""The full planner: every way to fit a step into a budget, ranked by predicted time."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import BudgetError, InputError, one_of
from ..garbage import no_collections
from ..ir import Graph
from ..progress import Progress
from ..sim.machine import Machine
from ..units import format_bytes, format_predicted, in_decimal
from .problem import Candidate, Planner, Problem, judge
from .refusal import nothing_fits

_log = logging.getLogger("tilegrad")


@cache
def _import_all() -> None:
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{found.name}")


def planners() -> dict[str, Planner]:
    """All there are, those in this folder and those that a user has defined, by name, cheap ones first."""
    _import_all()
    found = dict[str, Planner]()
    for kind in _kinds(Planner):
        planner = kind()
        if not planner.name or planner.name == "auto" or planner.name in found:
            what = f"the planner {kind.__module__}.{kind.__qualname__} has no name of its own: '{planner.name}'"
            raise InputError(what, hint='name = "mine" in the class')
        found[planner.name] = planner
    return dict(sorted(found.items(), key=lambda item: item[1].effort))


def _kinds(base: type[Planner]) -> Iterator[type[Planner]]:
    for kind in base.__subclasses__():
        yield from _kinds(kind)
        if kind.propose is not Planner.propose:
            yield kind


def planner_names() -> tuple[str, ...]:
    """What a user may ask for on one device."""
    return (*(name for name in planners() if name != "mesh"), "auto")


def check_planner(name: str) -> None:
    if name not in (*planners(), "auto"):
        raise InputError(f"'{name}' is not a planner", hint=one_of(name, planner_names()))


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
    stopped: bool = False  # by Ctrl-C, before every planner was asked

    def to_json(self) -> dict[str, Any]:
        base = self.plain.time_s
        return {
            "schema": 1,
            "network": self.graph.name,
            "machine": self.machine.name,
            "budget_bytes": self.budget,
            "decimal": in_decimal(),  # was it given in powers of 1000?
            "plain": self.plain.to_json(base, offsets=True),
            "plan": self.chosen.to_json(base, offsets=True),
            "candidates": [c.to_json(base) | {"fits": c.peak_bytes <= self.budget} for c in self.candidates],
        }


@no_collections()
def plan_step(problem: Problem, *, planner: str = "auto", slack: Slack | None = None) -> Planning:
    """The fastest schedule that fits. `slack`: what to leave free. Ctrl-C ends the search with the best so far."""
    check_planner(planner)
    slack = slack or Slack(0.0, 0)
    asked = planners() if planner == "auto" else {planner: planners()[planner]}
    inside = replace(problem, budget=slack.inside(problem.budget))
    plain, found = problem.plain, list[Candidate]()
    fits = plain is not None and plain.peak_bytes <= problem.budget and "keep" in asked
    if plain is not None:
        found.append(plain)
    stopped = not fits and _ask_all(asked, inside, found)
    chosen = _best(inside, asked, found)
    if chosen is None and fits:
        chosen = plain  # it is what it is: nothing to leave free for
    if chosen is None:
        raise _nothing_fits(problem, found, slack, asked)
    return Planning(problem.graph, problem.machine, problem.budget, plain or found[0], tuple(found), chosen, stopped)


def _ask_all(asked: dict[str, Planner], problem: Problem, found: list[Candidate]) -> bool:
    """Add to `found` what planners propose. Ctrl-C ends that where something fits. Was it ended so?"""
    with Progress("planning") as progress:
        try:
            for done, planner in enumerate(_in_turn(asked, problem)):
                if not progress.stopped:
                    _ask(planner, problem, asked, found, partial(progress.tell, done=done, total=len(asked)))
        except KeyboardInterrupt:
            progress.stop()
        best = _best(problem, asked, found)
        if progress.stopped:
            if best is None:
                raise KeyboardInterrupt
            _log.warning("planning was stopped: this is the best of %d candidates so far", len(found))
        progress.tell(f"{'nothing' if best is None else best.planner} chosen, {_so_far(found, best)}")
        return progress.stopped


def _in_turn(asked: dict[str, Planner], problem: Problem) -> list[Planner]:
    """Cheap ones first. But where memory is new each time, tiles may be faster than a plain step, as whole nodes never
    are: then those who may be are asked before, and the others perhaps not at all."""
    plain = problem.plain
    if plain is None or problem.machine.fresh_bytes_per_s is None:
        return [*asked.values()]
    return sorted(asked.values(), key=lambda planner: planner.whole or planner.fastest_s(problem) >= plain.time_s)


def _ask(
    planner: Planner, problem: Problem, asked: Container[str], found: list[Candidate], tell: Callable[[str], None]
) -> None:
    """Add to `found` what a planner proposes, unless the best that is known is faster than it can be."""
    best = _best(problem, asked, found)
    if planner.name == "keep" and problem.plain is not None:
        return  # known already
    if best is not None and best.time_s <= planner.fastest_s(problem):
        return
    tell(f"{planner.name} at work, {_so_far(found, best)}")
    for candidate in candidates(problem, planner):
        found.append(candidate)
        tell(f"{planner.name} at work, {_so_far(found, _best(problem, asked, found))}")
        if planner.ordered and candidate.peak_bytes <= problem.budget:
            break


def _best(problem: Problem, asked: Container[str], found: Sequence[Candidate]) -> Candidate | None:
    return fastest([c for c in found if c.planner in asked], problem.budget)


def _so_far(found: Sequence[Candidate], best: Candidate | None) -> str:
    fits = (
        "none fits yet"
        if best is None
        else f"best {format_bytes(best.peak_bytes)}, {format_predicted(best.time_s)} a step"
    )
    return f"{len(found)} candidates, {fits}"


def candidates(problem: Problem, planner: Planner) -> Iterator[Candidate]:
    """What a planner proposes, with what it costs; whether it fits is for the reader to see."""
    inside = replace(problem, budget=problem.budget - problem.between) if planner.whole else problem
    return (judge(problem, planner.name, proposal) for proposal in planner.propose(inside))


def fastest(candidates: Sequence[Candidate], budget: int) -> Candidate | None:
    """The least time that fits; at equal time fewer copies, then the smaller peak."""
    fitting = [c for c in candidates if c.peak_bytes <= budget]
    return min(fitting, key=lambda c: (c.time_s, c.host_bytes, c.peak_bytes), default=None)


def sweep(problem: Problem, budgets: Sequence[int], **options: Any) -> list[Planning | BudgetError]:
    """For several budgets, in their order, a planning, or why there is none. A plan for less serves for more: time
    never rises with the budget, and where nothing fits, nothing is looked for in less. An error where none fit."""
    found: dict[int, Planning | BudgetError] = {}
    refused: BudgetError | None = None
    for budget in sorted(set(budgets), reverse=True):
        try:
            found[budget] = refused or plan_step(replace(problem, budget=budget), **options)
        except BudgetError as error:
            found[budget] = refused = error
    best: Candidate | None = None
    for budget, planning in reversed(found.items()):
        if isinstance(planning, Planning):
            if best is not None and best.time_s < planning.chosen.time_s:
                found[budget] = planning = replace(planning, candidates=(*planning.candidates, best), chosen=best)
            best = planning.chosen
    if best is None and refused is not None:
        raise refused
    return [found[budget] for budget in budgets]


def _nothing_fits(problem: Problem, found: Sequence[Candidate], slack: Slack, asked: dict[str, Planner]) -> BudgetError:
    """The smallest feasible budget, and what stands in the way of less."""
    plain_too = tuple(asked) != ("tile",)  # every other planner may also just keep everything
    options = [(c.peak_bytes, _why(c)) for c in found if c.planner in asked or (c.planner == "keep" and plain_too)]
    options += [option for planner in asked.values() for option in planner.least(problem)]
    if not options:
        name = next(iter(asked))
        return BudgetError(f"the planner '{name}' has no plan for this network", hint='planner="auto"')
    least, where = min(options)
    planner = next(iter(asked)) if len(asked) == 1 else "auto"
    return nothing_fits(problem, slack.around(least), where, found, planner)


def _why(candidate: Candidate) -> str:
    if candidate.where:
        return f"{candidate.detail}: {candidate.where}" if candidate.planner == "mesh" else candidate.where
    if candidate.memory is None or not candidate.memory.alive:
        return f"{candidate.planner}: {candidate.detail}"
    largest = candidate.memory.alive[0]
    return f"{candidate.planner}, while it holds {largest.value} ({format_bytes(largest.bytes)}) of {largest.source}"
