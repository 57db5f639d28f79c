"""Footprints of tiles told from tables (`weigh.py`), but for those that decide: these are rehearsed.

To rehearse an island takes milliseconds, and a network in tiles has hundreds of kinds. Most of them are far from the
peak, and how far is known well from the tables. So a schedule is walked with guesses; what comes near the peak is
rehearsed, and its own figures correct the guesses of all tiles of its phase; until the peak stands on rehearsals. Where
it is known about how high that will be, what comes near it is rehearsed on the way: one walk is then mostly enough.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from ...ir import Kind
from ...schedule import Backward, Island, Run, Schedule, Storage, TilePhase
from ...schedule.phase import TileIsland
from ...schedule.whole import roots_of
from ...sim.footprint import FRESH, Footprint, RunKind
from ...sim.memory import Prediction
from ...sim.predict import predict
from ...sim.rehearsal import Rehearsals, shape_of
from .weigh import Scale
from .weight import TileBytes

DOUBT = 0.4  # of what a tile needs by the tables: what may be at the peak with so much more is rehearsed
SMALL_DOUBT = 0.04  # the same, where another tile of its phase was
TELLING = 0.3  # of the largest tile: one that makes less, or nothing, says little of others
FEW = 3  # tiles: of so few each is rehearsed
LITTLE = 1 << 16  # bytes of a value: next to nothing


class Guesses:
    """What islands of a schedule need. `scale`: of its graph."""

    def __init__(self, schedule: Schedule, scale: Scale, rehearsals: Rehearsals):
        self.schedule, self.scale, self.rehearsals = schedule, scale, rehearsals
        self.near = schedule.storage == Storage.DEVICE
        self._sure: set[Hashable] = set()  # which of its runs are rehearsed
        self._met: dict[tuple[int, bool, bool], _Met] = {}  # phase, with a record, behind the turn
        self._tables: dict[int, TileBytes | None] = {}
        self._known: dict[Hashable, tuple[Footprint, float]] = {}  # in one walk: up to so many bytes that are there
        self._loose: set[Hashable] = set()  # in one walk: what was guessed before another tile of its phase was met
        self._kinds: dict[int, int] = {}
        self._shapes: dict[Hashable, int] = {}
        self._near_peak = inf  # bytes, besides what is there in any case

    def of(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        return self._found(island, how, there, back=False)

    def backward(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        return self._found(island, how, there, back=True)

    def predict(self, schedule: Schedule, about: float = inf) -> Prediction:
        """Of this schedule, or the same tiles with others kept. `about`: what it should need."""
        self.schedule = schedule
        self._near_peak = about - roots_of(schedule.graph).resident_bytes
        while True:
            self._known.clear()
            self._loose.clear()
            found = predict(schedule, self.scale.graded, self)
            if not self._look_closer(found):
                return found

    def _found(self, island: Island, how: RunKind, there: int, *, back: bool) -> Footprint:
        key = self._number(island), how, back
        found, most = self._known.get(key, NOTHING)
        if there > most:
            found, most = self._known[key] = self._find(island, how, there, back=back)
        return found

    def _number(self, island: Island) -> int:
        """The same for islands that are alike: of a kind, or of two that differ in paddings alone."""
        kind = id(island.kind)
        if kind not in self._kinds:
            self._kinds[kind] = self._shapes.setdefault(shape_of(island), len(self._shapes))
        return self._kinds[kind]

    def _find(self, island: Island, how: RunKind, there: int, *, back: bool) -> tuple[Footprint, float]:
        table = self._table(island)
        if table is None or not isinstance(island, TileIsland):
            return self._rehearsed(island, how, back=back), inf
        phase = island.phase.number, how.keep, how.again
        guess, shape = self._guess(island, how, table), (shape_of(island), how.keep)
        first = how.keep and not how.again and phase not in self._met  # whose memory such a record holds is seen only
        if not first and shape not in self._sure:
            met = phase in self._met
            found = self._met.get(phase, UNKNOWN).corrected(guess)
            more, doubt = found.back_peak if back else found.run_peak, SMALL_DOUBT if met else DOUBT
            most = self._near_peak - more - doubt * (more + found.saved if back else more)
            if there <= most:
                self._loose |= set() if met else {(shape, how.again)}
                return found, most
            self._sure.add(shape)
        found = self._rehearsed(island, how, back=back)
        if guess.run_peak >= TELLING * (table.graded if how.keep else table.plain).max():
            self._met[phase] = self._met.get(phase, _Met()).also(found, guess)
        return found, inf

    def _rehearsed(self, island: Island, how: RunKind, *, back: bool) -> Footprint:
        return self.rehearsals.backward(island, how) if back else self.rehearsals.of(island, how)

    def _table(self, island: Island) -> TileBytes | None:
        """None where an island is rehearsed in any case."""
        if not isinstance(island, TileIsland):
            return None
        phase = island.phase
        if phase.number not in self._tables:
            many = phase.backward is phase.forward and prod(phase.grid) > FEW
            alike = many if phase.tiled else self._is_little(phase)
            self._tables[phase.number] = self.scale.tile_bytes(phase, self.near) if alike else None
        return self._tables[phase.number]

    def _is_little(self, phase: TilePhase) -> bool:
        """Statistics, and what is made of them: what lies in whose memory does not matter."""
        graph = self.scale.graph
        return all(graph.type(name).bytes <= LITTLE for node in phase.nodes for name in (*node.reads, *node.outputs))

    def _guess(self, island: TileIsland, how: RunKind, table: TileBytes) -> Footprint:
        column = int(table.kinds[np.ravel_multi_index(island.tile, island.phase.grid)]) if island.tile else 0
        graph = self.scale.graph
        made = {name: graph.type(name).bytes for name in how.absent if self._is_here(name)}
        whole = sum(made.values())
        if not how.keep:
            return Footprint(int(table.plain[column]) + whole, made)
        needs = [name for name in island.reads(graph) if name in self.scale.needs]
        grads = {name: graph.type(name).bytes if self._is_here(name) else 0 for name in needs}
        new = (name for name in needs if name not in how.summed and graph.value[name].kind is not Kind.PARAMETER)
        saved = int(table.saved[column])
        return Footprint(
            int(table.graded[column]) + whole,
            made,
            saved=saved,
            back_peak=max(0, int(table.back[column]) - saved) + sum(grads[name] for name in new),
            gradients={name: (FRESH, size) for name, size in grads.items()},
        )

    def _is_here(self, name: str) -> bool:
        value = self.scale.graph.value[name]
        if value.away:
            return False
        return self.near or not value.kind.computed or name in self.scale.graph.outputs or len(value.type.shape) <= 2

    def _look_closer(self, found: Prediction) -> bool:
        """Mark what is to be rehearsed: is there anything new?"""
        assert found.memory is not None
        device, before = found.memory.device, len(self._sure)
        near = np.array(device) + DOUBT * np.array(found.running) >= found.total_bytes
        for at in map(int, np.flatnonzero(near)):
            if isinstance(step := self.schedule.steps[at], Run | Backward):
                island = self.schedule.islands[step.island]
                if self._table(island) is not None:
                    assert isinstance(island, TileIsland)
                    keep = isinstance(step, Backward) or step.keep
                    again = at > self.schedule.turn
                    known = (island.phase.number, keep, again) in self._met
                    known = known and ((shape_of(island), keep), again) not in self._loose
                    doubt = SMALL_DOUBT if known else DOUBT
                    if device[at] + doubt * found.running[at] >= found.total_bytes:
                        self._sure.add((shape_of(island), keep))
        return len(self._sure) > before


@dataclass(frozen=True)
class _Met:
    """What rehearsals of a phase's tiles were, as shares of what was guessed; and whose memory their records hold."""

    run: float = 0.0
    back: float = 0.0
    saved: float = 0.0
    holds: frozenset[str] = frozenset()

    def also(self, found: Footprint, guess: Footprint) -> _Met:
        return _Met(
            max(self.run, found.run_peak / max(1, guess.run_peak)),
            max(self.back, found.back_peak / max(1, guess.back_peak)),
            max(self.saved, found.saved / max(1, guess.saved)),
            self.holds | found.holds,
        )

    def corrected(self, guess: Footprint) -> Footprint:
        run, back, saved = self.run * guess.run_peak, self.back * guess.back_peak, self.saved * guess.saved
        return replace(guess, run_peak=int(run), back_peak=int(back), saved=int(saved), holds=self.holds)


UNKNOWN = _Met(1.0, 1.0, 1.0)
NOTHING = Footprint(0), -inf
