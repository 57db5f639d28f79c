"""Bytes alive over time, the peak, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..profile import Block, BlockKind, Profile

SHOWN = 100  # moments of the peak that are listed


@dataclass(frozen=True)
class Live:
    """Bytes alive at every tick."""

    curve: tuple[int, ...]
    peak_bytes: int
    ticks: tuple[int, ...]  # where the peak is reached

    def to_json(self) -> dict[str, Any]:
        return {"peak_bytes": self.peak_bytes, "ticks": list(self.ticks[:SHOWN]), "times_reached": len(self.ticks)}


def find_live(blocks: Iterable[Block], ticks: int, *, align: int = 1) -> Live:
    """The curve of these blocks; `align`: every block rounded up to a multiple."""
    change = [0] * (ticks + 1)
    for block in blocks:
        size = -(-block.bytes // align) * align
        change[block.start] += size
        change[block.stop] -= size
    curve = tuple(accumulate(change[:-1])) if ticks else ()
    peak = max(curve, default=0)
    return Live(curve, peak, tuple(at for at, size in enumerate(curve) if size == peak and peak))


def ticks_are_operators(profile: Profile) -> bool:
    """Does every tick begin with the operator at its place? Equal numbers of both do not say so."""
    if profile.ticks != len(profile.operators):
        return False
    now = float("-inf")
    for op, second in zip(profile.operators, profile.clock, strict=True):
        now = now if op.span is None else max(now, op.span.start_s)
        if now not in (float("-inf"), second):
            return False
    return True


def alive_at(blocks: Sequence[Block], tick: int) -> list[Block]:
    """The largest first."""
    return sorted((b for b in blocks if b.start <= tick < b.stop and b.bytes), key=lambda b: (-b.bytes, b.start))


@dataclass(frozen=True)
class LiveMemory:
    """One device. *Owned* is what the profiled allocator handed out; weights and inputs come from outside."""

    device: str
    owned: Live
    everything: Live
    with_inputs_held: int  # owned, and inputs for the whole run
    without_workspace: Live
    rounded_512: int
    weight_bytes: int
    input_bytes: int
    workspace: dict[str, Any]
    kept_bytes: int  # owned without workspaces, if nothing were freed: what training would have to keep

    @property
    def total_bytes(self) -> int:
        """Weights, inputs for the whole run, and the peak of what is owned."""
        return self.weight_bytes + self.with_inputs_held


def find_memory(profile: Profile, device: str) -> LiveMemory:
    blocks = [b for b in profile.blocks if b.device == device]
    owned = [b for b in blocks if b.owned]
    inputs = sum(b.bytes for b in blocks if b.kind is BlockKind.INPUT and not b.owned)
    scratch = [b for b in owned if b.kind is BlockKind.WORKSPACE]
    lasting = [b for b in owned if b.kind is not BlockKind.WORKSPACE]
    live, ticks = find_live(owned, profile.ticks), profile.ticks
    largest = max((b.bytes for b in scratch), default=0)
    return LiveMemory(
        device,
        live,
        find_live(blocks, ticks),
        live.peak_bytes + inputs,
        find_live(lasting, ticks),
        find_live(owned, ticks, align=512).peak_bytes,
        sum(b.bytes for b in blocks if b.kind is BlockKind.WEIGHT and not b.owned),
        inputs,
        {
            "blocks": len(scratch),
            "total_bytes": sum(b.bytes for b in scratch),
            "max_bytes": largest,
            "max_blocks": [b.name for b in scratch if b.bytes == largest][:SHOWN] if largest else [],
        },
        sum(b.bytes for b in lasting),
    )
