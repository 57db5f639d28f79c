"""Footprints of tiles told from tables (`weigh.py`), but for those that decide: these are rehearsed.

To rehearse an island takes milliseconds, and a network in tiles has hundreds of kinds. Most of them are far from the
peak, and how far is known well from the tables. So a schedule is walked with guesses; what comes near the peak is
rehearsed, and its own figures correct the guesses of all tiles of its phase; until the peak stands on rehearsals.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...ir import Kind
from ...schedule import Backward, Island, Run, Schedule, Storage, TilePhase
from ...schedule.phase import TileIsland
from ...sim.footprint import FRESH, Footprint, RunKind
from ...sim.predict import Prediction, predict
from ...sim.rehearsal import Rehearsals, shape_of
from .weigh import Scale
from .weight import TileBytes

DOUBT = 0.4  # of what a tile needs by the tables: what may be at the peak with so much more is rehearsed
SMALL_DOUBT = 0.04  # the same, where another tile of its phase was
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
        self._known: dict[Hashable, Footprint] = {}  # in one walk

    def of(self, island: Island, how: RunKind) -> Footprint:
        return self._found(island, how, back=False)

    def backward(self, island: Island, how: RunKind) -> Footprint:
        return self._found(island, how, back=True)

    def predict(self, schedule: Schedule) -> Prediction:
        """Of this schedule, or the same tiles with others kept."""
        self.schedule = schedule
        while True:
            self._known.clear()
            found = predict(schedule, self.scale.graded, self)
            if not self._look_closer(found):
                return found

    def _found(self, island: Island, how: RunKind, *, back: bool) -> Footprint:
        key = shape_of(island), how, back
        if key not in self._known:
            self._known[key] = self._find(island, how, back=back)
        return self._known[key]

    def _find(self, island: Island, how: RunKind, *, back: bool) -> Footprint:
        table = self._table(island)
        if table is None or not isinstance(island, TileIsland):
            return self._rehearsed(island, how, back=back)
        phase = island.phase.number, how.keep, how.again
        guess = self._guess(island, how, table)
        first = how.keep and not how.again and phase not in self._met  # whose memory such a record holds is seen only
        if not first and (shape_of(island), how.keep) not in self._sure:
            return self._met.get(phase, UNKNOWN).corrected(guess)
        found = self._rehearsed(island, how, back=back)
        self._met[phase] = self._met.get(phase, _Met()).also(found, guess)
        return found

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
        for at, step in enumerate(self.schedule.steps):
            if device[at] + DOUBT * found.running[at] >= found.total_bytes and isinstance(step, Run | Backward):
                island = self.schedule.islands[step.island]
                if self._table(island) is not None:
                    assert isinstance(island, TileIsland)
                    keep = isinstance(step, Backward) or step.keep
                    known = (island.phase.number, keep, at > self.schedule.turn) in self._met
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
