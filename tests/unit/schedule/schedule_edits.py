"""Edits of schedules: one step dropped, moved or put twice, one island changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilegrad.region import Box
from tilegrad.schedule import (
    Backward,
    Compute,
    Fold,
    Halo,
    Island,
    IslandStep,
    Join,
    Load,
    Run,
    Schedule,
    ScheduleStep,
    Store,
)

Edit = Callable[[Schedule], Schedule]


def steps(change: Callable[[list[ScheduleStep]], Sequence[ScheduleStep]]) -> Edit:
    return lambda schedule: replace(schedule, steps=tuple(change(list(schedule.steps))))


def drop(*gone: ScheduleStep) -> Edit:
    """Without these steps; each must be there."""

    def change(found: list[ScheduleStep]) -> list[ScheduleStep]:
        assert all(step in found for step in gone)
        return [step for step in found if step not in gone]

    return steps(change)


def put(step: ScheduleStep, after: ScheduleStep) -> Edit:
    """One more step, right after the first of another."""
    return steps(lambda found: [*found[: (at := found.index(after) + 1)], step, *found[at:]])


def swap(one: ScheduleStep, other: ScheduleStep) -> Edit:
    other_of: dict[ScheduleStep, ScheduleStep] = {one: other, other: one}
    return steps(lambda found: [other_of.get(step, step) for step in found])


def both(first: Edit, second: Edit) -> Edit:
    return lambda schedule: second(first(schedule))


def island(name: str, change: Callable[[Island], Island]) -> Edit:
    def edit(schedule: Schedule) -> Schedule:
        known = {key: schedule.islands[key] for key in schedule.islands}
        return replace(schedule, islands={**known, name: change(known[name])})

    return edit


def inside(name: str, change: Callable[[list[IslandStep]], Sequence[IslandStep]]) -> Edit:
    return island(name, lambda found: replace(found, steps=tuple(change(list(found.steps)))))


def each(name: str, change: Callable[[IslandStep], IslandStep | None]) -> Edit:
    """An island with its steps changed, or dropped."""
    return inside(name, lambda found: [new for old in found if (new := change(old)) is not None])


def forward_reversed(schedule: Schedule) -> Schedule:
    """The tiles of the last walk from its end."""
    found = list(schedule.steps)
    places = [at for at in range(schedule.turn) if isinstance(s := found[at], Run) and s.island.startswith("2:")]
    for at, step in zip(places, [found[at] for at in reversed(places)], strict=True):
        found[at] = step
    return replace(schedule, steps=tuple(found))


def backward_reversed(schedule: Schedule) -> Schedule:
    """The tiles of the last walk go backward from its beginning: each with its run."""
    turn = schedule.turn + 1
    walk: list[ScheduleStep] = []
    for name in (f"2:{i},{j}" for i in range(3) for j in range(2)):
        walk += [Run(name, keep=True), Backward(name)]
    rest = [step for step in schedule.steps[turn:] if step not in walk]
    return replace(schedule, steps=(*schedule.steps[:turn], *walk, *rest))


def moved(box: Box, by: int, dim: int = 2) -> Box:
    sides = list(box)
    sides[dim] = sides[dim]._replace(lo=sides[dim].lo + by, hi=sides[dim].hi + by)
    return Box(sides)


def smaller(box: Box, dim: int = 2) -> Box:
    sides = list(box)
    sides[dim] = sides[dim]._replace(hi=sides[dim].hi - 1)
    return Box(sides)


def shifted(step: IslandStep) -> IslandStep:
    """All of a tile one row up: sound by itself."""
    match step:
        case Load(value=value, box=box):
            return Load(value, moved(box, -1))
        case Compute(node=node, out=out, reads=(data, *others)):
            return Compute(node, moved(out, -1), (moved(data, -1), *others))
        case Store(value=value, box=box):
            return Store(value, moved(box, -1))
        case Fold(node=node, box=box):
            return Fold(node, moved(box, -1))
    return step


def halos(name: str, change: Callable[[Halo], Halo | None], *, given: bool = False) -> Edit:
    """Change the halos that a tile receives, or gives; None: it does not."""

    def edit(step: IslandStep) -> IslandStep:
        if not isinstance(step, Join):
            return step
        old = step.gives if given else step.receives
        new = tuple(made for halo in old if (made := change(halo)) is not None)
        return replace(step, gives=new) if given else replace(step, receives=new)

    return each(name, edit)


def phases_reversed(schedule: Schedule) -> Schedule:
    turn = schedule.turn
    forward = sorted(schedule.steps[:turn], key=lambda step: not (isinstance(step, Run) and step.island[0] == "2"))
    return replace(schedule, steps=(*forward, *schedule.steps[turn:]))


def backward_phases_reversed(schedule: Schedule) -> Schedule:
    turn = schedule.turn + 1
    first = [s for s in schedule.steps[turn:] if isinstance(s, Run | Backward) and s.island[0] == "0"]
    rest = [step for step in schedule.steps[turn:] if step not in first]
    return replace(schedule, steps=(*schedule.steps[:turn], *first, *rest))


def renamed(name: str, other: str) -> Edit:
    """The same tile under another name, run right after it."""

    def edit(schedule: Schedule) -> Schedule:
        known = {key: schedule.islands[key] for key in schedule.islands}
        found = replace(schedule, islands={**known, other: replace(known[name], name=other)})
        return put(Run(other), Run(name))(found)

    return edit


def early(step: ScheduleStep, before: ScheduleStep) -> Edit:
    """A step that is there, before another."""

    def change(found: list[ScheduleStep]) -> list[ScheduleStep]:
        rest = [old for old in found if old != step]
        at = rest.index(before)
        return [*rest[:at], step, *rest[at:]]

    return steps(change)


def keep(name: str, *, kept: bool) -> Edit:
    """Whether the record of an island stays."""
    return steps(lambda found: [Run(name, keep=kept) if isinstance(s, Run) and s.island == name else s for s in found])
