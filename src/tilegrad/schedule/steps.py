"""The steps of a schedule. Of one tile: boxes are global, indices of the whole value. Of a step list: whole nodes."""

from __future__ import annotations

from dataclasses import dataclass

from ..region import Box


@dataclass(frozen=True, slots=True)
class Load:
    """Read a box of a stored value (an input, or what an earlier phase kept)."""

    value: str
    box: Box


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a node. `reads` are the boxes of its inputs before clipping; what sticks out is padding."""

    node: str
    out: Box
    reads: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Halo:
    """A strip of a value handed from a tile to the next one along `axis` (its place among the tiled axes)."""

    axis: int
    dim: int
    box: Box


@dataclass(frozen=True, slots=True)
class Join:
    """Put received halos in front of what the tile made itself, and cut the halos that later tiles will read.

    Halos are received from the innermost axis outwards: each is as wide as what is assembled by then, so that
    a strip cut from an assembled box may reach back over many tiles.
    """

    value: str
    own: Box
    held: Box
    receives: tuple[Halo, ...]
    gives: tuple[Halo, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write a box of a value that is made whole: an output, or what a later phase reads."""

    value: str
    box: Box


@dataclass(frozen=True, slots=True)
class Fold:
    """Add a tile's part to a reduction."""

    node: str
    box: Box


@dataclass(frozen=True, slots=True)
class Free:
    """Nothing reads this value any more in this tile."""

    value: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run a whole node, forward or backward. A forward node that ran before is recomputed."""

    node: str


@dataclass(frozen=True, slots=True)
class Offload:
    """Begin to copy a value to the host. A later `Free` gives back its device memory, and waits for the copy."""

    value: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Begin to copy a value back from the host. What reads it waits for the copy."""

    value: str


WholeStep = Run | Offload | Fetch | Free
Step = Load | Compute | Join | Store | Fold | Free
