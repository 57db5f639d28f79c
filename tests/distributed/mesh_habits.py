"""Meshes as people make them: axes of data beside those of the image, left to others or summed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from habits import Segmenter, data
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tilegrad
from tilegrad.distributed import part
from tilegrad.distributed.sharded import whole_of

WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {}  # the module that runs, from the network and the mesh


def way(function: Callable[[nn.Module, Any], Any]) -> Callable[[nn.Module, Any], Any]:
    WAYS[function.__name__] = function
    return function


@way
def summed_here(net: nn.Module, mesh: Any) -> Any:
    return tilegrad.distribute(net, mesh, replicas="mean")


@way
def summed_here_not_averaged(net: nn.Module, mesh: Any) -> Any:
    return tilegrad.distribute(net, mesh, replicas="sum")


@way
def left_to_ddp(net: nn.Module, mesh: Any) -> Any:
    run = tilegrad.distribute(net, mesh, replicas="leave")
    return DistributedDataParallel(run, process_group=mesh.get_group("dp"))


@way
def left_to_ddp_of_a_static_graph(net: nn.Module, mesh: Any) -> Any:
    """Which looks for tensors in what the module returns."""
    run = tilegrad.distribute(net, mesh, replicas="leave")
    return DistributedDataParallel(run, process_group=mesh.get_group("dp"), static_graph=True)


@way
def sharded_outside(net: nn.Module, mesh: Any) -> Any:
    run = tilegrad.distribute(net, mesh["h"])
    fully_shard(run, mesh=mesh["dp"])
    return run


@way
def sharded_outside_by_block(net: nn.Module, mesh: Any) -> Any:
    run = tilegrad.distribute(net, mesh["h"])
    for block in (run.first, run.last, run):
        fully_shard(block, mesh=mesh["dp"])
    return run


@way
def sharded_inside_by_block(net: nn.Module, mesh: Any) -> Any:
    for block in (net.first, net.last, net):
        fully_shard(block, mesh=mesh["dp"])
    return tilegrad.distribute(net, mesh["h"])


@way
def sharded_in_a_larger_module(net: nn.Module, mesh: Any) -> Any:
    larger = nn.Sequential(tilegrad.distribute(net, mesh["h"]))
    fully_shard(larger[0], mesh=mesh["dp"])
    fully_shard(larger, mesh=mesh["dp"])
    return larger


@way
def sharded_over_all_ranks(net: nn.Module, mesh: Any) -> Any:
    every = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("all",))
    for block in (net.first, net):
        fully_shard(block, mesh=every)
    return tilegrad.distribute(net, mesh["h"])


def live(mesh: Any, names: list[str]) -> dict[str, dict[str, Tensor]]:
    """Three steps, each replica with its own images; the weights after them."""
    found = {}
    for name in names:
        torch.manual_seed(dist.get_rank() if "summed_here" in name else 0)  # whose weights are the first rank's
        net = Segmenter(norm=False).double()
        run = WAYS[name](net, mesh)
        train(
            run, lambda x: part(x.chunk(2)[mesh.get_local_rank("dp")], mesh["h"]), 0.5 if "not_averaged" in name else 1
        )
        found[name] = {key: whole_of(p).detach().clone() for key, p in net.named_parameters()}
    return found


def train(run: nn.Module, cut: Callable[[Tensor], Any], scale: float = 1.0) -> None:
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x, mask, _ = data(seed=step)
        optimizer.zero_grad()
        (scale * F.cross_entropy(run(cut(x)), cut(mask))).backward()
        optimizer.step()


def plain() -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = Segmenter(norm=False).double()
    train(net, lambda x: x)
    return {key: p.detach() for key, p in net.named_parameters()}
