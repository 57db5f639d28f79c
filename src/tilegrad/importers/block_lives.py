"""Blocks from allocations and frees in order of time: what torch traces and memory snapshots have in common.

Tick 0 is the beginning; every allocation and every free is a tick after it.

Rule L1  A free of an address that nothing was seen to take is of memory from before: its block is alive from tick 0.
         Where the address was freed before, an allocation was missed: the block is alive from that free on.
Rule L2  An allocation at an address that is taken ends the block there: its free was missed.
Rule L3  What is never freed is alive to the end.
"""

from __future__ import annotations

from ..profile import Block, BlockKind

_NAME, _BYTES, _START, _STOP, _KIND, _ADDRESS, _DEVICE, _MAKER = range(8)


class Lives:
    """Give it everything in order of time, then take `blocks`, `clock` and `notes`."""

    def __init__(self, begin_s: float) -> None:
        self.clock: list[float] = [begin_s]
        self._rows: list[list[object]] = []
        self._alive: dict[tuple[str, int], int] = {}  # -> place in rows
        self._freed: dict[tuple[str, int], int] = {}  # -> tick
        self._missed_frees = self._missed_allocations = 0

    def allocate(
        self,
        second: float,
        device: str,
        address: int,
        bytes: int,
        name: str,
        kind: BlockKind = BlockKind.UNKNOWN,
        maker: int | None = None,
    ) -> None:
        tick, key = len(self.clock), (device, address)
        self.clock.append(second)
        if (taken := self._alive.get(key)) is not None:  # rule L2
            self._rows[taken][_STOP] = tick
            self._missed_frees += 1
        self._alive[key] = len(self._rows)
        self._rows.append([name, bytes, tick, None, kind, address, device, maker])

    def free(self, second: float, device: str, address: int, bytes: int, name: str, maker: int | None = None) -> int:
        """Bytes that were there before tick 1, and are gone now. `maker`: what frees an own block has it as scratch."""
        tick, key = len(self.clock), (device, address)
        self.clock.append(second)
        place, again = self._alive.pop(key, None), self._freed.get(key)
        self._freed[key] = tick
        if place is not None:
            row = self._rows[place]
            row[_STOP] = tick
            if maker is not None and row[_MAKER] == maker:
                row[_KIND] = BlockKind.WORKSPACE
            return 0
        self._missed_allocations += again is not None
        self._rows.append([name, bytes, again or 0, tick, BlockKind.UNKNOWN, address, device, None])
        return bytes if again is None else 0

    def is_alive(self, device: str, address: int) -> bool:
        return (device, address) in self._alive

    def add_lasting(self, device: str, address: int | None, bytes: int, name: str) -> None:
        """Memory that was there before, and is to the end."""
        self._rows.append([name, bytes, 0, None, BlockKind.UNKNOWN, address, device, None])

    def blocks(self) -> tuple[Block, ...]:
        """In order of their first tick."""
        ticks = len(self.clock)
        self._rows.sort(key=lambda row: row[_START])  # type: ignore[arg-type,return-value]
        return tuple(
            Block(name, bytes, start, ticks if stop is None else stop, kind, address, device, maker)  # type: ignore
            for name, bytes, start, stop, kind, address, device, maker in self._rows
        )

    def notes(self) -> list[str]:
        found = []
        if self._missed_frees:
            found.append(f"{self._missed_frees} allocations at addresses that were taken: what was there ends there")
        if self._missed_allocations:
            found.append(f"{self._missed_allocations} addresses freed twice with no allocation between: one is assumed")
        return found
