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


@dataclass(frozen=True)
class Prediction:
    """Bytes on the device. `peak_bytes` is the most a step allocates beyond parameters, their gradients and the
    inputs; `total_bytes` is the most that is alive, those included."""

    peak_bytes: int
    total_bytes: int
    halo_bytes: int  # all halos that are kept at once, wherever they are kept
    worst: str  # where the peak lies: "backward of 2:0,0"
    worst_node: str  # the node of that island with the largest output
    memory: Memory | None = field(default=None, repr=False)  # step by step, with what is alive at the peak
    running: tuple[int, ...] = field(default=(), repr=False)  # of that, step by step: what the island itself needs

    @property
    def figures(self) -> dict[str, int | float]:
        return {"peak_bytes": self.peak_bytes, "total_bytes": self.total_bytes, "halo_bytes": self.halo_bytes}
