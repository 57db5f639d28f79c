"""Bytes over time: walk a step list and count. Integers only; knows nothing of how the schedule was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..schedule.step_list import StepList
from ..schedule.steps import Fetch, Free, Offload, Run
from .offsets import Lifetime


@dataclass(frozen=True, slots=True)
class Alive:
    """A piece of memory at some moment, and where it comes from."""

    value: str
    bytes: int
    source: str


@dataclass(frozen=True)
class Memory:
    """What a schedule holds, step by step."""

    device: tuple[int, ...] = field(repr=False)  # bytes while each step runs
    host: tuple[int, ...] = field(repr=False)
    peak_bytes: int
    peak_step: int
    resident_bytes: int
    host_peak_bytes: int
    alive: tuple[Alive, ...] = field(repr=False)  # at the peak, largest first, without what is resident
    lifetimes: tuple[Lifetime, ...] = field(repr=False)  # of everything that comes and goes; none for tiles
    labels: tuple[str, ...] = field(default=(), repr=False)  # of tiles: what each step is


def measure_memory(schedule: StepList) -> Memory:
    """Count the bytes of every step. While a node runs its inputs and its outputs coexist."""
    walk = _Walk(schedule)
    for step in schedule.steps:
        walk.step(step)
    return walk.result()


class _Walk:
    def __init__(self, schedule: StepList):
        self.schedule, self.memory = schedule, schedule.memory
        self.live: dict[str, int] = {}  # root -> step of its birth
        self.now = self.memory.resident_bytes
        self.on_host: set[str] = set()
        self.host_now = 0
        self.device: list[int] = []
        self.host: list[int] = []
        self.lifetimes: list[Lifetime] = []
        self.peak, self.peak_step = self.now, 0
        self.at_peak: dict[str, int] = {}

    def step(self, step: Run | Free | Offload | Fetch) -> None:
        at = len(self.device)
        match step:
            case Run(node=node):
                made = self.memory.writes(node)
                replaced = [name for name in made if name in self.live]  # made again while it is there
                for name in made:
                    self.now += self.memory.bytes[name]
                self._look(at, made)
                for name in replaced:
                    self._die(name, at + 1)
                self.live.update(dict.fromkeys(made, at))
            case Free(value=value):
                self._look(at, ())
                self._die(value, at)
            case Offload(value=value):
                self._look(at, ())
                self.host_now += 0 if value in self.on_host else self.memory.bytes[value]
                self.on_host.add(value)
            case Fetch(value=value):
                self.now += self.memory.bytes[value]
                self._look(at, (value,))
                self.live[value] = at
        self.host.append(self.host_now)
        if isinstance(step, Fetch):  # the copy on the host is given up
            self.on_host.discard(step.value)
            self.host_now -= self.memory.bytes[step.value]

    def _look(self, at: int, made: Sequence[str]) -> None:
        self.device.append(self.now)
        if self.now > self.peak:
            self.peak, self.peak_step, self.at_peak = self.now, at, {**self.live, **dict.fromkeys(made, at)}

    def _die(self, name: str, at: int) -> None:
        born = self.live.pop(name)
        self.now -= self.memory.bytes[name]
        self.lifetimes.append(Lifetime(name, self.memory.bytes[name], born, at))

    def result(self) -> Memory:
        end = len(self.device)
        for name in list(self.live):
            self._die(name, end)
        graph = self.schedule.graph
        alive = [Alive(n, self.memory.bytes[n], graph.producer[n].describe()) for n in self.at_peak]
        return Memory(
            tuple(self.device), tuple(self.host), self.peak, self.peak_step, self.memory.resident_bytes,
            max(self.host, default=0), tuple(sorted(alive, key=lambda a: -a.bytes)), tuple(self.lifetimes),
        )  # fmt: skip
