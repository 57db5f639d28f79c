"""Rules S1, S3, S4, S5 and S6 of a schedule: what is where, step by step."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import InternalError
from .schedule import Schedule
from .steps import Backward, Finish, Free, Move, Run, ScheduleStep
from .whole import DEVICE, NodeIslands, roots_of


def fail(rule: str, at: int | str, what: str) -> InternalError:
    where = f"step {at}" if isinstance(at, int) else at
    return InternalError(f"schedule breaks rule {rule}: {what}", where=where)


def reads_of(schedule: Schedule, step: ScheduleStep) -> tuple[str, ...]:
    match step:
        case Run(island=name):
            return schedule.islands[name].reads(schedule.graph)
        case Backward(island=name):
            return schedule.islands[name].reads_back(schedule.graph)
    return ()


def check_residency(schedule: Schedule) -> None:
    """Rules S1, S3, S4, S5 and S6."""
    there = _There(schedule)
    for at, step in enumerate(schedule.steps):
        there.step(at, step)
    there.end()


class _There:
    """What is on the device, what is away, and which records are kept."""

    def __init__(self, schedule: Schedule):
        self.schedule, self.roots = schedule, roots_of(schedule.graph)
        self.explicit = isinstance(schedule.islands, NodeIslands)
        self.handed = self.roots.kept | {self.roots.root[new] for _, new in schedule.graph.updates}
        self.nothing = {v.name for v in schedule.graph.values if schedule.owned(v.name).empty}  # here nobody makes it
        self.device: set[str] = set()
        self.away: set[str] = set()
        self.records: set[str] = set()  # as steps call them
        self.ran: set[str] = set()

    def step(self, at: int, step: ScheduleStep) -> None:
        for name in reads_of(self.schedule, step):
            root = self.roots.root[name]
            if not (root in self.device or root in self.nothing or root in self.roots.resident):
                who = getattr(step, "island", "")
                raise fail("S1", at, f"'{who}' reads '{root}', which is not on the device")
        match step:
            case Run(island=name, keep=keep):
                self._make(at, name, self.schedule.written[at])
                if keep:
                    self.records.add(f"{name}.saved")
                self.ran.add(name)
            case Finish(node=name):
                self._make(at, name, self.schedule.graph.node[name].outputs)
            case Backward(island=name):
                saved = f"{name}.saved"
                if saved in self.away and saved not in self.device:
                    raise fail("S1", at, f"the record of '{name}' is away")
                self.records.discard(saved)
                self.away.discard(saved)
                self.device.discard(saved)
            case Free(value=value):
                self._free(at, value)
            case Move(value=value, store=store):
                self._move(at, value, store)

    def _make(self, at: int, who: str, names: Collection[str]) -> None:
        for name in names:
            root = self.roots.root[name]
            if root in self.roots.resident or (self.explicit and root != name):
                continue
            again = self.explicit or (at < self.schedule.turn and who in self.ran)
            if again and root in self.device and root not in self.roots.kept:
                raise fail("S6", at, f"'{who}' makes '{root}', which is there already")
            self.device.add(root)
            self.away.discard(root)
        if self.explicit:
            self.away.difference_update(self.roots.lived_in(who))

    def _free(self, at: int, value: str) -> None:
        if value in self.schedule.graph.value:
            self._may_go(at, value)
            self.device.discard(value)
        elif value in self.records:
            if value not in self.away:
                raise fail("S11", at, f"'{value}' is freed before its backward")
            self.device.discard(value)
        else:  # a gradient that is away
            self.device.discard(value)

    def _move(self, at: int, value: str, store: str) -> None:
        known = value in self.schedule.graph.value
        if store != DEVICE:
            if known:
                self._may_go(at, value)
            elif value.endswith(".saved") and value not in self.records:
                raise fail("S1", at, f"'{value}' is not on the device")
            else:
                self.device.add(value)
            self.away.add(value)
            return
        if value not in self.away or value in self.device:
            raise fail("S5", at, f"'{value}' is not away as it was last, or on the device already")
        self.device.add(value)
        self.away.discard(value)

    def _may_go(self, at: int, value: str) -> None:
        if value in self.roots.resident or value != self.roots.root[value]:
            raise fail("S3", at, f"'{value}' is resident or an alias")
        if value in self.handed:
            raise fail("S4", at, f"'{value}' is handed over at the end")
        if value not in self.device and value not in self.nothing:
            raise fail("S1", at, f"'{value}' is not on the device")

    def end(self) -> None:
        at = len(self.schedule.steps)
        for name in sorted(n for n in self.device - self.handed if n in self.schedule.graph.value):
            raise fail("S6", at, f"'{name}' is never freed")
        for name in sorted(self.records):
            raise fail("S6", at, f"'{name}' is never used")
