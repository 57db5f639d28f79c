"""What a schedule holds, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

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
