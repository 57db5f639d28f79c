"""Is a schedule sound? A list of rules, each checked by itself; run after every planner.

Rule S1   A step reads, frees and moves only what is on the device: resident, or made or fetched and not freed since.
Rule S2   Every node of the graph runs, first in the graph's order; backward nodes of a training graph run once.
Rule S3   Resident values (inputs, parameters and their gradients, buffers, constants) are never freed or moved, and an
          alias goes with the memory it lives in.
Rule S4   What is handed over at the end is never freed or moved: somebody else may hold it by then.
Rule S5   What is fetched is away, as it was when last written; fetching gives up the copy.
Rule S6   Everything else is freed: before it is made again, and before the end.
Rule S7   Inside an island a step reads only what an earlier step made, loaded or joined, and islands only read stored
          values as they say.
Rule S8   Islands write every element of a stored value once before it is read, also where it is made once more; so do
          folds read theirs.
Rule S9   A halo is received just as its peer gave it, after that.
Rule S10  A reduction is finished once, after the last island that adds to it, and before it is read.
Rule S11  `Turn` comes once. Behind it the islands that made something have their `Backward`, once, with a record, after
          those that read what they made.
Rule S12  Ranks make the same exchanges in the same order, and what one gives the other takes (`check_peers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..bounds import needed_gradients
from ..ir import Graph, Phase
from ..region import Box, covers_once
from .island import Island, touched
from .residency import check_residency
from .residency import fail as _fail
from .residency import reads_of as _reads
from .schedule import Schedule
from .steps import Backward, Compute, Exchange, Finish, Fold, Free, Join, Load, Move, Run, Store, Strip, Turn
from .whole import NodeIslands, roots_of


def check_schedule(schedule: Schedule) -> None:
    """Raise `InternalError` naming the first broken rule and the step."""
    for rule in RULES:
        rule(schedule)


def check_peers(ranks: Mapping[int, Sequence[Exchange]]) -> None:
    """Rule S12, over the exchanges of all ranks."""
    every = list(ranks.items())
    for rank, steps in every:
        if [(s.values, s.gradient) for s in steps] != [(s.values, s.gradient) for s in every[0][1]]:
            raise _fail("S12", "all steps", f"ranks {every[0][0]} and {rank} do not exchange the same values in turn")
    for at, meeting in enumerate(zip(*ranks.values(), strict=True)):
        told = dict(zip(ranks, meeting, strict=True))
        for rank, step in told.items():
            for strip in step.gives:
                peer = told.get(strip.rank)
                if peer is None or Strip(strip.value, strip.box, rank) not in peer.takes:
                    raise _fail("S12", at, f"rank {strip.rank} does not take {strip.box} of '{strip.value}' of {rank}")
        if sum(len(s.gives) for s in meeting) != sum(len(s.takes) for s in meeting):
            raise _fail("S12", at, "somebody waits for what nobody gives")


def check_names(schedule: Schedule) -> None:
    """What steps speak of exists."""
    graph, saved = schedule.graph, {f"{name}.saved" for name in schedule.islands}
    for at, step in enumerate(schedule.steps):
        match step:
            case Run(island=name) | Backward(island=name):
                if name not in schedule.islands:
                    raise _fail("S1", at, f"there is no island '{name}'")
            case Finish(node=name):
                if name not in graph.node:
                    raise _fail("S1", at, f"there is no node '{name}'")
            case Free(value=name) | Move(value=name):
                known = name in graph.value or name in saved or name.removesuffix(".grad") in graph.value
                if not known:
                    raise _fail("S1", at, f"there is no value '{name}'")


def check_order(schedule: Schedule) -> None:
    """Rule S2."""
    graph, ran = schedule.graph, list[str]()
    for step in schedule.steps:
        if isinstance(step, Run):
            ran += schedule.islands[step.island].nodes
        elif isinstance(step, Finish):
            ran.append(step.node)
    first = list(dict.fromkeys(ran))
    if isinstance(schedule.islands, NodeIslands):
        if first != [n.name for n in graph.nodes]:
            raise _fail("S2", "all steps", "nodes do not run first in the graph's order, or not all of them")
        backward = [name for name in ran if graph.node[name].phase is not Phase.FORWARD]
        if len(backward) != len(set(backward)):
            raise _fail("S2", "all steps", "a backward node runs twice")
        return
    wanted = _wanted(graph) if schedule.seat is None else set()  # of some nodes a rank has no part
    for name in wanted - set(first):
        raise _fail("S2", "all steps", f"'{name}' never runs")


def _wanted(graph: Graph) -> set[str]:
    """Nodes that outputs and updates depend on."""
    values, found = {*graph.outputs, *(new for _, new in graph.updates)}, set[str]()
    for node in reversed(graph.nodes):
        if values.intersection(node.outputs) and graph.type(node.outputs[0]).size:
            found.add(node.name)
            values.update(node.reads)
    return found


def check_islands(schedule: Schedule) -> None:
    """Rule S7."""
    if isinstance(schedule.islands, NodeIslands):
        return
    kinds = (schedule.islands[step.island].kind for step in schedule.steps if isinstance(step, Run))
    for island in {id(kind): kind for kind in kinds}.values():
        _check_island(schedule.graph, island)


def _check_island(graph: Graph, island: Island) -> None:
    held: dict[str, Box] = {v: Box.full(graph.shape(v)) for v in island.whole}
    for step in island.steps:
        for value, box in _wants(graph, step):
            if not box.empty and (value not in held or not held[value].holds(box)):
                what = f"{type(step).__name__} reads {box} of '{value}', which holds {held.get(value)}"
                raise _fail("S7", f"island {island.name}", what)
        match step:
            case Join(value=value, held=box):
                _check_join(island, step, held.get(value))
                held[value] = box
            case Load(value=value, box=box) if value not in island.whole:
                held[value] = box
            case Compute(node=name, out=out):
                held[graph.node[name].outputs[0]] = out
            case Free(value=value) if value not in island.whole:
                held.pop(value, None)


def _check_join(island: Island, join: Join, made: Box | None) -> None:
    """What is held is what the island made itself and what it received, and what it gives is a part of that."""
    where = f"island {island.name}"
    if not join.own.empty and made != join.own:
        raise _fail("S7", where, f"'{join.value}' is joined as {join.own}, and was made as {made}")
    parts = [halo.box for halo in join.receives] + ([] if join.own.empty else [join.own])
    if not covers_once(parts, join.held):
        raise _fail("S9", where, f"what is received of '{join.value}' does not make up {join.held}")
    for halo in join.gives:
        if not join.held.holds(halo.box):
            raise _fail("S9", where, f"gives {halo.box} of '{join.value}', and holds {join.held}")


def _wants(graph: Graph, step: object) -> Iterator[tuple[str, Box]]:
    match step:
        case Compute(node=name, reads=reads):
            for value, box in zip(graph.node[name].reads, reads, strict=True):
                yield value, box.clip(graph.shape(value))
        case Store(value=value, box=box):
            yield value, box
        case Fold(box=box):
            yield touched(graph, step)[0], box


def check_cover(schedule: Schedule) -> None:
    """Rule S8."""
    graph, boxes = schedule.graph, dict[str, list[Box]]()
    if isinstance(schedule.islands, NodeIslands):
        return
    ran, done = set[str](), set[str]()
    for at, step in enumerate(schedule.steps[: schedule.turn]):
        for name in _reads(schedule, step):
            if name in boxes and name not in done:
                _check_covered(schedule, name, name, boxes[name], at)
                done.add(name)
        if isinstance(step, Run) and step.island not in ran:
            ran.add(step.island)
            for one in schedule.islands[step.island].writes:
                boxes.setdefault(one.value if isinstance(one, Store) else f"fold {one.node}", []).append(one.box)
        elif isinstance(step, Finish):
            found = boxes.get(f"fold {step.node}", [])
            _check_covered(schedule, graph.node[step.node].reads[0], f"what '{step.node}' folds", found, at)
            boxes[graph.node[step.node].outputs[0]] = [schedule.owned(graph.node[step.node].outputs[0])]
    for name in {*graph.outputs, *(new for _, new in graph.updates)} & graph.producer.keys():
        _check_covered(schedule, name, name, boxes.get(name, []), schedule.turn)


def check_cover_again(schedule: Schedule) -> None:
    """Rule S8, behind the turn."""
    boxes: dict[str, list[Box]] = {}
    root = roots_of(schedule.graph).root
    for at, step in enumerate(schedule.steps[schedule.turn :], start=schedule.turn):
        read = {root[name] for name in _reads(schedule, step)}
        for name in [made for made in boxes if root[made] in read]:  # itself, or another look at its memory
            _check_covered(schedule, name, name, boxes.pop(name), at)
        if isinstance(step, Run):
            for one in schedule.islands[step.island].writes:
                if isinstance(one, Store) and one.value in schedule.written[at]:
                    boxes.setdefault(one.value, []).append(one.box)


def _check_covered(schedule: Schedule, name: str, what: str, boxes: list[Box], at: int) -> None:
    owned = schedule.owned(name)
    if not covers_once([box for box in boxes if not box.empty], owned) and not owned.empty:
        volume = sum(box.volume for box in boxes)
        raise _fail("S8", at, f"islands make {volume} of {owned.volume} elements of '{what}', or some of them twice")


def check_halos(schedule: Schedule) -> None:
    """Rule S9."""
    islands, given = schedule.islands, set[tuple[str, str, str]]()
    met = set[tuple[object, ...]]()  # islands of which kinds were seen to agree
    for at, step in enumerate(schedule.steps):
        if not isinstance(step, Run):
            continue
        island = islands[step.island]
        for value, axis, peer, _ in island.receives:
            if (value, peer, step.island) not in given:
                raise _fail("S9", at, f"a halo of '{value}' was not given to '{step.island}'")
            if (pair := (value, axis, id(islands[peer].kind), id(island.kind))) not in met:
                gives = {h.peer: h.box for j in islands[peer].joins if j.value == value for h in j.gives}
                receives = {h.peer: h.box for j in island.joins if j.value == value for h in j.receives}
                if gives[step.island] != receives[peer]:
                    what = f"halo {receives[peer]} of '{value}' was not given to '{step.island}' by '{peer}'"
                    raise _fail("S9", at, what)
                met.add(pair)
        given.update((value, step.island, peer) for value, _, peer, _ in island.gives)


def check_folds(schedule: Schedule) -> None:
    """Rule S10."""
    graph, done = schedule.graph, set[str]()
    folds = {name for island in schedule.islands.values() for name in island.folds}
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Finish):
            if step.node in done or at > schedule.turn:
                raise _fail("S10", at, f"'{step.node}' is finished twice")
            done.add(step.node)
        elif isinstance(step, Run):
            island = schedule.islands[step.island]
            for name in island.folds:
                if name in done and at < schedule.turn:
                    raise _fail("S10", at, f"'{step.island}' adds to '{name}', which is finished")
            for value in island.reads(graph):
                maker = graph.producer.get(value)
                if maker is not None and maker.name in folds and maker.name not in done and at < schedule.turn:
                    raise _fail("S10", at, f"'{step.island}' reads '{value}', which is not finished")


def check_turn(schedule: Schedule) -> None:
    """Rule S11: a training graph has none, its backward nodes are islands."""
    turns = sum(isinstance(step, Turn) for step in schedule.steps)
    if turns != (0 if isinstance(schedule.islands, NodeIslands) else 1):
        raise _fail("S11", "all steps", f"{turns} turns")


def check_backward(schedule: Schedule) -> None:
    """Rule S11."""
    if isinstance(schedule.islands, NodeIslands) or not schedule.trains:
        return
    records, done, waiting = set[str](), set[str](), _readers(schedule)
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Run) and step.keep:
            records.add(step.island)
        elif isinstance(step, Backward):
            if at < schedule.turn:
                raise _fail("S11", at, f"backward of '{step.island}' before the turn")
            if step.island not in records or step.island in done:
                raise _fail("S11", at, f"backward of '{step.island}' without a record")
            island = schedule.islands[step.island]
            for name in island.reads(schedule.graph):
                waiting[name].discard(step.island)
            late = [reader for name in _made(schedule.graph, island) for reader in waiting.get(name, ())]
            late += [peer for _, _, peer, _ in island.gives if peer not in done]
            if late:
                raise _fail("S11", at, f"backward of '{step.island}' before that of '{late[0]}', which reads from it")
            done.add(step.island)
    _check_complete(schedule, done)


def _check_complete(schedule: Schedule, done: set[str]) -> None:
    """No island is left out: not one of several tiles, and none through which a gradient must pass."""
    graph, islands = schedule.graph, schedule.islands
    nodes = {node for name in done for node in islands[name].nodes}
    other = {name.partition(":")[0] for name in done if name.endswith("'")}  # phases with other tiles in backward
    able = needed_gradients(graph, {v.name for v in graph.values if not v.kind.computed})
    made = {value for name in done for value in islands[name].stores} & able
    wanted = {value for name in done for value in islands[name].reads(graph)} | set(graph.outputs)
    for name in dict.fromkeys(step.island for step in schedule.steps[: schedule.turn] if isinstance(step, Run)):
        island = islands[name]
        if name in done or name.partition(":")[0] in other:
            continue
        passes = needed_gradients(graph, made & set(island.reads(graph))) & wanted & set(island.stores)
        if nodes & set(island.nodes) or passes:
            raise _fail("S11", "all steps", f"'{name}' has no backward")
    for phase in other:
        parts = [name for name in done if name.partition(":")[0] == phase]
        grid = [name for name in islands if name.endswith("'") and name.partition(":")[0] == phase]
        if len(parts) != len(grid):
            raise _fail("S11", "all steps", f"phase {phase} has {len(parts)} backwards of {len(grid)} tiles")


def _readers(schedule: Schedule) -> dict[str, set[str]]:
    """Value -> the islands with a backward that read it."""
    found: dict[str, set[str]] = {}
    for step in schedule.steps:
        if isinstance(step, Backward):
            for value in schedule.islands[step.island].reads(schedule.graph):
                found.setdefault(value, set()).add(step.island)
    return found


def _made(graph: Graph, island: Island) -> tuple[str, ...]:
    return (*island.stores, *(graph.node[fold].outputs[0] for fold in island.folds))


RULES: tuple[Callable[[Schedule], None], ...] = (
    check_names,
    check_turn,
    check_folds,
    check_residency,
    check_order,
    check_islands,
    check_cover,
    check_cover_again,
    check_halos,
    check_backward,
)
