"""What a process holds on the CPU besides tensors: memory inside convolutions, their code, and Python's objects.

oneDNN computes in layouts of its own. Tensors that are not channels_last are copied there and back inside of a kernel,
with channels in eights; the backward pass holds both sides and one of them again. Code is made for each distinct shape,
and kept.
"""

from __future__ import annotations

from math import prod

from ..ops import find
from ..schedule import Compute, Schedule

BLOCK = 8  # channels
KINDS = 6  # of primitives for a convolution: forward, two of backward, and copies
CODE = 64 << 10  # bytes of one, as measured: 36 to 60 KiB
OBJECTS = 4 << 20  # of Python and autograd
CACHED = 1024  # primitives, where ONEDNN_PRIMITIVE_CACHE_CAPACITY does not say otherwise


def beside_tensors(schedule: Schedule) -> int:
    """Bytes at most, whatever the layout of the tensors is."""
    graph, most, shapes = schedule.graph, 0, set[tuple[str, tuple[int, ...], tuple[int, ...]]]()
    for island in schedule.islands.values():
        for step in island.steps:
            if isinstance(step, Compute) and find(node := graph.node[step.node]).dense:
                shape = step.reads[0].clip(graph.shape(node.reads[0])).shape
                shapes.add((node.name, shape, step.out.shape))
                size = [_blocked(s) * graph.type(node.outputs[0]).item_bytes for s in (shape, step.out.shape)]
                most = max(most, sum(size) + max(size))
    return most + min(CACHED, KINDS * len(shapes)) * CODE + OBJECTS


def _blocked(shape: tuple[int, ...]) -> int:
    """Elements, channels in eights."""
    return prod((-(-size // BLOCK) * BLOCK if axis == 1 else size) for axis, size in enumerate(shape))
