"""Sizes of tiles that are weighed: few tiles to many, in multiples of a network's total stride."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...bounds import label_axes, sort_nodes
from ...bounds.roles import NodePart
from ...ir import Graph
from .cut import TileSizes

MOST_TILES = 1024  # in a walk: more of them cost more time than the memory they save is worth
FEW_TILES = 64  # in a walk: what lies between phases is chosen for so many at most
GROWTH = 1.5  # from one number of tiles that is weighed to the next


@dataclass(frozen=True)
class Family:
    """Sizes of tiles along the same axes, one number of tiles after another."""

    few: Sequence[TileSizes]
    many: Sequence[TileSizes]
    whole: TileSizes  # a single tile

    @property
    def every(self) -> list[TileSizes]:
        return [*self.few, *self.many]


def families(graph: Graph, allowed: Sequence[str], samples: bool) -> Iterator[Family]:
    """All that is weighed: samples, which have no halos; the longest axis; all axes."""
    image = axis_lengths(graph, [a for a in allowed if a != "n"])
    batch = axis_lengths(graph, ("n",)).get("n", 1) if samples or "n" in allowed else 1
    fixed = {"n": 1} if batch > 1 else {}
    found: list[tuple[dict[str, int], tuple[str, ...]]] = [({}, ("n",))] if batch > 1 else []
    longest = sorted(image, key=lambda axis: -image[axis])
    found += [(fixed, tuple(a for a in image if a in longest[:k])) for k in dict.fromkeys((1, len(image))) if image]
    for known, axes in found:
        lengths, unit = axis_lengths(graph, axes), total_stride(graph, axes)
        most = min(max(lengths.values()) // unit, round(MOST_TILES ** (1 / len(axes))))
        limit = round(FEW_TILES ** (1 / len(axes)))
        counts = {max(1, round(GROWTH**k)) for k in range(40)} | {limit, most}
        counts = {n for n in counts if n <= max(1, most) and (n > 1 or known)}
        size = {-(-max(lengths.values()) // (count * unit)) * unit: count for count in sorted(counts, reverse=True)}
        sizes = {
            count: side for side, count in reversed(size.items())
        }  # each once, as the fewest tiles it is asked for
        made = {n: {**known, **{axis: min(a, size) for axis, a in lengths.items()}} for n, size in sizes.items()}
        few, many = [t for n, t in made.items() if n <= limit], [t for n, t in made.items() if n > limit]
        yield Family(few, many, {**known, **lengths})


def axis_lengths(graph: Graph, axes: Sequence[str]) -> dict[str, int]:
    dims = label_axes(graph).dims
    found = {a: max((graph.shape(v)[d[a]] for v, d in dims.items() if a in d), default=0) for a in axes}
    return {a: n for a, n in found.items() if n}


def total_stride(graph: Graph, axes: Sequence[str]) -> int:
    """How many input elements the coarsest value steps over: cuts at its multiples give tiles of one shape."""
    labels = label_axes(graph)
    roles = sort_nodes(graph, labels, axes)
    local = [n.outputs[0] for n in graph.nodes if roles.part[n.name] is NodePart.LOCAL]
    lengths = axis_lengths(graph, axes)
    ratios = [lengths[a] / graph.shape(v)[labels.dims[v][a]] for v in local for a in axes]
    return max(1, round(max(ratios, default=1)))
