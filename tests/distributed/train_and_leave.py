"""A program as users write it: train on a mesh, and end. Run with `torchrun`'s environment; argument: how it ends."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tilegrad
from tilegrad.distributed import close, part


def main(ending: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("h",))
    tiled = tilegrad.tile(nn.Conv2d(1, 1, 3, padding=1), mesh=mesh, timeout=30.0)
    for _ in range(2):
        tiled(part(torch.ones(1, 1, 8, 8), mesh)).sum().backward()
    if ending == "in order":
        close()
        dist.barrier()
        dist.destroy_process_group()


main(sys.argv[1])
