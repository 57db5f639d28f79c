"""What a report shows, whatever it is about: figures, tables, and profiles to draw. `html` makes a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..profile import Profile
from ..units import in_decimal

# predicted: seconds that were; extra: of these, beyond plain's, as a share; rate: a plain number, its unit in the head
Unit = Literal[
    "text", "count", "bytes", "seconds", "predicted", "share", "extra", "ratio", "predicted ratio", "rate"
]  # fmt: skip


class Fact(NamedTuple):
    """One figure of the header: "predicted peak", "1.20GiB", "24% of the budget"."""

    term: str
    value: str
    more: str = ""


class Column(NamedTuple):
    name: str
    unit: Unit = "text"


@dataclass(frozen=True)
class Table:
    """Rows of plain numbers and texts; the unit of a column says how to show them. None is shown as a dash."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str | int | float | bool | None]]
    marked: frozenset[int] = frozenset()  # rows to stress: the plan that was chosen
    caption: str = ""
    mark: str = ""  # what marked rows are: "chosen"


@dataclass(frozen=True)
class Drawn:
    """A profile to draw. The first of a page is drawn whole; of the others only the memory curve, beside it."""

    label: str  # "tiled", "plain"
    profile: Profile
    timed: bool = True  # false: the clock, and the spans with it, count steps and not seconds


class Point(NamedTuple):
    """A plan in the chart of time against memory."""

    bytes: int
    seconds: float
    text: str  # what it is
    chosen: str = ""  # for which budgets
    front: bool = False  # is it faster than all that need no more memory?


@dataclass(frozen=True)
class Scatter:
    """Time against memory. What is slower than `times` is drawn at the end of the axis."""

    caption: str
    points: Sequence[Point]  # least memory first
    budgets: Sequence[int]
    memory: tuple[int, int]  # the ends of the axes
    times: tuple[float, float]
    plain_s: float  # what times are held against


Sides = dict[str, list[int]]  # by axis: lo, hi of each tile along it


@dataclass(frozen=True)
class TiledValue:
    """The image, or what a node makes, cut into tiles. An axis that is missing is not cut."""

    name: str
    what: str  # "conv2d", and where it was written
    sizes: dict[str, int]  # by axis
    own: Sides  # what each tile makes; of the image: what it is the first to read
    held: Sides  # with what it was handed
    share: Sides  # what it alone answers for
    complete: Sides  # where its gradient is complete
    reads: Sequence[tuple[int, Sides]] = ()  # of which value what: past its ends, where that is padding


@dataclass(frozen=True)
class TileMap:
    """All tiles of a network: `values[0]` is the image."""

    mode: str
    tiled: tuple[str, ...]
    grid: tuple[int, ...]
    drawn: tuple[str, ...]  # at most two axes: down, across
    values: Sequence[TiledValue]


class Bar(NamedTuple):
    """One figure before and after; None: unknown."""

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class Bars:
    """Two bars for each figure, all of one unit."""

    title: str
    unit: Unit
    rows: Sequence[Bar]
    caption: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    profiles: tuple[Drawn, ...] = field(default=())
    budget_bytes: int | None = None  # a line across the memory curve
    scatter: Scatter | None = None
    tiles: TileMap | None = None
    bars: tuple[Bars, ...] = ()
    decimal: bool = field(default_factory=in_decimal)  # its bytes in powers of 1000, as in the texts made with it
