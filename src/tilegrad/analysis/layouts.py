"""The same blocks placed by others: simple offline planners, and ours. How good was the allocator that was recorded?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..profile import Block
from ..sim.offsets import EFFORT, Lifetime, assign_offsets, check_layout
from .addresses import Addresses

MOST = 10_000  # blocks: placing takes time in proportion to their square
_FAR = 1 << 62


@dataclass(frozen=True)
class Layouts:
    """Bytes of address space by way of placing."""

    bound_bytes: int  # the largest sum alive at once: nobody needs less
    recorded_union: int | None  # every address that was used
    recorded_span: int | None  # from the first to the last of each arena
    ours: int | None
    exact: bool  # ours cannot be bettered
    greedy: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "bound_bytes": self.bound_bytes,
            "recorded_union_bytes": self.recorded_union,
            "recorded_span_bytes": self.recorded_span,
            "recorded_excess": self.excess(self.recorded_union),
            "recorded_span_excess": self.excess(self.recorded_span),
            "ours_bytes": self.ours,
            "ours_excess": self.excess(self.ours),
            "ours_exact": self.exact,
            "greedy_bytes": self.greedy,
        }

    def excess(self, count: int | None) -> float | None:
        """Over the bound, as a share of it."""
        return None if count is None or not self.bound_bytes else count / self.bound_bytes - 1


def find_layouts(
    blocks: Sequence[Block], bound: int, recorded: Addresses | None, *, effort: int = EFFORT // 10
) -> Layouts | None:
    """None where there are no blocks. Of more than `MOST` only what was recorded is told."""
    real = [b for b in blocks if b.bytes and b.start < b.stop]
    if not real:
        return None
    union = recorded.union_bytes if recorded is not None and recorded.blocks == len(real) else None
    span = recorded.arena_bytes if union is not None and recorded is not None else None
    if len(real) > MOST or sum(b.bytes for b in real) >= _FAR:
        return Layouts(bound, union, span, None, False, {})
    lives = [Lifetime(b.name, b.bytes, b.start, b.stop) for b in real]
    layout = assign_offsets(lives, effort=effort)
    check_layout(lives, layout)
    greedy = {name: best_fit(real, key, align) for name, (key, align) in GREEDY.items()}
    return Layouts(bound, union, span, layout.range_bytes, layout.exact, greedy)


def best_fit(blocks: Sequence[Block], key: Callable[[Block], Any], align: int = 1) -> int:
    """Blocks in the order of `key`, each into the smallest gap it fits in between those it shares time with, or on
    top of them. Returns the address space needed."""
    rows = np.zeros((4, len(blocks)), np.int64)  # offset, end, start, stop
    top = 0
    for count, block in enumerate(sorted(blocks, key=key)):
        size = -(-block.bytes // align) * align
        placed = rows[:, :count]
        beside = placed[:, (placed[2] < block.stop) & (placed[3] > block.start)]
        beside = beside[:, beside[0].argsort(kind="stable")]
        covered = np.concatenate(((0,), np.maximum.accumulate(beside[1])))
        gaps = np.append(beside[0], _FAR) - covered
        gaps[gaps < size] = _FAR + 1
        offset = int(covered[gaps.argmin()])
        rows[:, count] = offset, offset + size, block.start, block.stop
        top = max(top, offset + size)
    return top


GREEDY: dict[str, tuple[Callable[[Block], Any], int]] = {
    "by_size": (lambda b: (-b.bytes, b.start), 1),
    "by_size_512": (lambda b: (-b.bytes, b.start), 512),
    "by_time": (lambda b: (b.start, -b.bytes), 1),
    "by_area": (lambda b: (-b.bytes * (b.stop - b.start), b.start), 1),
}
