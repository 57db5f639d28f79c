"""The best recompute plan by brute force: every set of values that could be kept from each backward node to the next.

Naive on purpose, and nothing shared with `tilegrad.planners`: a stage runs the forward nodes that what it wants depends
on, in the graph's order, and a value is there from its making to its last use. Some 2^values squared trials per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations

from step_player import Player
from tilegrad.ir import Graph, Phase

Names = frozenset[str]


class KeepSets:
    def __init__(self, graph: Graph, seconds: Mapping[str, float]):
        player, self.seconds = Player(graph), seconds
        self.size = player.size
        self.forward = [n.name for n in graph.nodes if n.phase is Phase.FORWARD]
        self.backward = [n.name for n in graph.nodes if n.phase is not Phase.FORWARD]
        self.makes = {n.name: player.made_by(n.name) for n in graph.nodes}
        self.reads = {n.name: {player.root[name] for name in n.reads} for n in graph.nodes}
        self.maker = {value: node for node in self.forward for value in self.makes[node]}
        handed = {player.root[name] for name in graph.outputs}
        self.handed = frozenset(handed & self.maker.keys())
        free = sorted(self.maker.keys() - handed)
        self.sets = [self.handed | {*some} for k in range(len(free) + 1) for some in combinations(free, k)]
        self.others = self._others(player.resident, handed)
        self.stage = cache(self._stage)

    def _others(self, resident: set[str], handed: set[str]) -> list[tuple[int, int]]:
        """Bytes of gradients and residents, before and during each backward node."""
        found, alive = [], set(resident)
        for at, node in enumerate(self.backward):
            before = self._bytes(alive)
            alive |= self.makes[node]
            found.append((before, self._bytes(alive)))
            later = {name for other in self.backward[at + 1 :] for name in self.reads[other]}
            alive &= later | resident | handed
        return found

    def _bytes(self, names: set[str]) -> int:
        return sum(self.size[name] for name in names)

    def _stage(self, stage: int, kept: Names, keep: Names) -> tuple[float, int]:
        """Seconds of what runs again, and the peak."""
        wanted = (self.reads[self.backward[stage]] & self.maker.keys()) | keep
        runs = self.forward if stage == 0 else self._again(wanted, kept)
        before, during = self.others[stage]
        alive, peak = set(kept), 0
        for at, node in enumerate(runs):
            alive = {name for name in alive if self._used(name, runs[at:], wanted)}
            peak = max(peak, before + self._bytes(alive) + self._bytes(self.makes[node]))
            alive |= self.makes[node]
        alive = {name for name in alive if self._used(name, [], wanted)}
        peak = max(peak, during + self._bytes(alive))
        return (sum(self.seconds[node] for node in runs) if stage else 0.0), peak

    def _again(self, wanted: set[str], kept: Names) -> list[str]:
        runs: set[str] = set()
        missing = wanted - kept
        while missing:
            node = self.maker[missing.pop()]
            runs.add(node)
            missing |= {v for v in self.reads[node] & self.maker.keys() if v not in kept and self.maker[v] not in runs}
        return [node for node in self.forward if node in runs]

    def _used(self, name: str, runs: list[str], wanted: set[str]) -> bool:
        """Is it read before it is made again?"""
        for node in runs:
            if name in self.reads[node] or name in self.handed:
                return True
            if name in self.makes[node]:
                return False
        return name in wanted

    def _best(self, start: float, step: Callable[[float, float, int], float | None]) -> float | None:
        """The least over all choices of what is kept after each stage."""
        states: dict[Names, float] = {frozenset(): start}
        for stage in range(len(self.backward)):
            last = stage == len(self.backward) - 1
            found: dict[Names, float] = {}
            for kept, cost in states.items():
                for keep in [self.handed] if last else self.sets:
                    new = step(cost, *self.stage(stage, kept, keep))
                    if new is not None and new < found.get(keep, float("inf")):
                        found[keep] = new
            states = found
        return min(states.values(), default=None)

    def least_seconds(self, budget: int) -> float | None:
        """Of what runs again, where the budget can be met."""
        return self._best(0.0, lambda cost, seconds, peak: cost + seconds if peak <= budget else None)

    def least_peak(self) -> int:
        found = self._best(0, lambda cost, seconds, peak: max(cost, peak))
        assert found is not None
        return int(found)
