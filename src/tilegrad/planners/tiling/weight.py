"""What tiles are estimated to need: bytes, seconds, and what it brings to keep the last of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...schedule import TilePhase
from ...sim.clock import FREE, Spent
from .again import HeldBytes, Running, Sizes


@dataclass(frozen=True)
class Weight:
    """What tiles are estimated to need."""

    total_bytes: float
    cost: Spent
    turn_bytes: float  # when backward begins, besides what records hold
    stored_bytes: float  # before that, besides what was there at first
    kept_bytes: Sizes = field(repr=False)  # what each tile's record holds, in the order they run, where it could stay
    kept_cost: Spent  # what that saves, a tile
    elapsed: Callable[[float, float], float] = field(repr=False)  # seconds of what host and device have to do
    fresh_s: float  # of all seconds: for memory that is new each time, which smaller tiles may have again

    @property
    def seconds(self) -> float:
        return self.elapsed(*self.cost)

    @property
    def kept_seconds(self) -> float:
        """What it saves to keep a tile."""
        return self.elapsed(*self.kept_cost)

    def keep(self, budget: float) -> tuple[int, float]:
        """How many of the last tiles can be kept, and the seconds that are left."""
        if not len(self.kept_bytes) or self.turn_bytes > budget:
            return 0, self.seconds
        held = np.cumsum(self.kept_bytes[::-1])
        count = int(np.searchsorted(held, budget - self.turn_bytes, side="right"))
        return count, self.elapsed(*self.cost.plus(self.kept_cost, -count))

    def with_kept(self, count: int) -> float:
        """Bytes with so many tiles kept."""
        held = float(self.kept_bytes[len(self.kept_bytes) - count :].sum())
        return max(self.total_bytes, self.turn_bytes + held)


@dataclass(frozen=True)
class Weights:
    """Tiles, whatever lies between them."""

    running: Running
    cost: Spent
    turn_bytes: float
    stored_bytes: float
    kept_bytes: Sizes = field(repr=False)
    kept_cost: Spent
    elapsed: Callable[[float, float], float] = field(repr=False)
    fresh_s: float

    def __call__(self, held: HeldBytes) -> Weight:
        turn, stored = (float(each[-1]) if len(each) else 0.0 for each in (held.after, held.before))
        return Weight(
            self.running.peak(held),
            self.cost.plus(self.running.cost(held)),
            self.turn_bytes + turn,
            self.stored_bytes + stored,
            self.kept_bytes,
            self.kept_cost,
            self.elapsed,
            self.fresh_s,
        )


@dataclass(frozen=True)
class TileBytes:
    """What each kind of a phase's tiles needs: forward without a record, with one, and backward; what its record holds;
    and of which kind each tile is."""

    kinds: NDArray[np.int64] = field(repr=False)
    plain: Sizes = field(repr=False)
    graded: Sizes = field(repr=False)
    back: Sizes = field(repr=False)
    saved: Sizes = field(repr=False)


@dataclass(frozen=True)
class PhaseWeight:
    """What the tiles of one phase need, whatever lies between phases."""

    phase: TilePhase = field(repr=False)  # whose tiling is known by where it lies: it must not go
    halos: float
    forward: float
    replay_s: Spent
    cost: Spent
    fresh_s: float
    backward: float = 0.0
    turn: float = 0.0
    saved: Sizes = field(default_factory=lambda: np.zeros(0), repr=False)  # by each tile's record, where it could stay
    again: Spent = FREE  # what that saves
