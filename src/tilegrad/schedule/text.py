"""A schedule for people: the plan in a few lines, and the steps of a tile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..region import Box
from ..units import format_bytes, format_sizes
from .schedule import Phase, Schedule
from .step_list import StepList
from .steps import Compute, Fold, Free, Halo, Join, Load, Offload, Step, Store

MOST_NAMES = 8
BARRIER_BYTES = 1 << 20  # from here on a plan says what running whole costs


def format_plan(schedule: Schedule | StepList) -> str:
    """What runs, phase by phase or node by node, with predicted figures where they are known."""
    if isinstance(schedule, StepList):
        return "\n".join(_format_step_list(schedule))
    graph = schedule.graph
    image = format_sizes(graph.shape(graph.inputs[0])) if graph.inputs else "no input"
    if schedule.mode == "none":
        lines = [f"plan for {graph.name} on {image}: plain PyTorch, nothing is tiled"]
        return "\n".join([*lines, *_format_peak(schedule)])
    lines = [f"plan for {graph.name} on {image}: {schedule.mode}, {len(schedule.phases)} phases"]
    lines += [_format_phase(phase) for phase in schedule.phases]
    lines.append(f"work        {schedule.work:.3f} x one forward pass; in training one more for recompute")
    lines.append(f"halos       kept on {schedule.storage}")
    return "\n".join([*lines, *_format_peak(schedule)])


def plan_to_json(schedule: Schedule | StepList) -> dict[str, Any]:
    """The same as plain data."""
    if isinstance(schedule, StepList):
        again, moved = _reruns(schedule), [s.value for s in schedule.steps if isinstance(s, Offload)]
        return {
            "network": schedule.graph.name,
            "mode": schedule.mode,
            "predicted": dict(schedule.predicted),
            "runs": len(schedule.runs),
            "again": again,
            "offloaded": moved,
            "whole_share": 1.0,
        }
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
    }


def _reruns(schedule: StepList) -> dict[str, int]:
    """Nodes that run more than once, and how often they run again."""
    return {name: count - 1 for name, count in Counter(schedule.runs).items() if count > 1}


def _format_step_list(schedule: StepList) -> list[str]:
    graph, again = schedule.graph, _reruns(schedule)
    moved = [s.value for s in schedule.steps if isinstance(s, Offload)]
    image = format_sizes(graph.shape(graph.inputs[0])) if graph.inputs else "no input"
    lines = [f"plan for {graph.name} on {image}: {schedule.planner}, {len(graph.nodes)} nodes, none tiled"]
    if again:
        lines.append(f"again       {sum(again.values())} runs of {len(again)} nodes: {_some(again)}")
    if moved:
        size = sum(graph.type(name).bytes for name in moved)
        lines.append(f"to the host {len(moved)} values, {format_bytes(size)}: {_some(moved)}")
    lines += [f"note        {note}" for note in schedule.notes]
    return lines + _format_peak(schedule)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:MOST_NAMES]) + (", …" if len(found) > MOST_NAMES else "")


def _format_peak(schedule: Schedule | StepList) -> list[str]:
    if not schedule.predicted:
        return []
    peak, total, halos = (format_bytes(schedule.predicted[f"{k}_bytes"]) for k in ("peak", "total", "halo"))
    if isinstance(schedule, StepList):
        return [f"peak        {total} predicted in all, {peak} beyond parameters, buffers and inputs"]
    return [
        f"peak        {total} predicted in all, {peak} beyond parameters, their gradients and inputs; halos {halos}"
    ]


def _format_phase(phase: Phase) -> str:
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
    kept = [v for v in phase.stores if v not in phase.graph.outputs]
    stored = f"; keeps {', '.join(kept)}" if kept else ""
    folds = f"; folds {', '.join(f.name for f in phase.folds)}" if phase.folds else ""
    return f"  {phase.number:>3}  {phase.forward.mode:<7} {len(phase.nodes):>4} nodes in {tiles}{detail}{stored}{folds}"


def format_steps(phase: Phase, tile: tuple[int, ...], *, backward: bool = False) -> str:
    """One line per step of a tile."""
    return "\n".join(_format_step(step) for step in phase.steps(tile, backward=backward))


def _format_step(step: Step) -> str:
    match step:
        case Load(value=value, box=box):
            return f"load     {value} {_sides(box)}"
        case Compute(node=node, out=out):
            return f"compute  {node} {_sides(out)}"
        case Join(value=value, held=held, receives=receives, gives=gives):
            return f"join     {value} {_sides(held)} <- {_halos(receives)} -> {_halos(gives)}"
        case Store(value=value, box=box):
            return f"store    {value} {_sides(box)}"
        case Fold(node=node, box=box):
            return f"fold     {node} {_sides(box)}"
        case Free(value=value):
            return f"free     {value}"


def _halos(halos: tuple[Halo, ...]) -> str:
    return " ".join(_sides(halo.box) for halo in halos) or "-"


def _sides(box: Box) -> str:
    return "[" + " ".join(f"{side.lo}:{side.hi}" for side in box) + "]"
