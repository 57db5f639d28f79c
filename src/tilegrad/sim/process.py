"""What a process holds on the CPU besides tensors: memory inside convolutions, their code, and Python's objects.

oneDNN computes in layouts of its own. Tensors that are not channels_last are copied there and back inside of a kernel,
with channels in eights; the backward pass holds both sides and one of them again. Code is made for each distinct shape,
and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..ops import find
from ..schedule import Compute, Schedule

BLOCK = 8  # channels
KINDS = 6  # of primitives for a convolution: forward, two of backward, and copies
CODE = 64 << 10  # bytes of one, as measured: 36 to 60 KiB
OBJECTS = 4 << 20  # of Python and autograd
CACHED = 1024  # primitives, where ONEDNN_PRIMITIVE_CACHE_CAPACITY does not say otherwise
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def inside(function: Any, args: Sequence[Any], result: Any) -> int:
    """Bytes that a convolution takes for itself, at most."""
    if function is torch.ops.aten.convolution.default:
        image, out = args[0], result
    elif function is torch.ops.aten.convolution_backward.default:
        out, image = args[:2]
    else:
        return 0
    layout = LAYOUTS.get(image.dim())
    if layout is not None and image.is_contiguous(memory_format=layout) and not image.is_contiguous():
        return 0
    sizes = _blocked(image), _blocked(out)
    return sum(sizes) + (max(sizes) if out is args[0] else 0)


def _blocked(tensor: Tensor) -> int:
    channels = -(-tensor.shape[1] // BLOCK) * BLOCK
    return channels * prod(tensor.shape[:1] + tensor.shape[2:]) * tensor.element_size()


def code_bytes(schedule: Schedule) -> int:
    """Of all convolutions, and what Python holds."""
    shapes = {
        (step.node, step.out.shape)
        for island in schedule.islands.values()
        for step in island.steps
        if isinstance(step, Compute) and find(schedule.graph.node[step.node]).dense
    }
    return min(CACHED, KINDS * len(shapes)) * CODE + OBJECTS
