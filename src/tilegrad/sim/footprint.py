"""What one run of an island, and its backward, do to memory: all that a predictor needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..ir import Graph
from ..schedule import Compute, Island
from ..schedule.whole import roots_of

FRESH = ""  # a gradient in memory of its own


class RunKind(NamedTuple):
    """How an island is run, as far as its bytes depend on it: made and looked up at every step of a walk."""

    keep: bool  # is its record kept?
    again: bool  # behind the turn: folds and halos are made already
    last: bool  # for the last time: the halos it was given are its own
    absent: frozenset[str] = frozenset()  # what it stores that is not there
    summed: frozenset[str] = frozenset()  # what it reads that has a gradient when its backward runs
    lent: frozenset[str] = frozenset()  # of those, in memory that somebody else reads: sums are made elsewhere


@dataclass(frozen=True)
class Footprint:
    """Bytes on the device."""

    run_peak: int  # beyond what was there before, while it runs
    values: Mapping[str, int] = field(default_factory=dict)  # made whole by this very run, by the value whose memory
    lies_in: Mapping[str, str] = field(default_factory=dict)  # of what is stored: in another value's memory, whose
    saved: int = 0  # by the record, besides values
    holds: frozenset[str] = frozenset()  # values whose memory the record holds too
    stays: int = 0  # to the end of the step
    back_peak: int = 0  # beyond what was there when its backward began
    gradients: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # by value: whose memory, or FRESH; bytes


class Footprints(Protocol):
    """A table of them. `there`: bytes on the device before it runs, besides what is there in any case: what is near a
    peak may be worth a closer look."""

    def of(self, island: Island, how: RunKind, there: int = 0) -> Footprint: ...

    def backward(self, island: Island, how: RunKind, there: int = 0) -> Footprint: ...


class GraphFootprints:
    """Of the nodes of a training graph, which says itself what each of them makes."""

    def __init__(self, graph: Graph):
        self.roots = roots_of(graph)

    def backward(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        return self.of(island, how)

    def of(self, island: Island, how: RunKind, there: int = 0) -> Footprint:
        (node,) = island.nodes
        made = {name: self.roots.bytes[name] for name in self.roots.writes(node)}
        return Footprint(sum(made.values()), made)


def largest_node(graph: Graph, island: Island) -> str:
    """The node of an island with the largest output."""
    sizes = {step.node: step.out.volume for step in island.steps if isinstance(step, Compute)}
    return graph.node[max(sizes, key=sizes.__getitem__)].describe() if sizes else ""
