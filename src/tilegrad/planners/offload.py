"""Offload to the host: values that wait long between two uses spend that time elsewhere.

Works on any order of runs, plain or with recompute. Where the budget is exceeded, a value that is idle there is copied
out right after the use before, its memory given back just before the squeeze begins, and fetched back as soon as the
squeeze is over: copies have the most time to hide behind computing, and memory is certain whatever the link does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..ir import Graph
from ..schedule import Free, Move, Schedule
from ..schedule.whole import DEVICE, HOST, Roots, list_steps, roots_of, whole_schedule
from ..sim.clock import measure_time
from ..sim.machine import Machine
from .problem import Planner, Problem, Proposal, plan_keep
from .recompute import schedule_reruns

TRIALS = 6  # candidates whose time is simulated, of all that help
SMALL = 1 << 16  # bytes not worth a copy
LOOSER = (1.0, 1.1, 1.2, 1.35, 1.5)  # budgets for recompute, as shares of the budget, before copies do the rest
SHARE = 8  # of the effort for recompute, the part that each of these is worth


class Offload(Planner):
    """Copies alone, and after recompute for a looser budget; of those the fastest."""

    name = "offload"
    whole = True
    effort = 3

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        step, budget = problem.step, problem.budget
        if step is None or not step.hosted:
            return
        alone = plan_offload(step.graph, step.seconds, step.machine, budget)
        if alone is not None:
            yield Proposal(alone, "copies alone")
        both: list[tuple[float, float, Schedule]] = []
        for share in LOOSER:
            if (looser := int(budget * share)) >= step.keep.peak_bytes:
                break  # that is copies alone
            base = schedule_reruns(step.reruns, looser, step.effort.part(SHARE))
            found = plan_offload(step.graph, step.seconds, step.machine, budget, base) if base is not None else None
            if found is not None:
                both.append((measure_time(found, step.seconds, step.machine).total_s, share, found))
        if both:
            _, share, found = min(both, key=lambda each: each[:2])
            yield Proposal(found, f"recompute for {share:g} of the budget, copies for the rest")

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
    gaps, found = _idle(roots_of(graph), runs)
    live = np.array(found, dtype=np.int64)
    clock = _Clock([seconds[node] for node in runs], machine)
    chosen: dict[tuple[str, int], Gap] = {}
    while live.max(initial=0) > budget:
        best = _best(clock, budget, gaps, live, chosen)
        if best is None:
            return None
        old = chosen.get((best.value, best.use))
        if old is not None:
            live[old.gone : old.back] += old.bytes
        live[best.gone : best.back] -= best.bytes
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
    clock: _Clock, budget: int, gaps: Sequence[Gap], live: np.ndarray, chosen: Mapping[tuple[str, int], Gap]
) -> Gap | None:
    """The gap to use at the worst run: most excess gone per second that copying costs."""
    worst, excess = int(live.argmax()), np.maximum(live - budget, 0)
    over = np.flatnonzero(excess)
    options: list[tuple[float, Gap]] = []
    for gap in gaps:
        if not gap.use < worst < gap.again:
            continue
        first, last = np.searchsorted(over, (gap.use + 1, gap.again))
        gone, back = int(over[first]), int(over[last - 1]) + 1
        old = chosen.get((gap.value, gap.use))
        if old is not None:
            if old.gone <= worst < old.back:
                continue
            gone, back = min(gone, old.gone), max(back, old.back)
        gained = int(np.minimum(excess[gone:back], gap.bytes).sum())
        options.append((gained / gap.bytes, replace(gap, gone=gone, back=back)))
    options.sort(key=lambda option: -option[0])
    scored = []
    for gain, gap in options[:TRIALS]:
        trial = {**chosen, (gap.value, gap.use): gap}
        scored.append(((clock.stall(trial.values()) + 1e-9) / (gain * gap.bytes), gap.use, gap.value, gap))
    return min(scored)[-1] if scored else None


class _Clock:
    """How long runs wait for copies: what `measure_time` says of the schedule, from the copies alone."""

    def __init__(self, seconds: Sequence[float], machine: Machine):
        self.starts, self.machine = np.concatenate([[0.0], np.cumsum(seconds)]).tolist(), machine

    def stall(self, gaps: Iterable[Gap]) -> float:
        events: list[tuple[int, int, int, Gap]] = []  # before which run; out, free, back, read; in which order
        for gap in gaps:
            events += [(gap.use + 1, 0, gap.gone, gap), (gap.gone, 1, gap.gone, gap)]
            events += [(gap.back, 2, gap.again, gap), (gap.again, 3, gap.again, gap)]
        waited = out_free = in_free = 0.0
        away, back = dict[str, float](), dict[str, float]()
        for run, what, _, gap in sorted(events, key=lambda event: event[:3]):
            now = self.starts[run] + waited
            if what == 0:
                out_free = away[gap.value] = max(now, out_free) + gap.bytes / self.machine.to_host_per_s
            elif what == 2:
                in_free = back[gap.value] = max(now, in_free) + gap.bytes / self.machine.from_host_per_s
            else:
                waited += max(0.0, (away if what == 1 else back).pop(gap.value) - now)
        return waited
