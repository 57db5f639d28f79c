"""A profile: operators with their times, and blocks of memory with their lives.

Importers, our recorder and the simulator all give this; analysis, reports and exports read nothing else.

- An *operator* is one run of one operator. Where it launched several kernels, each further kernel is an operator of its
  own that has no host span (ids "7", "7.1", "7.2"), so that sums over host and device count everything once.
- A *block* is memory under one address from one *tick* to another. Ticks are whole numbers: moments at which memory
  changes, or operators; `clock` says when, in seconds, each begins. A block lives in the ticks `[start, stop)`.
- Seconds count from any zero. Host and device may have different ones (`one_clock` false).

Rules, checked by `check_profile`:

    Rule R1  operators have different ids; every time is finite; no span ends before it starts
    Rule R2  blocks have 0 or more bytes, less than 2**63, at addresses from 0 up, and 0 <= start <= stop <= ticks
    Rule R3  the clock does not run backward
    Rule R4  a block's maker is an operator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import isfinite
from typing import Any

from ..errors import FormatError
from ..ir import Graph, Phase

Shape = tuple[int, ...]
MOST_BYTES = 2**63 - 1


class BlockKind(StrEnum):
    """What memory is used for."""

    WEIGHT = "weight"
    INPUT = "input"  # comes from outside
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    WORKSPACE = "workspace"  # scratch of one operator
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Span:
    """From start to end, in seconds; `kern_s`: when the kernel itself began, after waiting."""

    start_s: float
    end_s: float
    kern_s: float | None = None

    @property
    def total_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def kernel_s(self) -> float:
        return self.end_s - (self.start_s if self.kern_s is None else self.kern_s)

    @property
    def wait_s(self) -> float:
        return 0.0 if self.kern_s is None else self.kern_s - self.start_s


@dataclass(frozen=True, slots=True)
class Operator:
    id: str  # as the source calls it
    name: str
    type: str  # "ConvolutionForward", "aten.convolution"
    host: Span | None = None
    thread: str = ""  # of the host
    device: Span | None = None
    stream: str = ""  # of the device
    flops: int | None = None  # multiply and add are two
    bytes: int | None = None  # read and written
    in_shapes: tuple[Shape, ...] = ()
    out_shapes: tuple[Shape, ...] = ()
    reads: tuple[str, ...] = ()  # names of values, where the source tells
    writes: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""  # path in the module tree
    phase: Phase | None = None
    kernel: str = ""  # name of the kernel, where the source tells
    source: str = ""  # line of the user's code: "model.py:41"

    @property
    def span(self) -> Span | None:
        """Where the work was done: on the device, or on the host where there is none."""
        return self.device or self.host


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    bytes: int
    start: int  # first tick
    stop: int  # the tick after the last
    kind: BlockKind = BlockKind.UNKNOWN
    address: int | None = None
    device: str = ""
    maker: int | None = None  # place in `operators`
    owned: bool = True  # by the allocator that is profiled; what is handed in from outside is not


@dataclass(frozen=True)
class Profile:
    name: str
    format: str  # "megengine profile", "torch trace", "cuda memory snapshot", "recorded", "simulated"
    operators: tuple[Operator, ...]  # in the order in which they were issued
    blocks: tuple[Block, ...] = ()
    clock: tuple[float, ...] = ()  # the second at which each tick begins
    idle: tuple[Operator, ...] = ()  # known, but never run
    graph: Graph | None = None
    one_clock: bool = True  # host and device count from the same zero
    facts: Mapping[str, Any] = field(default_factory=dict)  # what only this format tells; JSON
    notes: tuple[str, ...] = ()  # oddities a reader should know of

    @property
    def ticks(self) -> int:
        return len(self.clock)

    @property
    def predicted(self) -> bool:
        """Did it never run? Its times are not known as well as measured ones."""
        return self.format == "simulated"

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Those with memory, the one with most bytes first."""
        total: dict[str, int] = {}
        for block in self.blocks:
            total[block.device] = total.get(block.device, 0) + block.bytes
        return tuple(sorted(total, key=lambda d: (-total[d], d)))


def check_profile(profile: Profile) -> None:
    """Raise FormatError naming what breaks a rule."""
    ids: set[str] = set()
    for op in (*profile.operators, *profile.idle):
        if op.id in ids:
            raise FormatError(f"rule R1: two operators have the id '{op.id[:80]}'", where=profile.name)
        ids.add(op.id)
        for what, span in (("host", op.host), ("device", op.device)):
            if span is not None:
                _check_span(span, f"{profile.name}: operator '{op.id[:80]}', {what}")
    _check_clock(profile)
    for block in profile.blocks:
        _check_block(block, profile)


def _check_span(span: Span, where: str) -> None:
    moments = (span.start_s, span.end_s) if span.kern_s is None else (span.start_s, span.kern_s, span.end_s)
    if not all(map(isfinite, moments)):
        raise FormatError("rule R1: a time that is not finite", where=where)
    if span.end_s < span.start_s or (span.kern_s is not None and not span.start_s <= span.kern_s <= span.end_s):
        raise FormatError(f"rule R1: times that run backward: {moments}", where=where)


def _check_clock(profile: Profile) -> None:
    before = float("-inf")
    for at, second in enumerate(profile.clock):
        if not isfinite(second) or second < before:
            raise FormatError(f"rule R3: {second} s at tick {at} after {before} s", where=profile.name)
        before = second


def _check_block(block: Block, profile: Profile) -> None:
    where = f"{profile.name}: memory '{block.name[:80]}'"
    if not 0 <= block.bytes <= MOST_BYTES or (block.address is not None and not 0 <= block.address <= MOST_BYTES):
        raise FormatError(f"rule R2: {block.bytes} bytes at address {block.address}", where=where)
    if not 0 <= block.start <= block.stop <= profile.ticks:
        what = f"rule R2: alive in the ticks [{block.start}, {block.stop}) of {profile.ticks}"
        raise FormatError(what, where=where)
    if block.maker is not None and not 0 <= block.maker < len(profile.operators):
        raise FormatError(f"rule R4: made by operator {block.maker} of {len(profile.operators)}", where=where)
