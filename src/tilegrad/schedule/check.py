"""Is a schedule sound? Rules S2 to S4, checked on the explicit steps."""

from __future__ import annotations

from ..errors import InternalError
from ..region import Box
from .schedule import Phase, Schedule, touched
from .steps import Compute, Fold, Free, Join, Load, Step, Store


def check_schedule(schedule: Schedule) -> None:
    """Raise `InternalError` naming the first broken rule."""
    for phase in schedule.phases:
        for backward in (False, True):
            _check_cover(phase, backward)
            given: dict[tuple[str, int, tuple[int, ...]], Box] = {}
            for tile in sorted(phase.tiles(backward=backward)):
                _check_tile(phase, tile, backward, given)


def _fail(rule: str, phase: Phase, tile: object, what: str) -> InternalError:
    return InternalError(f"schedule breaks rule {rule}: {what}", where=f"phase {phase.number}, tile {tile}")


def _check_cover(phase: Phase, backward: bool) -> None:
    tiling = phase.backward if backward else phase.forward
    if tiling is None or tiling.mode == "gather":  # gather's gradients overlap; its shares are checked in bounds
        return
    for value in phase.stores:
        volume = sum(tiling.box("share", value, tile).volume for tile in phase.tiles())
        if volume != phase.graph.type(value).size:
            raise _fail("S2", phase, "all", f"tiles make {volume} of {phase.graph.type(value).size} of '{value}'")


def _check_tile(
    phase: Phase, tile: tuple[int, ...], backward: bool, given: dict[tuple[str, int, tuple[int, ...]], Box]
) -> None:
    held: dict[str, Box] = {name: Box.full(phase.graph.shape(name)) for name in phase.whole}
    for step in phase.steps(tile, backward=backward):
        _check_reads(phase, tile, step, held)
        match step:
            case Load(value=value, box=box):
                held[value] = box
            case Compute(node=name, out=out):
                held[phase.graph.node[name].outputs[0]] = out
            case Join(value=value, held=box, receives=receives, gives=gives):
                for halo in receives:
                    if given.get((value, halo.axis, tile)) != halo.box:
                        raise _fail("S4", phase, tile, f"halo {halo.box} of '{value}' was not given")
                held[value] = box
                for halo in gives:
                    after = tuple(t + (j == halo.axis) for j, t in enumerate(tile))
                    given[value, halo.axis, after] = halo.box
            case Free(value=value):
                held.pop(value, None)


def _check_reads(phase: Phase, tile: tuple[int, ...], step: Step, held: dict[str, Box]) -> None:
    wanted: list[tuple[str, Box]] = []
    match step:
        case Compute(node=name, reads=reads):
            shapes = phase.graph.shape
            node = phase.graph.node[name]
            wanted = [(v, box.clip(shapes(v))) for v, box in zip(node.reads, reads, strict=True)]
        case Store(value=value, box=box):
            wanted = [(value, box)]
        case Fold(box=box):
            wanted = [(touched(phase.graph, step)[0], box)]
        case _:
            return
    for value, box in wanted:
        if value in phase.whole:
            continue  # all of it is there
        if not box.empty and (value not in held or not held[value].holds(box)):
            raise _fail("S3", phase, tile, f"{step} reads {box} of '{value}', which holds {held.get(value)}")
