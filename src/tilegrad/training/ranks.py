"""A run on a mesh of ranks: each reads its own box of every image, the first writes. Alone, nothing of this happens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..errors import InputError
from ..modules.tiled import tile


class TrainingRanks:
    """`sizes`: ranks along each axis, or None for one process."""

    def __init__(self, sizes: Mapping[str, int] | None, device: str):
        self.mesh: DeviceMesh | None = None
        self._began = False
        if sizes is None:
            return
        wanted, there = prod(sizes.values()), int(os.environ.get("WORLD_SIZE", "1"))
        if wanted != there:
            hint = f"torchrun --nproc-per-node {wanted} -m tilegrad train …"
            raise InputError(f"a mesh of {wanted} ranks, and {there} here", where="key 'mesh'", hint=hint)
        kind = torch.device(device).type
        if kind == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")
            self._began = True
        self.mesh = init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    @property
    def many(self) -> bool:
        return self.mesh is not None

    @property
    def first(self) -> bool:
        return self.mesh is None or dist.get_rank() == 0

    def tiled(self, module: nn.Module, budget: str | int | None) -> nn.Module | None:
        return None if self.mesh is None else tile(module, mesh=self.mesh, budget=budget)

    def parts(self, *arrays: Any) -> tuple[Any, ...]:
        """This rank's own boxes."""
        if self.mesh is None:
            return arrays
        from ..distributed import part

        return tuple(part(array, self.mesh) for array in arrays)

    def wait(self) -> None:
        if self.mesh is not None:
            dist.barrier()

    def close(self) -> None:
        if self.mesh is not None:
            from ..distributed import close

            close()
            if self._began:
                dist.destroy_process_group()
