"""A program for `torchrun --max-restarts`: a rank makes a mistake once, and all go on from the state."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tilegrad
from tilegrad.distributed import close, load_state, part, save_state

STEPS = 4


class Counted(nn.Module):
    """Knows how many steps it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.done = nn.Conv2d(1, 2, 3, padding=1).double(), nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def image(step: int) -> torch.Tensor:
    return torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def made(net: Counted) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def plain() -> list[float]:
    torch.manual_seed(0)
    net, losses = Counted(), list[float]()
    optimizer = made(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(net(image(step)), torch.ones(2, 2, 8, 8, dtype=torch.float64))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(state: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("h",))
    torch.manual_seed(0)
    net = Counted()
    run, optimizer = tilegrad.distribute(net, mesh, timeout=30.0), made(net)
    if state.exists():
        load_state(run, state, optimizer)
    while int(net.done) < STEPS:
        step = int(net.done)
        if step == 2 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a mistake of one rank alone")
        optimizer.zero_grad()
        loss = F.mse_loss(run(part(image(step), mesh)), part(torch.ones(2, 2, 8, 8, dtype=torch.float64), mesh))
        loss.backward()
        optimizer.step()
        net.done += 1
        if dist.get_rank() == 0:  # before the state is saved: then the other rank may go wrong, and all are ended
            sys.stdout.write(f"loss {step} {loss.item()!r}\n")
            sys.stdout.flush()
        save_state(run, state, optimizer)
    close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
