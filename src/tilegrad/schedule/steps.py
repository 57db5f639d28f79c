"""The steps of a schedule, and the steps of an island.

An island's steps make one autograd record; their boxes are global, indices of the whole value. A schedule's steps run
islands, forward and backward, and say when what lies between them comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..region import Box

# -- of an island --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Read a box of a stored value. `share`: the part for whose gradient the island answers, where not for all."""

    value: str
    box: Box
    share: Box | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a node. `reads` are the boxes of its inputs before clipping; what sticks out is padding. `answers`: for each
    input the part of `out` (in its own coordinates) from which its gradient comes, where that is not all of it."""

    node: str
    out: Box
    reads: tuple[Box, ...]
    answers: tuple[Box, ...] | None = None


@dataclass(frozen=True, slots=True)
class Halo:
    """A strip of a value along dimension `dim`, handed over by the island `peer`, or to it."""

    axis: int
    dim: int
    box: Box
    peer: str = ""


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
    """Write a box of a value that is made whole: an output, or what another island reads."""

    value: str
    box: Box


@dataclass(frozen=True, slots=True)
class Fold:
    """Add a tile's part to a reduction."""

    node: str
    box: Box


@dataclass(frozen=True, slots=True)
class Free:
    """Nothing reads this value any more: in this island, or at all. `<island>.saved` is what an island's record keeps
    besides values."""

    value: str


IslandStep = Load | Compute | Join | Store | Fold | Free

# -- of a schedule -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Run an island; once more where it ran before. `keep`: its record stays until its `Backward`."""

    island: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradients of what an island reads, from those of what it makes. Its record is gone afterwards."""

    island: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The result of a reduction from the parts of all islands and, along `axes`, of all ranks: `parts` are the boxes
    that they fold, in their order."""

    node: str
    axes: frozenset[str] = frozenset()
    parts: tuple[Box, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """The outputs are handed over; the caller brings their gradients."""


@dataclass(frozen=True, slots=True)
class Move:
    """Begin to copy a value to a store, or back to the device. A `Free` gives back the memory on the device and waits
    for the copy; what reads a value that comes back waits for it."""

    value: str
    store: str


@dataclass(frozen=True, slots=True)
class Strip:
    """A box of a value, and the rank that it comes from or goes to."""

    value: str
    box: Box
    rank: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Halos of values between ranks, with one message to each peer. `gradient`: of their gradients, which go back to
    the owner and are added there. All ranks make the same exchanges, perhaps with nothing to give or take."""

    values: tuple[str, ...]
    gives: tuple[Strip, ...] = ()
    takes: tuple[Strip, ...] = ()
    gradient: bool = False


@dataclass(frozen=True, slots=True)
class Sum:
    """Add up the gradient of a value over the ranks that differ along `axes`. `later`: others wait for it only at the
    end of the step. `first`: the first of these ranks has all of it, and tells the others."""

    value: str
    axes: frozenset[str]
    later: bool = False
    first: bool = False


ScheduleStep = Run | Backward | Finish | Turn | Free | Move | Exchange | Sum
