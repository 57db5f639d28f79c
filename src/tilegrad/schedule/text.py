"""A schedule for people: the plan in a few lines, and the steps of a tile."""

from __future__ import annotations

from typing import Any

from ..region import Box
from ..units import format_bytes, format_sizes
from .schedule import Phase, Schedule
from .steps import Compute, Fold, Free, Halo, Join, Load, Step, Store

BARRIER_BYTES = 1 << 20  # from here on a plan says what running whole costs


def format_plan(schedule: Schedule) -> str:
    """What runs, phase by phase, with predicted figures where they are known."""
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


def plan_to_json(schedule: Schedule) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "network": schedule.graph.name,
        "mode": schedule.mode,
        "halos": str(schedule.storage),
        "work": schedule.work,
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


def _format_peak(schedule: Schedule) -> list[str]:
    if not schedule.predicted:
        return []
    peak, total, halos = (format_bytes(schedule.predicted[f"{k}_bytes"]) for k in ("peak", "total", "halo"))
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
