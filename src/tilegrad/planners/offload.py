"""Offload to the host: values that wait long between two uses spend that time elsewhere.

Works on any order of runs, plain or with recompute. Where the budget is exceeded, a value that is idle there is copied
out right after the use before, its memory given back just before the squeeze begins, and fetched back as soon as the
squeeze is over: copies have the most time to hide behind computing, and memory is certain whatever the link does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..ir import Graph
from ..schedule import Free, Move, Schedule
from ..schedule.whole import DEVICE, HOST, Roots, list_steps, roots_of, whole_schedule
from ..sim.clock import measure_time
from ..sim.machine import Machine
from .problem import Candidate, Effort, Planner, Problem, Proposal, plan_keep
from .recompute import plan_recompute

TRIALS = 6  # candidates whose time is simulated, of all that help
SMALL = 1 << 16  # bytes not worth a copy
LARGE = 200  # nodes, from which on fewer combinations are tried
LOOSER = (1.0, 1.1, 1.2, 1.35, 1.5)  # budgets for recompute, as shares of the budget, before copies do the rest


class Offload(Planner):
    """Copies alone, and after recompute for a looser budget; of those the fastest."""

    name = "offload"
    effort = 3

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        step, budget = problem.step, problem.budget
        if step is None or not step.hosted:
            return
        alone = plan_offload(step.graph, step.seconds, step.machine, budget)
        if alone is not None:
            yield Proposal(alone, "copies alone")
        large = len(step.graph.nodes) > LARGE
        quick = Effort(step.effort.heuristic_s / (4 if large else 1), 0.0)
        both: list[Candidate] = []
        for share in LOOSER[1::2] if large else LOOSER:
            base = plan_recompute(step.graph, step.seconds, int(budget * share), quick)
            found = plan_offload(step.graph, step.seconds, step.machine, budget, base) if base is not None else None
            if found is not None:
                detail = f"recompute for {share:g} of the budget, copies for the rest"
                both.append(step.judge(found, detail))
        if both:
            best = min(both, key=lambda c: c.time_s)
            yield Proposal(best.schedule, best.detail)

    def least(self, problem: Problem) -> Iterator[tuple[int, str]]:
        if (step := problem.step) is not None and step.hosted and step.graph.nodes:
            bytes_, node = least_by_copies(step.graph)
            yield bytes_, f"copies alone, at {step.graph.node[node].describe()}"


@dataclass(frozen=True)
class Gap:
    """A value idle between two of its uses: after run `use`, before run `again`. Away from run `gone` to run `back`."""

    value: str
    bytes: int
    use: int
    again: int
    gone: int = -1  # the first run without it
    back: int = -1  # the first run with it again

    @property
    def away(self) -> range:
        return range(self.gone, self.back)


def plan_offload(
    graph: Graph, seconds: Mapping[str, float], machine: Machine, budget: int, base: Schedule | None = None
) -> Schedule | None:
    """Copies that make `base` (default: keep everything) fit, chosen for the least time; None where none suffice."""
    base = base or plan_keep(graph)
    runs = base.runs
    memory = roots_of(graph)
    gaps, live = _idle(memory, runs)
    chosen: dict[tuple[str, int], Gap] = {}
    while max(live, default=0) > budget:
        best = _best(graph, runs, seconds, machine, budget, gaps, live, chosen, base)
        if best is None:
            return None
        old = chosen.get((best.value, best.use))
        for run in best.away:
            if old is None or run not in old.away:
                live[run] -= best.bytes
        chosen[best.value, best.use] = best
    return _schedule(graph, runs, list(chosen.values()), base)


def least_by_copies(graph: Graph) -> tuple[int, str]:
    """The smallest budget that copies alone can meet, and the node that stands in the way of less."""
    runs = plan_keep(graph).runs
    gaps, live = _idle(roots_of(graph), runs)
    for gap in gaps:
        for run in range(gap.use + 1, gap.again):
            live[run] -= gap.bytes
    worst = max(range(len(live)), key=live.__getitem__)
    return live[worst], runs[worst]


def _schedule(graph: Graph, runs: Sequence[str], gaps: Sequence[Gap], base: Schedule) -> Schedule:
    moves: dict[int, list[Free | Move]] = {}
    for gap in sorted(gaps, key=lambda g: g.gone):
        moves.setdefault(gap.use + 1, []).append(Move(gap.value, HOST))
    for gap in sorted(gaps, key=lambda g: g.gone):
        moves.setdefault(gap.gone, []).append(Free(gap.value))
    for gap in sorted(gaps, key=lambda g: g.again):
        moves.setdefault(gap.back, []).append(Move(gap.value, DEVICE))
    return whole_schedule(graph, "offload", list_steps(graph, runs, moves), base.notes)


def _idle(memory: Roots, runs: Sequence[str]) -> tuple[list[Gap], list[int]]:
    """All gaps in the lives of all values, and the bytes alive during every run."""
    uses: dict[str, list[int]] = {}
    gaps: list[Gap] = []
    changes = [0] * (len(runs) + 1)

    def close(name: str, end: int) -> None:
        life, size = uses.pop(name), memory.bytes[name]
        changes[life[0]] += size
        changes[end] -= size
        if size >= SMALL and name not in memory.kept:
            gaps.extend(Gap(name, size, a, b) for a, b in pairwise(life) if b - a > 1)

    for at, node in enumerate(runs):
        touched = dict.fromkeys([*memory.reads(node), *memory.lived_in(node)])
        for name in touched:
            uses[name].append(at)
        for name in memory.writes(node):
            if name in uses and name in memory.kept:  # made once more: the other one is there for a moment
                changes[at] += memory.bytes[name]
                changes[at + 1] -= memory.bytes[name]
                continue
            if name in uses:  # made again: the old one ended with its last use
                close(name, uses[name][-1] + 1)
            uses[name] = [at]
    for name in list(uses):
        close(name, len(runs) if name in memory.kept else uses[name][-1] + 1)
    live, now = [], memory.resident_bytes
    for change in changes[:-1]:
        now += change
        live.append(now)
    return gaps, live


def _best(
    graph: Graph,
    runs: Sequence[str],
    seconds: Mapping[str, float],
    machine: Machine,
    budget: int,
    gaps: Sequence[Gap],
    live: Sequence[int],
    chosen: Mapping[tuple[str, int], Gap],
    base: Schedule,
) -> Gap | None:
    """The gap to use at the worst run: most excess gone per second that copying costs."""
    worst = max(range(len(live)), key=live.__getitem__)
    options: list[tuple[float, Gap]] = []
    for gap in gaps:
        if not gap.use < worst < gap.again:
            continue
        over = [j for j in range(gap.use + 1, gap.again) if live[j] > budget]
        old = chosen.get((gap.value, gap.use))
        if old is not None:
            if worst in old.away:
                continue
            over = [*over, *old.away]
        found = replace(gap, gone=min(over), back=max(over) + 1)
        excess = sum(min(gap.bytes, live[j] - budget) for j in found.away if live[j] > budget)
        options.append((excess / gap.bytes, found))
    options.sort(key=lambda option: -option[0])
    scored = []
    for gain, gap in options[:TRIALS]:
        trial = {**chosen, (gap.value, gap.use): gap}
        time = measure_time(_schedule(graph, runs, list(trial.values()), base), seconds, machine)
        scored.append(((time.stall_s + 1e-9) / (gain * gap.bytes), gap.use, gap.value, gap))
    return min(scored)[-1] if scored else None
