"""Steps of an island with what is the same at every run of them looked up once: Python's part in a tile is mostly
arithmetic on boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kernels import Fused
from ..ops import Call, Op
from ..region import Box
from ..schedule import Compute, Halo, Join

if TYPE_CHECKING:
    from .executor import Executor

Slices = tuple[slice, ...]
Wanted = tuple[tuple[str, Box], ...]  # values, and the boxes of them that a node reads


@dataclass(frozen=True)
class TileNode:
    """A node that makes a box."""

    step: Compute
    call: Call
    op: Op
    reads: Wanted
    out: str


@dataclass(frozen=True)
class TileChain:
    """Several nodes that make a box at once, by a kernel. `reads`: of each, but for what the one before makes."""

    fused: Fused
    calls: tuple[Call, ...]
    reads: tuple[Wanted, ...]
    out: str

    @property
    def first(self) -> Compute:
        return self.fused.steps[0]


@dataclass(frozen=True)
class TileJoin:
    """A seam, and where in what is held the tile's own part lies, and the halos that it gets and gives."""

    step: Join
    own: Slices
    receives: tuple[tuple[Halo, Slices], ...]
    gives: tuple[tuple[Halo, Slices], ...]

    @staticmethod
    def of(step: Join) -> TileJoin:
        def place(box: Box) -> Slices:
            return box.within(step.held).slices

        receives, gives = (tuple((h, place(h.box)) for h in halos) for halos in (step.receives, step.gives))
        return TileJoin(step, place(step.own), receives, gives)


Prepared = TileNode | TileChain | TileJoin


def prepared(executor: Executor, step: Compute | Fused | Join) -> Prepared:
    match step:
        case Join():
            return TileJoin.of(step)
        case Fused(steps=steps):
            calls = tuple(executor.calls[each.node] for each in steps)
            reads = [_clipped(executor, each) for each in steps]
            later = (wanted[1:] for wanted in reads[1:])
            return TileChain(step, calls, (reads[0], *later), calls[-1].node.outputs[0])
        case Compute(node=name):
            call = executor.calls[name]
            return TileNode(step, call, executor.ops[name], _clipped(executor, step), call.node.outputs[0])


def _clipped(executor: Executor, step: Compute) -> Wanted:
    names, shape = executor.graph.node[step.node].reads, executor.graph.shape
    return tuple((name, raw.clip(shape(name))) for name, raw in zip(names, step.reads, strict=True))
