"""A schedule for people: the plan in a few lines, and the steps of a tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..units import format_bytes, format_sizes
from .phase import TilePhase
from .schedule import Schedule
from .steps import Compute, Fold, Free, Halo, IslandStep, Join, Load, Move, Run, Store
from .whole import DEVICE

MOST_NAMES = 8
BARRIER_BYTES = 1 << 20  # from here on a plan says what running whole costs


def format_plan(schedule: Schedule) -> str:
    """What runs, phase by phase or node by node, with predicted figures where they are known."""
    graph = schedule.graph
    image = format_sizes(graph.shape(graph.inputs[0])) if graph.inputs else "no input"
    lines = [f"plan for {graph.name} on {image}: {_title(schedule)}"]
    if schedule.mode != "none":
        lines += [_format_phase(phase, graph.outputs) for phase in schedule.phases]
        lines += _format_kept(schedule) + _format_again(schedule)
        lines += [f"note        {note}" for note in schedule.notes]
        if schedule.phases:
            lines.append(f"work        {schedule.work:.3f} x one forward pass{_once_more(schedule)}")
            lines.append(f"halos       kept on {schedule.storage}")
    return "\n".join([*lines, *_format_peak(schedule)])


def _title(schedule: Schedule) -> str:
    tiled = {node.name for phase in schedule.phases for node in phase.nodes}
    whole = len(schedule.graph.nodes) - len(tiled) - sum(len(phase.folds) for phase in schedule.phases)
    if schedule.mode == "none":
        return "plain PyTorch, nothing is tiled"
    if not schedule.phases:
        return f"{schedule.mode}, {_forward_count(schedule)} nodes, none tiled"
    mixed = f", then {whole} nodes whole" if whole > 0 else ""
    return f"{schedule.mode}, {len(schedule.phases)} phases{mixed}"


def _forward_count(schedule: Schedule) -> int:
    return len(schedule.graph.nodes)


def _tiles(schedule: Schedule) -> list[str]:
    return [phase.name(tile) for phase in schedule.phases if phase.tiled for tile in phase.tiles()]


def _format_kept(schedule: Schedule) -> list[str]:
    tiles = _tiles(schedule)
    kept = sum(name in schedule.kept for name in tiles)
    return [f"kept        {kept} of {len(tiles)} tiles have all that backward needs"] if kept else []


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
        size = sum(schedule.graph.type(name).bytes for name in remade)
        often = ", some more than once" if schedule.remade.fleeting else ""
        lines.append(
            f"again       {len(remade)} stored values, {format_bytes(size)}, for backward{often}: {_some(remade)}"
        )
    if again:
        lines.append(f"again       {sum(again.values())} runs of {len(again)} nodes: {_some(again)}")
    if moved:
        known = [name for name in moved if name in schedule.graph.value]
        size = sum(schedule.graph.type(name).bytes for name in known)
        lines.append(f"to the host {len(moved)} values, {format_bytes(size)}: {_some(moved)}")
    return lines


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:MOST_NAMES]) + (", …" if len(found) > MOST_NAMES else "")


def _format_peak(schedule: Schedule) -> list[str]:
    if not schedule.predicted:
        return []
    copies = schedule.predicted.get("recorded_bytes")
    recorded = [] if copies is None else [f"recorded    as CUDA graphs, {format_bytes(copies)} for what is copied"]
    peak, total, halos = (format_bytes(schedule.predicted[f"{k}_bytes"]) for k in ("peak", "total", "halo"))
    carried = f"; halos {halos}" if schedule.phases else ""
    beyond = "parameters, their gradients and inputs" if schedule.phases else "parameters, buffers and inputs"
    return [*recorded, f"peak        {total} predicted in all, {peak} beyond {beyond}{carried}"]


def _format_phase(phase: TilePhase, outputs: Sequence[str]) -> str:
    if not phase.tiled:
        ops = ", ".join(dict.fromkeys(n.op for n in phase.nodes))
        size = sum(phase.graph.type(v).bytes for n in phase.nodes for v in (*n.reads, *n.outputs))
        cost = f", {format_bytes(size)} at once" if size >= BARRIER_BYTES else ""
        return f"  {phase.number:>3}  whole   {len(phase.nodes):>4} nodes: {ops}{cost}"
    assert phase.forward is not None
    last = phase.stores[-1] if phase.stores else phase.folds[-1].inputs[0].value if phase.folds else ""
    first = phase.forward.box("share", last, (0,) * len(phase.grid)) if last in phase.forward.lines else None
    tiles = f"{format_sizes(phase.grid)} tiles along {','.join(phase.forward.tiled)}"
    detail = f" of {last} {first}" if first else f" of {last}"
    kept = [v for v in phase.stores if v not in outputs]
    stored = f"; keeps {', '.join(kept)}" if kept else ""
    folds = f"; folds {', '.join(f.name for f in phase.folds)}" if phase.folds else ""
    return f"  {phase.number:>3}  {phase.forward.mode:<7} {len(phase.nodes):>4} nodes in {tiles}{detail}{stored}{folds}"


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
