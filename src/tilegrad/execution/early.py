"""Memory for the gradients of weights, taken before anything else of a step.

They come one after another in the middle of backward, and stay when all around them has gone: what an allocator could
hand out in one piece lies in many then, with a gradient between any two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ..ir import Graph, Kind
from ..ops.channels import LOW
from .executor import Executor

LARGE = 1 << 20  # bytes: an allocator of a GPU keeps smaller ones apart
SINGLE = 4  # bytes of an element: in half precision sums are made in single


def early_bytes(graph: Graph, graded: Collection[str]) -> int:
    """At most: what is not summed in single precision takes half."""
    types = (graph.type(name) for name in graded if graph.value[name].kind is Kind.PARAMETER)
    sizes = (type_.size * max(type_.item_bytes, SINGLE) for type_ in types)
    return sum(size for size in sizes if size > LARGE)


def take_early(
    executor: Executor, tensors: Mapping[str, Any], needs: Collection[str], device: torch.device
) -> dict[str, Tensor]:
    """By weight, for its gradient, if the schedule has room for it. `needs`: what needs one."""
    found: dict[str, Tensor] = {}
    weights = executor.graph.of_kind(Kind.PARAMETER) if executor.schedule.early else ()
    for name in (value.name for value in weights if value.name in needs):
        tensor = tensors[name]
        dtype = torch.float32 if tensor.dtype in LOW and executor.is_summed(name) else tensor.dtype
        if tensor.device == device and tensor.numel() * dtype.itemsize > LARGE:
            found[name] = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    return found
