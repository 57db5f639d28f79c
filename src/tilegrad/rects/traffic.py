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
from ..ir import Graph, Value
from ..region import Box, cuts_of_count
from .step import arrays, dists_of, held_of, inputs_of, outputs_of, owned, role_of
from .totals import flops_of

# Where a worker makes a part of a sum over all workers, and all of it is wanted: kind and port.
_SUMS = {("linear", "output"), ("scalar_affine_grad", "a.delta")}


@dataclass(frozen=True)
class Share:
    """One worker's part of a step."""

    name: str
    owned_bytes_by_role: Mapping[str, int]
    held_bytes: int  # with the halos
    halo_bytes: int  # received, as the next two
    gradient_bytes: int
    sum_bytes: int
    flops: int

    @property
    def owned_bytes(self) -> int:
        return sum(self.owned_bytes_by_role.values())

    @property
    def received_bytes(self) -> int:
        return self.halo_bytes + self.gradient_bytes + self.sum_bytes


def shares(graphs: Sequence[Graph]) -> tuple[Share, ...]:
    """What each worker has, gets and does. The graphs are those of one step, one per worker."""
    if not graphs:
        raise InputError("a step without workers", where="shares")
    for graph in graphs:
        same = [(v.name, v.type) for v in graph.values] == [(v.name, v.type) for v in graphs[0].values]
        if not same or list(graph.node) != list(graphs[0].node):
            raise InputError("workers of different steps", where=f"{graphs[0].name}, {graph.name}")
    return tuple(_share(graphs, at) for at in range(len(graphs)))


def imbalance(parts: Sequence[Share]) -> dict[str, float]:
    """The largest share over the mean; 1 where all are alike, or there is nothing to share."""
    each = {"owned": [p.owned_bytes for p in parts], "received": [p.received_bytes for p in parts]}
    each["flops"] = [p.flops for p in parts]
    return {what: max(sizes) * len(sizes) / sum(sizes) if any(sizes) else 1.0 for what, sizes in each.items()}


def _share(graphs: Sequence[Graph], at: int) -> Share:
    graph = graphs[at]
    have = Counter[str]()
    held = 0
    for array in arrays(graph):
        boxes = held_of(array)
        have[role_of(graph, array)] += _bytes(array, owned(graph, array))
        held += _bytes(array, boxes.read if boxes.write is None else boxes.read.hull(boxes.write))
    return Share(
        name=graph.name,
        owned_bytes_by_role=dict(have),
        held_bytes=held,
        halo_bytes=sum(_halos(graphs, at)),
        gradient_bytes=sum(_gradients(graphs, at)),
        sum_bytes=sum(_sums(graphs, at)),
        flops=sum(flops_of(graph, node) for node in graph.nodes),
    )


def _bytes(array: Value, box: Box) -> int:
    return array.type.item_bytes * box.volume


def _halos(graphs: Sequence[Graph], at: int) -> Iterator[int]:
    for node in graphs[at].nodes:
        if node.op == "locally_connected":
            array = inputs_of(graphs[at], node)["input"]
            need = dists_of(node).get("dist_input", held_of(array).read)
            for other in (*graphs[:at], *graphs[at + 1 :]):
                held = held_of(other.value[array.name])
                yield _bytes(array, need.meet(held.write or held.read))


def _gradients(graphs: Sequence[Graph], at: int) -> Iterator[int]:
    for node in graphs[at].nodes:
        array = outputs_of(graphs[at], node).get("input.delta")
        if node.op == "locally_connected_grad" and array is not None:
            for other in (*graphs[:at], *graphs[at + 1 :]):
                reads = inputs_of(other, other.node[node.name])["input"]
                added = dists_of(other.node[node.name]).get("dist_input", held_of(reads).read)
                yield _bytes(array, added.meet(held_of(array).read))


def _sums(graphs: Sequence[Graph], at: int) -> Iterator[int]:
    workers = len(graphs)
    for node in graphs[at].nodes:
        for port, array in outputs_of(graphs[at], node).items():
            if (node.op, port) in _SUMS:
                cuts = cuts_of_count(array.type.size, workers)
                piece = cuts[at + 1] - cuts[at]
                yield array.type.item_bytes * ((workers - 1) * piece + array.type.size - piece)
