"""Tiles where they pay, whole nodes where they do not: the first stretch of a network runs in tiles, the rest whole,
kept or partly run again.

High-resolution layers come first in most networks and hold most of the memory; streaming only those costs less time
than streaming all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ..bounds import lower_graph
from ..ir import Graph, Kind, Node, Value
from ..schedule import Free, Island, Schedule, Storage, TilePhase
from ..sim.training import training_graph
from .fused import fuse_within
from .problem import Effort, Planner, Problem, Proposal, TrainingStep
from .recompute import schedule_reruns
from .tiling import Scale, UncutPhase, Walks, Weight, axis_lengths, cut_tiles, make_schedule, total_stride

MUCH = 1.1  # times plain: from here on a mix of tiles and whole nodes is worth a search
SHARES = (0.4, 0.6, 0.8, 0.95)  # of all activations' bytes that the tiled stretch makes
COUNTS = (4, 16)  # tiles
MOST_WALKS = 3
TRIED = 3  # of those that should fit
QUICK = Effort().part(4)


class Mixed(Planner):
    name = "mixed"
    whole = True
    effort = 4

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        """Every stretch in few tiles and in many, the rest kept or, if that does not fit, partly run again: all are
        weighed, and the fastest of those that should fit is taken."""
        if problem.network is None or problem.tiles is None or not problem.tiles.axes:
            return
        options = sorted((o for pair in _cuts(problem.network) for o in _options(problem, *pair)), key=_worth)
        found = (_propose(problem, option) for option in options[:TRIED])
        yield from islice((proposal for proposal in found if proposal is not None), 1)

    def fastest_s(self, problem: Problem) -> float:
        """It takes a search, for what little there is to gain beside a plan that costs next to nothing."""
        return MUCH * problem.plain.time_s if problem.plain is not None else 0.0


def _cuts(graph: Graph) -> list[tuple[Graph, Graph]]:
    """First stretches that one value leaves, near the shares asked for, and what follows them."""
    sizes = [graph.type(n.outputs[0]).bytes for n in graph.nodes]
    found: dict[int, tuple[Graph, Graph]] = {}
    for share in SHARES:
        done, wanted = 0, share * sum(sizes)
        for at, size in enumerate(sizes, start=1):
            done += size
            if done >= wanted and at < len(sizes) and (cut := cut_graph(graph, at)) is not None:
                found[at] = cut
                break
    return list(found.values())


@dataclass(frozen=True)
class _Mix:
    """A stretch in tiles and the rest."""

    phases: tuple[TilePhase, ...]
    weight: Weight
    step: TrainingStep  # of the rest
    rest: Graph
    budget: int
    words: str

    @property
    def held(self) -> float:
        """By the tiles while the rest runs, besides what the rest reads; about."""
        (crossing,) = self.phases[0].graph.outputs
        return self.weight.stored_bytes - self.phases[0].graph.type(crossing).bytes

    @property
    def keeps(self) -> bool:
        return self.step.keep.peak_bytes + self.held <= self.budget

    @property
    def fits(self) -> bool:
        """With as much of the rest run again as it takes?"""
        return self.keeps or (
            bool(self.step.stages.backward) and self.step.reruns.least.peak + self.held <= self.budget
        )


def _worth(mix: _Mix) -> tuple[bool, float]:
    """The rest kept before the rest run again, which may turn out not to fit; then seconds, about."""
    return not mix.keeps, mix.weight.seconds + mix.step.keep.time_s


def _options(problem: Problem, inner: Graph, rest: Graph) -> Iterator[_Mix]:
    """The numbers of tiles with which a stretch should fit. One that falls into many phases keeps what lies between
    them: nothing is gained."""
    assert problem.tiles is not None
    lowered, axis = lower_graph(inner), problem.tiles.axes[0]
    walks, graded = Walks(lowered), [name for name in problem.graded if name in lowered.value]
    if axis not in {a for dims in walks.axes.dims.values() for a in dims}:
        return
    if sum(isinstance(part, UncutPhase) for part in walks.parts((axis,), complete=True)) > MOST_WALKS:
        return
    scale = Scale(lowered, graded, True, problem.machine, problem.tiles.scale)
    step: TrainingStep | None = None
    unit, length = total_stride(lowered, (axis,)), axis_lengths(lowered, (axis,))[axis]
    for count in COUNTS:
        phases = cut_tiles(walks, "stream", {axis: -(-length // (count * unit)) * unit}, problem.machine)
        weight = scale.weigh(phases)
        need = weight.total_bytes - sum(lowered.type(name).bytes for name in lowered.outputs)  # which the rest frees
        if need > problem.budget:
            continue
        crossing = [name for name in (*problem.graded, *lowered.outputs) if name in rest.value]
        step = step or TrainingStep(training_graph(rest, crossing), problem.machine, QUICK)
        words = f"the first {len(inner.nodes)} nodes in {count} tiles along {axis}"
        yield _Mix(phases, weight, step, rest, problem.budget, words)


def _propose(problem: Problem, mix: _Mix) -> Proposal | None:
    network = problem.network
    assert network is not None
    tiles = make_schedule(mix.phases[0].graph, "stream", mix.phases, Storage.DEVICE, True)
    best: Schedule | None = mix.step.keep.schedule
    if not mix.keeps:
        best = schedule_reruns(mix.step.reruns, int(problem.budget - mix.held), QUICK)
    if best is None:
        return None
    schedule, prediction = fuse_within(
        best, mix.rest, problem.graded, problem.budget, lambda rest: join_schedules(tiles, rest, network)
    )
    if prediction.total_bytes > problem.budget:
        return None
    how = "the rest whole" if best.mode == "keep" else "the rest partly run again"
    return Proposal(schedule, f"{mix.words}, {how}", prediction)


def cut_graph(graph: Graph, at: int) -> tuple[Graph, Graph] | None:
    """The first `at` nodes and the others, as two graphs. None unless exactly one value leads from one to the other."""
    first, last = graph.nodes[:at], graph.nodes[at:]
    made = {v for n in first for v in n.outputs}
    read = {*graph.outputs, *(r for m in last for r in m.reads)}
    crossing = [v for n in first for v in n.outputs if v in read]
    updates = [pair for pair in graph.updates if pair[1] in made]
    if len(crossing) != 1 or crossing[0] in graph.outputs or any(new in crossing for _, new in updates):
        return None
    (through,) = crossing
    outside = [v for v in graph.values if not v.kind.computed]
    known = {v for n in first for v in n.reads} | {old for old, _ in updates}
    values = [v for v in outside if v.name in known] + [v for v in graph.values if v.name in made]
    inner = Graph(tuple(values), first, (through,), tuple(updates), f"{graph.name}[:{at}]")
    rest_updates = tuple(pair for pair in graph.updates if pair not in updates)
    known = {v for n in last for v in n.reads} | {old for old, _ in rest_updates} | set(graph.outputs)
    after = {v for n in last for v in n.outputs}
    values = [v for v in outside if v.name in known] + [_as_input(graph.value[through])]
    values += [v for v in graph.values if v.name in after]
    return inner, Graph(tuple(values), last, graph.outputs, rest_updates, f"{graph.name}[{at}:]")


def _as_input(value: Value) -> Value:
    return replace(value, kind=Kind.INPUT, alias=None)


def join_schedules(first: Schedule, second: Schedule, graph: Graph) -> Schedule:
    """One after the other, and back: what the first makes, the second reads, perhaps by the name it had before it was
    lowered. `graph`: what both are parts of."""
    (through,) = first.graph.outputs
    (old,) = (v.name for v in second.graph.of_kind(Kind.INPUT) if graph.value[v.name].kind.computed)
    known = {v.name for v in first.graph.values} | {old}
    behind = (v for v in second.graph.values if v.name not in known)
    values = (*first.graph.values, *(replace(v, alias=through) if v.alias == old else v for v in behind))
    known |= {v.name for v in values}
    values += tuple(v for v in graph.values if not v.kind.computed and v.name not in known)  # which no node reads
    nodes = (*first.graph.nodes, *(_reading(node, old, through) for node in second.graph.nodes))
    joined = Graph(values, nodes, graph.outputs, (*first.graph.updates, *second.graph.updates), graph.name)
    steps = (*first.steps[: first.turn], *second.steps, Free(through), *first.steps[first.turn + 1 :])
    rest = {name: _island_reading(island, old, through) for name, island in second.islands.items()}
    islands = {**{name: first.islands[name] for name in first.islands}, **rest}
    return Schedule(joined, "mixed", first.phases, first.storage, steps=steps, islands=islands, notes=second.notes)


def _reading(node: Node, old: str, new: str) -> Node:
    return replace(node, inputs=tuple(replace(i, value=new) if i.value == old else i for i in node.inputs))


def _island_reading(island: Island, old: str, new: str) -> Island:
    names = {name: new if name == old else name for name in (*island.whole, *(island.refers or ()))}
    refers = None if island.refers is None else frozenset(names[name] for name in island.refers)
    return replace(island, whole=frozenset(names[name] for name in island.whole), refers=refers)
