"""What each worker has, gets and does in a step, from the rects of all workers alone.

What a worker gets, in bytes:

- *halos*: what a filter reads (its dist_input) and others wrote; once, though backward reads it again;
- *gradients*: what others' filters add to gradients that this worker has;
- *sums*: logits, and gradients of gains, of which every worker has a part of the sum. Every worker adds up one piece of
  such an array (pieces cut by `cuts_of_count`), for which it gets that piece from all others, and then gets all other
  pieces, added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..region import Box, cuts_of_count
from .model import Array, RectGraph, RectRole
from .totals import ELEMENT_BYTES, flops_of

# Where a worker makes a part of a sum over all workers, and all of it is wanted: kind and port.
_SUMS = {("linear", "output"), ("scalar_affine_grad", "a.delta")}


@dataclass(frozen=True)
class Share:
    """One worker's part of a step."""

    name: str
    owned_bytes: Mapping[RectRole, int]
    held_bytes: int  # with the halos
    halo_bytes: int  # received, as the next two
    gradient_bytes: int
    sum_bytes: int
    flops: int

    @property
    def owned_total(self) -> int:
        return sum(self.owned_bytes.values())

    @property
    def received_bytes(self) -> int:
        return self.halo_bytes + self.gradient_bytes + self.sum_bytes


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The largest share over the mean; 1 where all are alike, or there is nothing to share."""

    owned: float
    received: float
    flops: float


def shares(graphs: Sequence[RectGraph]) -> tuple[Share, ...]:
    """What each worker has, gets and does. The graphs are those of one step, one per worker."""
    if not graphs:
        raise InputError("a step without workers", where="shares")
    for graph in graphs:
        same = [(a.name, a.dim) for a in graph.arrays] == [(a.name, a.dim) for a in graphs[0].arrays]
        if not same or list(graph.operator) != list(graphs[0].operator):
            raise InputError("workers of different steps", where=f"{graphs[0].name}, {graph.name}")
    return tuple(_share(graphs, at) for at in range(len(graphs)))


def imbalance(parts: Sequence[Share]) -> Imbalance:
    return Imbalance(
        _spread([p.owned_total for p in parts]), _spread([p.received_bytes for p in parts]),
        _spread([p.flops for p in parts]),
    )  # fmt: skip


def _spread(numbers: list[int]) -> float:
    return max(numbers) * len(numbers) / sum(numbers) if any(numbers) else 1.0


def _share(graphs: Sequence[RectGraph], at: int) -> Share:
    graph = graphs[at]
    owned = Counter[RectRole]()
    held = 0
    for array in graph.arrays:
        owned[array.role] += ELEMENT_BYTES * graph.owned(array).volume
        held += ELEMENT_BYTES * _hull(array).volume
    return Share(
        name=graph.name,
        owned_bytes=dict(owned),
        held_bytes=held,
        halo_bytes=sum(size for _, _, size in _halos(graphs, at)),
        gradient_bytes=sum(size for _, _, size in _gradients(graphs, at)),
        sum_bytes=sum(_sums(graphs, at)),
        flops=sum(flops_of(graph, op) for op in graph.operators),
    )


def _hull(array: Array) -> Box:
    return array.read_rect if array.write_rect is None else array.read_rect.hull(array.write_rect)


def _halos(graphs: Sequence[RectGraph], at: int) -> Iterator[tuple[str, int, int]]:
    """Array, from whom, bytes."""
    for op in graphs[at].operators:
        if op.kind == "locally_connected":
            name, need = op.inputs["input"], op.dists["dist_input"]
            for other, graph in enumerate(graphs):
                wrote = graph.array[name].write_rect
                if other != at and wrote is not None and (size := need.meet(wrote).volume):
                    yield name, other, ELEMENT_BYTES * size


def _gradients(graphs: Sequence[RectGraph], at: int) -> Iterator[tuple[str, int, int]]:
    for op in graphs[at].operators:
        if op.kind == "locally_connected_grad" and "input.delta" in op.outputs:
            name = op.outputs["input.delta"]
            mine = graphs[at].array[name].read_rect
            for other, graph in enumerate(graphs):
                added = graph.operator[op.name].dists["dist_input"]
                if other != at and (size := added.meet(mine).volume):
                    yield name, other, ELEMENT_BYTES * size


def _sums(graphs: Sequence[RectGraph], at: int) -> Iterator[int]:
    workers = len(graphs)
    for op in graphs[at].operators:
        for port, name in op.outputs.items():
            if (op.kind, port) in _SUMS:
                size = Box.full(graphs[at].array[name].dim).volume
                cuts = cuts_of_count(size, workers)
                piece = cuts[at + 1] - cuts[at]
                yield ELEMENT_BYTES * ((workers - 1) * piece + size - piece)
