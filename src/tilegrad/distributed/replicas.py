"""Ranks that have the same box of other images: axes of a mesh that are none of the image's ("dp").

They are left to `DistributedDataParallel` or to `fully_shard`, or do here what that does: the first one's parameters
and buffers are everybody's, and gradients are averaged or added up. A batch norm has the statistics of its own images
(an axis called "batch" has those of all).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..bounds.mesh import NAMES
from ..errors import InputError
from .cut_weights import local_of

REPLICAS = ("leave", "mean", "sum")


class Replicas:
    """Along each of some axes of a mesh."""

    def __init__(self, mesh: DeviceMesh, names: Sequence[str], how: str):
        self.groups, self.how = [mesh.get_group(name) for name in names], how

    def spread(self, tensors: Collection[Tensor]) -> None:
        """The first one's are everybody's."""
        with torch.no_grad():
            for group in self.groups:
                for tensor in map(local_of, tensors):
                    sent = tensor.detach().contiguous()
                    dist.broadcast(sent, dist.get_global_rank(group, 0), group)
                    tensor.copy_(sent)

    def reduce(self, gradients: Sequence[Tensor]) -> None:
        """Average or add up, in place."""
        for alike in _by_type(gradients):
            flat = torch.cat([grad.reshape(-1) for grad in alike])
            for group in self.groups:
                dist.all_reduce(flat, group=group)
                if self.how == "mean":
                    flat /= dist.get_world_size(group)
            for grad, found in zip(alike, torch.split(flat, [grad.numel() for grad in alike]), strict=True):
                grad.copy_(found.view_as(grad))


def _by_type(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        yield [t for t in tensors if t.dtype == dtype]


def split_mesh(mesh: Any, replicas: str | None) -> tuple[Any, Replicas | None]:
    """The part of a mesh that cuts images, and the rest of it."""
    if replicas is not None and replicas not in REPLICAS:
        raise InputError(f"replicas cannot be told to '{replicas}'", hint=f"one of {', '.join(REPLICAS)}")
    names = tuple(mesh.mesh_dim_names or ()) if isinstance(mesh, DeviceMesh) else ()
    space, others = tuple(n for n in names if n in NAMES), tuple(n for n in names if n not in NAMES)
    if not others or not space:
        return mesh, None
    spelled = f"mesh[{', '.join(map(repr_double, space))}]"
    if replicas is None:
        what = f"the mesh has an axis '{others[0]}', which is none of the image's (batch, d, h and w)"
        hint = f'replicas="mean" averages gradients over it; {spelled} leaves it to DistributedDataParallel'
        raise InputError(what, hint=hint)
    return mesh[space], None if replicas == "leave" else Replicas(mesh, others, replicas)


def repr_double(name: str) -> str:
    return f'"{name}"'


def buffers_of(module: nn.Module) -> list[Tensor]:
    return [buffer for buffer in module.buffers() if not buffer.is_meta]
