"""Tiles where they pay, whole nodes where they do not: the first stretch of a network runs in tiles, the rest whole,
kept or partly run again.

High-resolution layers come first in most networks and hold most of the memory; streaming only those costs less time
than streaming all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..bounds import label_axes, lower_graph
from ..errors import GridError
from ..ir import Graph, Kind, Node, Value
from ..schedule import Free, Island, Schedule, Storage, fuse
from ..sim.predict import predict
from ..sim.training import training_graph
from .problem import Effort, Planner, Problem, Proposal, TrainingStep
from .recompute import schedule_reruns
from .tile import axis_lengths, total_stride
from .tiling import plan_tiles

MUCH = 1.1  # times plain: from here on a mix of tiles and whole nodes is worth a search
SHARES = (0.4, 0.6, 0.8, 0.95)  # of all activations' bytes that the tiled stretch makes
COUNTS = (4, 16)  # tiles
MOST_WALKS = 3
QUICK = Effort().part(4)


class Mixed(Planner):
    name = "mixed"
    effort = 4

    def propose(self, problem: Problem) -> Iterator[Proposal]:
        """For each cut the fewest tiles that fit, the rest kept or, if that does not fit, partly run again."""
        if problem.network is None or problem.tiles is None or not problem.tiles.axes:
            return
        for inner, rest in _cuts(problem.network):
            step, lowered = None, lower_graph(inner)
            for count in COUNTS:
                try:
                    tiles = _tiles(lowered, problem.tiles.axes[0], count)
                except GridError:  # no axis to cut, or nothing gained by it
                    break
                step = step or _rest_step(problem, lowered, rest)
                words = f"the first {len(inner.nodes)} nodes in {count} tiles along {problem.tiles.axes[0]}"
                found = _propose(problem, tiles, step, rest, words)
                if found is not None:
                    yield found
                    break

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


def _rest_step(problem: Problem, lowered: Graph, rest: Graph) -> TrainingStep:
    """What follows the stretch, once for all numbers of tiles."""
    graded = [name for name in (*problem.graded, *lowered.outputs) if name in rest.value]
    return TrainingStep(training_graph(rest, graded), problem.machine, QUICK)


def _propose(problem: Problem, tiles: Schedule, step: TrainingStep, rest: Graph, words: str) -> Proposal | None:
    assert problem.network is not None
    lowered = tiles.graph
    (crossing,) = lowered.outputs
    alone = predict(tiles, [name for name in problem.graded if name in lowered.value])
    assert alone.memory is not None
    held = alone.memory.device[tiles.turn] - alone.memory.resident_bytes - 2 * lowered.type(crossing).bytes
    best: Schedule | None = step.keep.schedule
    if step.keep.peak_bytes > problem.budget - held:
        best = schedule_reruns(step.reruns, problem.budget - held, QUICK)
    if best is None:
        return None
    schedule = join_schedules(tiles, fuse(best, rest), problem.network)
    prediction = predict(schedule, problem.graded)
    if prediction.total_bytes > problem.budget:
        return None
    how = "the rest whole" if best.mode == "keep" else "the rest partly run again"
    return Proposal(schedule, f"{words}, {how}", prediction)


def _tiles(lowered: Graph, axis: str, count: int) -> Schedule:
    """Rows. A stretch that falls into many phases keeps what lies between them: nothing is gained."""
    if axis not in {a for dims in label_axes(lowered).dims.values() for a in dims}:
        raise GridError(f"this stretch has no axis {axis}")
    unit, length = total_stride(lowered, (axis,)), axis_lengths(lowered, (axis,))[axis]
    found = plan_tiles(lowered, "stream", {axis: -(-length // (count * unit)) * unit}, Storage.DEVICE)
    if sum(phase.tiled for phase in found.phases) > MOST_WALKS:
        raise GridError("this stretch falls into many phases")
    return found


def cut_graph(graph: Graph, at: int) -> tuple[Graph, Graph] | None:
    """The first `at` nodes and the others, as two graphs. None unless exactly one value leads from one to the other."""
    first, last = graph.nodes[:at], graph.nodes[at:]
    made = {v for n in first for v in n.outputs}
    crossing = [v for n in first for v in n.outputs if v in {*graph.outputs, *(r for m in last for r in m.reads)}]
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
