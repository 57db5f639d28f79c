"""A schedule for people: the plan in a few lines, and the steps of a tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from ..bounds import label_axes
from ..ir import Node
from ..units import format_bytes, format_sizes
from .phase import TilePhase
from .schedule import Schedule
from .steps import Compute, Fold, Free, Halo, IslandStep, Join, Load, Move, Run, Store
from .whole import DEVICE, roots_of, whole_bytes

MOST_NAMES, MOST_IN_ROW = 4, 2
MOST_ROWS = 10  # with all lines below them a plan has 25
MOST_NOTES = 2
BARRIER_BYTES = 1 << 20  # from here on a plan says what running whole costs


def format_plan(schedule: Schedule, budget: int | None = None, plain_bytes: int | None = None) -> str:
    """What runs and what it needs, in 25 lines at most. `budget`: what was asked for; `plain_bytes`: what plain PyTorch
    would need, where that is known."""
    graph = schedule.graph
    image = format_sizes(graph.shape(graph.inputs[0])) if graph.inputs else "no input"
    lines = [f"plan for {graph.name} on {image}: {format_title(schedule)}"]
    if schedule.mode != "none":
        lines += format_rows(schedule, MOST_ROWS)
        lines += [*_format_kept(schedule), *_format_again(schedule)]
        lines += [f"note        {note}" for note in schedule.notes[:MOST_NOTES]]
        if schedule.phases:
            lines.append(f"work        {schedule.work:.3f} x one forward pass{_once_more(schedule)}")
            halos = schedule.predicted.get("halo_bytes")
            most = "" if halos is None else f"{format_bytes(halos)} at most, "
            lines.append(f"halos       {most}kept on {schedule.storage}")
    return "\n".join([*lines, *_format_peak(schedule, budget, plain_bytes)])


def format_title(schedule: Schedule) -> str:
    """The plan in a few words."""
    if schedule.mode == "none":
        return "plain PyTorch, nothing is tiled"
    if not schedule.phases:
        return f"{schedule.mode}, {_count(len(schedule.graph.nodes), 'node')}, none tiled"
    phases = _phases(schedule)
    hidden = len(schedule.phases) - len(phases)
    more = f", {hidden} more for running statistics" if hidden else ""
    mixed = f", then {_count(len(_rest(schedule)), 'node')} whole" if _rest(schedule) else ""
    return f"{schedule.mode}, {_count(len(phases), 'phase')}{more}{mixed}"


def _count(number: int, what: str, width: int = 0) -> str:
    return f"{number:>{width}} {what}{'s' * (number != 1)}"


def _phases(schedule: Schedule) -> list[TilePhase]:
    """Those that an output depends on, and their nodes that it depends on: the others only update buffers, such as
    running statistics."""
    graph, wanted = schedule.graph, set[str]()
    left = list(graph.outputs)
    while left:
        if (name := left.pop()) not in wanted:
            wanted.add(name)
            left += graph.producer[name].reads if name in graph.producer else ()
    found = [replace(p, nodes=tuple(n for n in p.nodes if wanted.intersection(n.outputs))) for p in schedule.phases]
    return [p for p in found if p.nodes or p.folds] or list(schedule.phases)


def _rest(schedule: Schedule) -> list[Node]:
    """Nodes that run whole behind the tiles, where a plan mixes both."""
    tiled = {node.name for phase in schedule.phases for node in (*phase.nodes, *phase.folds)}
    return [node for node in schedule.graph.nodes if node.name not in tiled]


# -- a row for each phase, or for many that are alike ------------------------------------------------------------------

Row = list[TilePhase]
Key = Callable[[TilePhase], object]  # phases are alike that have the same


def format_rows(schedule: Schedule, most: int) -> list[str]:
    """Phases that are alike share a row: as few of them as it takes for so many rows."""
    phases, rest = _phases(schedule), _rest(schedule) if schedule.phases else []
    rows: list[Row] = [[phase] for phase in phases]
    keys: list[Key] = [_ops, *(partial(_place, depth=depth) for depth in (3, 2, 1, 0))]
    for key in keys:
        if len(rows) > most:
            rows = _repeats(phases, key)
    if len(rows) > most:
        rows = list(_sorted(phases, partial(_place, depth=0)).values())
    lines = [_format_row(row, schedule) for row in rows[:most]]
    if len(rows) > most:
        lines.append(f"{'…':>7}  {_count(sum(map(len, rows[most:])), 'more phase')}")
    if rest:
        lines.append(f"{'then':>7}  whole   {_count(len(rest), 'node', 4)}: {_some_ops(rest)}; they fit")
    return lines


def _ops(phase: TilePhase) -> tuple[object, ...]:
    return (*_place(phase, 0), *(node.op for node in (*phase.nodes, *phase.folds)))


def _place(phase: TilePhase, depth: int) -> tuple[object, ...]:
    """How a phase is cut, and where in the module tree it ends."""
    last = (*phase.nodes, *phase.folds)[-1].source.module.split(".")[:depth]
    return phase.grid, *((phase.forward.mode, phase.forward.tiled) if phase.forward else ()), *last


def _sorted(phases: Row, key: Key) -> dict[object, Row]:
    found: dict[object, Row] = {}
    for phase in phases:
        found.setdefault(key(phase), []).append(phase)
    return found


def _repeats(phases: Row, key: Key) -> list[Row]:
    """Rows in order. Where one phase, or a few in turn, come again and again, each of them is a row."""
    keys, rows, at = [key(phase) for phase in phases], list[Row](), 0
    while at < len(phases):
        best = 1, 1
        for period in (1, 2, 3, 4):
            times = 1
            while keys[at + times * period : at + (times + 1) * period] == keys[at : at + period]:
                times += 1
            if times > 1 and times * period > best[0] * best[1]:
                best = period, times
        period, times = best
        rows += [phases[at + turn : at + period * times : period] for turn in range(period)]
        at += period * times
    return rows


def _format_row(row: Row, schedule: Schedule) -> str:
    phase, nodes = row[0], [node for phase in row for node in phase.nodes]
    numbers = f"{phase.number}" if len(row) == 1 else f"{phase.number}-{row[-1].number}"
    times = f" × {len(row)}" if len(row) > 1 else ""
    mode = phase.forward.mode if phase.forward is not None else "whole"
    head = f"{numbers:>7}  {mode:<7} {_count(len(nodes), 'node', 4)}"
    if phase.forward is None:
        return f"{head}{times}: {_some_ops(nodes)}; {_why_whole(row, schedule)}"
    kept = [v for phase in row for v in phase.stores if v not in schedule.graph.outputs]
    folds = [fold.name for phase in row for fold in phase.folds]
    many = f"{format_sizes(phase.grid)} tiles along {','.join(phase.forward.tiled)}"
    parts = [f"{head} in {many if prod(phase.grid) > 1 else 'one tile'}{times}{_where(row)}"]
    if kept:
        size = format_bytes(_bytes(schedule, kept))
        parts.append(f"keeps {_named(row, kept, 'value')}, {size}")
    if folds:
        parts.append(f"folds {_named(row, folds, 'sum')}")
    return "; ".join(parts)


def _named(row: Row, names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(row) == 1 and len(names) <= MOST_IN_ROW else _count(len(names), what)


def _where(row: Row) -> str:
    """The modules at both ends, as far as they are known."""
    nodes = [node.source.module for phase in row for node in (*phase.nodes, *phase.folds) if node.source.module]
    if not nodes:
        return ""
    return f": {nodes[0]}" if nodes[0] == nodes[-1] else f": {nodes[0]} to {nodes[-1]}"


def _why_whole(row: Row, schedule: Schedule) -> str:
    """Along which axes that others are cut along a phase is not, and what it holds at once."""
    cut = dict.fromkeys(axis for p in schedule.phases if p.forward is not None for axis in p.forward.tiled)
    dims, nodes = label_axes(schedule.graph).dims, [node for phase in row for node in phase.nodes]
    held = [axis for axis in cut if any(axis in dims[v] for node in nodes for v in (*node.reads, *node.outputs))]
    why = f"needs all along {','.join(held)}" if held else "no axis to cut is left"
    size = max(whole_bytes(schedule.graph, node) for node in nodes)
    return f"{why}{f', {format_bytes(size)} at once' if size >= BARRIER_BYTES else ''}"


def _some_ops(nodes: Sequence[Node]) -> str:
    return _some(dict.fromkeys(node.op for node in nodes))


# -- what is kept, made again and moved --------------------------------------------------------------------------------


def _tiles(schedule: Schedule) -> list[str]:
    return [phase.name(tile) for phase in schedule.phases if phase.tiled for tile in phase.tiles()]


def _format_kept(schedule: Schedule) -> list[str]:
    """Tiles, and what lies between phases until backward."""
    tiles = _tiles(schedule)
    kept = sum(name in schedule.kept for name in tiles)
    between = {v for phase in schedule.phases if phase.tiled for v in phase.stores} - {*schedule.graph.outputs}
    between -= schedule.remade.values
    parts = [f"{kept} of {len(tiles)} tiles have all that backward needs"] if kept else []
    if between and schedule.trains:
        size = format_bytes(_bytes(schedule, between))
        parts.append(f"{_count(len(between), 'value')} between phases, {size} on {schedule.storage}")
    return [f"kept        {'; '.join(parts)}"] if parts else []


def _once_more(schedule: Schedule) -> str:
    tiles = _tiles(schedule)
    if not schedule.trains or all(name in schedule.kept for name in tiles):
        return ""
    if any(name in schedule.kept for name in tiles):
        return "; in training once more for tiles that are not kept"
    return "; in training one more for recompute"


def plan_to_json(schedule: Schedule) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "network": schedule.graph.name,
        "mode": schedule.mode,
        "halos": str(schedule.storage),
        "work": schedule.work,
        "whole_share": schedule.whole_share,
        "predicted": dict(schedule.predicted),
        "phases": [
            {
                "number": phase.number,
                "axes": list(phase.forward.tiled) if phase.forward else [],
                "grid": list(phase.grid),
                "nodes": [n.name for n in phase.nodes],
                "folds": [n.name for n in phase.folds],
                "stores": list(phase.stores),
            }
            for phase in schedule.phases
        ],
        "runs": len(schedule.runs),
        "kept": sorted(schedule.kept),
        "again": _reruns(schedule),
        "remade": sorted(schedule.remade.values),
        "offloaded": _offloaded(schedule),
    }


def _reruns(schedule: Schedule) -> dict[str, int]:
    """Nodes outside of tiles that run more than once, and how often they run again."""
    tiles, counts = (
        {*_tiles(schedule), *(phase.name(()) for phase in schedule.phases if not phase.tiled)},
        Counter[str](),
    )
    for step in schedule.steps:
        if isinstance(step, Run) and step.island not in tiles and not step.island.endswith("'"):
            counts.update(schedule.islands[step.island].nodes)
    return {name: count - 1 for name, count in counts.items() if count > 1}


def _offloaded(schedule: Schedule) -> list[str]:
    return [step.value for step in schedule.steps if isinstance(step, Move) and step.store != DEVICE]


def _format_again(schedule: Schedule) -> list[str]:
    lines, again, moved = [], _reruns(schedule), _offloaded(schedule)
    remade = [name for phase in schedule.phases for name in phase.stores if name in schedule.remade.values]
    if remade:
        size = _bytes(schedule, remade)
        often = ", some more than once" if schedule.remade.fleeting else ""
        lines.append(
            f"again       {len(remade)} stored values, {format_bytes(size)}, for backward{often}: {_some(remade)}"
        )
    if again:
        lines.append(f"again       {sum(again.values())} runs of {len(again)} nodes: {_some(again)}")
    if moved:
        size = int(schedule.predicted.get("host_bytes", 0))
        far = f", {format_bytes(size)} to the host and back" if size else ""
        lines.append(f"moved       {_count(len(moved), 'value')}{far}: {_some(moved)}")
    return lines


def _bytes(schedule: Schedule, values: Iterable[str]) -> int:
    """Of what is here of them, on a mesh."""
    graph, root = schedule.graph, roots_of(schedule.graph).root
    return sum(schedule.region(name).volume * graph.type(name).item_bytes for name in {root[value] for value in values})


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:MOST_NAMES]) + (f", … {len(found)} in all" if len(found) > MOST_NAMES else "")


def _format_peak(schedule: Schedule, budget: int | None, plain_bytes: int | None) -> list[str]:
    """Tensors; and what the whole process holds, where that is planned for."""
    predicted, lines = schedule.predicted, list[str]()
    if "recorded_bytes" in predicted:
        lines.append(f"recorded    as CUDA graphs, {format_bytes(predicted['recorded_bytes'])} for what is copied")
    if budget is not None:
        needs = "" if plain_bytes is None else f"; plain needs {format_bytes(plain_bytes)}"
        lines.append(f"budget      {format_bytes(budget)}{needs}")
    if predicted:
        beyond = "parameters, their gradients and inputs" if schedule.phases else "parameters, buffers and inputs"
        peak, total = (format_bytes(predicted[f"{which}_bytes"]) for which in ("peak", "total"))
        lines.append(f"peak        {total} of tensors predicted in all, {peak} beyond {beyond}")
    if "process_bytes" in predicted:
        more = "with the insides of convolutions and their code"
        lines.append(f"process     {format_bytes(predicted['process_bytes'])} predicted, {more}")
    return lines


def format_steps(phase: TilePhase, tile: tuple[int, ...], *, backward: bool = False) -> str:
    """One line per step of a tile."""
    return "\n".join(_format_step(step) for step in phase.steps(tile, backward=backward))


def _format_step(step: IslandStep) -> str:
    match step:
        case Load(value=value, box=box):
            return f"load     {value} {box}"
        case Compute(node=node, out=out):
            return f"compute  {node} {out}"
        case Join(value=value, held=held, receives=receives, gives=gives):
            return f"join     {value} {held} <- {_halos(receives)} -> {_halos(gives)}"
        case Store(value=value, box=box):
            return f"store    {value} {box}"
        case Fold(node=node, box=box):
            return f"fold     {node} {box}"
        case Free(value=value):
            return f"free     {value}"


def _halos(halos: tuple[Halo, ...]) -> str:
    return " ".join(str(halo.box) for halo in halos) or "-"
