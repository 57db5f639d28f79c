"""Train on an image that lies on many ranks; stop, go on with another number of ranks; see what a dead rank does.

    torchrun --nproc-per-node 2 examples/train_distributed.py --steps 3 --state /tmp/state
    torchrun --nproc-per-node 4 examples/train_distributed.py --steps 3 --state /tmp/state  # goes on where 2 stopped
    torchrun --nproc-per-node 3 examples/train_distributed.py --hang 1                      # all stop, and name rank 1

The losses do not depend on the number of ranks. `--net local` trains the network of locally connected layers, whose
weights are owned by box: each rank has its part of them and no other.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import tilegrad
from tilegrad.distributed import close, load_state, part, save_state
from tilegrad.models import resnet18
from tilegrad.models.local_net import LocalNet
from tilegrad.units import format_bytes


def main() -> None:
    args = parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", timeout=timedelta(seconds=args.timeout))
    torch.set_num_threads(1)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = 2 if ranks % 2 == 0 and ranks > 2 else ranks
    mesh = init_device_mesh(args.device, (rows, ranks // rows), mesh_dim_names=("h", "w"))
    net, size = make_net(args.net, args.device)
    tiled = tilegrad.distribute(net, mesh, timeout=args.timeout, budget=args.budget)
    torch.manual_seed(1)  # every rank cuts its box from the same image; a memory-mapped file would do as well
    image = torch.randn(4, 1 if args.net == "local" else 3, size, size)
    labels = torch.randint(0, 5, (4,)).to(args.device)
    x = part(image, mesh)
    plan = tiled.plan_for(x, labels)
    optimizer = torch.optim.SGD(tiled.parameters(), lr=0.05, momentum=0.9)
    state = Path(args.state) if args.state else None
    if state is not None and state.exists():
        load_state(tiled, state, optimizer)
    if rank == 0:
        show(plan.to_json())
    for step in range(args.steps):
        misbehave(args, rank, step)
        optimizer.zero_grad()
        loss = tiled(x, labels)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"loss {loss.item():.12f}", flush=True)
    if state is not None:
        save_state(tiled, state, optimizer)
    close()
    dist.barrier()
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on many ranks.")
    parser.add_argument("--net", choices=("resnet", "local"), default="resnet")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--state", help="a folder to go on from, and to leave the state in")
    parser.add_argument("--budget", help="memory of each rank, such as 200MiB")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds to wait for another rank")
    parser.add_argument("--die", type=int, help="a rank that dies in its second step")
    parser.add_argument("--hang", type=int, help="a rank that hangs in its second step")
    return parser.parse_args()


class Classifier(nn.Module):
    """A network with its loss, so that no rank needs the logits of another's image."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(image), labels)


def make_net(name: str, device: str) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    if name == "local":  # made without data: each rank draws its own box
        return LocalNet(image=21, layers=((5, 8), (3, 8)), classes=5, device="meta"), 21
    return Classifier(resnet18(classes=5, width=0.25)).to(device), 128


def show(plan: dict[str, object]) -> None:
    print(f"mesh {plan['mesh']}, halos move {plan['exchanges']} times a pass, imbalance {plan['imbalance']:.3f}")
    for worker in plan["ranks"]:  # type: ignore[attr-defined]
        sizes = {key: format_bytes(worker[f"{key}_bytes"]) for key in ("owned", "weight", "sent", "received")}
        print(f"rank {worker['rank']}: {sizes}")


def misbehave(args: argparse.Namespace, rank: int, step: int) -> None:
    if step == 1 and rank == args.die:
        os._exit(1)
    if step == 1 and rank == args.hang:
        time.sleep(10 * args.timeout)


if __name__ == "__main__":
    main()
