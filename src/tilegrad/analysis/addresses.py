"""Where blocks lie: how much address space the allocator used, how well it reused it, and whether it was sound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..profile import Block
from ..region import overlapping_pairs

ARENA_GAP = 2**24  # unused bytes between two arenas
SHOWN = 100
MOST_CONFLICTS = 10_000  # then the file is nonsense, and counting on would take long


class Segment(NamedTuple):
    """Addresses that were all used."""

    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


class Arena(NamedTuple):
    """Segments near each other: what one pool handed out."""

    start: int
    end: int
    blocks: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Addresses:
    blocks: int
    total_bytes: int  # of all blocks
    segments: tuple[Segment, ...]
    arenas: tuple[Arena, ...]
    starts: int  # different addresses that blocks start at
    overlapping_pairs: int  # blocks that had an address in common, at different times
    conflicts: tuple[tuple[Block, Block], ...]  # or at the same time, which must not be

    @property
    def union_bytes(self) -> int:
        return sum(s.bytes for s in self.segments)

    @property
    def arena_bytes(self) -> int:
        return sum(a.bytes for a in self.arenas)

    @property
    def reuse(self) -> float:
        """How often a byte was handed out."""
        return self.total_bytes / self.union_bytes if self.union_bytes else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks,
            "total_bytes": self.total_bytes,
            "union_bytes": self.union_bytes,
            "shared_bytes": self.total_bytes - self.union_bytes,
            "reuse": self.reuse,
            "segments": [{"start": s.start, "end": s.end, "bytes": s.bytes} for s in self.segments[:SHOWN]],
            "segment_count": len(self.segments),
            "arenas": [
                {"start": a.start, "end": a.end, "bytes": a.bytes, "blocks": a.blocks} for a in self.arenas[:SHOWN]
            ],
            "arena_bytes": self.arena_bytes,
            "distinct_starts": self.starts,
            "overlapping_pairs": self.overlapping_pairs,
            "conflicts": [[a.name, b.name] for a, b in self.conflicts[:SHOWN]],
            "conflict_count": len(self.conflicts),
        }


def find_addresses(blocks: Sequence[Block]) -> Addresses | None:
    """None where no block has an address."""
    placed = [b for b in blocks if b.address is not None and b.bytes and b.start < b.stop]
    if not placed:
        return None
    spans = sorted((b.address or 0, (b.address or 0) + b.bytes) for b in placed)
    segments = join_spans(spans)
    starts = [start for start, _ in spans]
    conflicts = tuple(_conflicts(placed))
    return Addresses(
        len(placed),
        sum(b.bytes for b in placed),
        segments,
        tuple(_arenas(segments, starts)),
        len(set(starts)),
        overlapping_pairs(spans) - len(conflicts),
        conflicts,
    )


def join_spans(spans: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
    """Spans in order of their starts; those that touch become one."""
    found: list[Segment] = []
    for start, end in spans:
        if found and start <= found[-1].end:
            found[-1] = Segment(found[-1].start, max(end, found[-1].end))
        else:
            found.append(Segment(start, end))
    return tuple(found)


def _arenas(segments: Sequence[Segment], starts: Sequence[int]) -> list[Arena]:
    spans: list[list[int]] = []
    for segment in segments:
        if spans and segment.start - spans[-1][1] < ARENA_GAP:
            spans[-1][1] = segment.end
        else:
            spans.append([segment.start, segment.end])
    found = [Arena(a, b, bisect_left(starts, b) - bisect_left(starts, a)) for a, b in spans]
    return sorted(found, key=lambda arena: -arena.bytes)


def _conflicts(blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
    """Blocks that overlap in address while both are alive."""
    events = sorted([(b.start, 1, i) for i, b in enumerate(blocks)] + [(b.stop, 0, i) for i, b in enumerate(blocks)])
    alive: list[tuple[int, int]] = []  # address and block; nearly without overlap, so that neighbours tell
    longest, found = 0, list[tuple[Block, Block]]()
    for _, born, i in events:
        if len(found) > MOST_CONFLICTS:
            break
        block = blocks[i]
        address = block.address or 0
        at = bisect_left(alive, (address, i))
        if not born:
            del alive[at]
            continue
        longest = max(longest, block.bytes)
        below = at - 1
        while below >= 0 and alive[below][0] > address - longest:
            other = blocks[alive[below][1]]
            if (other.address or 0) + other.bytes > address:
                found.append((other, block))
            elif not found:
                break  # without overlap so far: what lies below the neighbour ends before it
            below -= 1
        for _, j in alive[at : bisect_left(alive, (address + block.bytes, -1))]:
            found.append((blocks[j], block))
        alive.insert(at, (address, i))
    return found
