"""What ranks run for tests of layers that live on space, and of saved states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import tilegrad
from tilegrad.distributed import DistributedModule, load_state, part, save_state, state
from tilegrad.distributed.cut_weights import local_of
from tilegrad.errors import TilegradError
from tilegrad.models.local_net import LocalNet

SIZES = {"image": (13, 11), "layers": ((4, 5), (3, 4)), "classes": 6, "dtype": torch.float64}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    image = torch.randn(6, 1, 13, 11, dtype=torch.float64, generator=generator)
    return image, torch.randint(0, 6, (6,), generator=generator)


def make(mesh: DeviceMesh, payload: dict[str, Any]) -> tuple[DistributedModule, Any, Any, torch.optim.Optimizer]:
    net = LocalNet(**SIZES, gain=payload.get("gain", "a*(x+b)"), device=payload.get("device"))  # type: ignore[arg-type]
    tiled = tilegrad.tile(net, mesh=mesh)
    image, labels = data()
    x = part(image, mesh)
    y: Any = part(labels, mesh) if "batch" in (mesh.mesh_dim_names or ()) else labels
    tiled.plan_for(x, y)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[payload.get("optimizer", "sgd")]
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    return tiled, x, y, kind(tiled.parameters(), lr=0.05, **options)  # type: ignore[arg-type]


def train(mesh: DeviceMesh, payload: dict[str, Any]) -> dict[str, Any]:
    """Losses of some steps, all weights gathered, and how many this rank has. `load` and `save` name states."""
    tiled, x, y, optimizer = make(mesh, payload)
    if payload.get("load"):
        load_state(tiled, payload["load"], optimizer)
    tiled.traffic.clear()
    losses = []
    for _ in range(payload.get("steps", 3)):
        optimizer.zero_grad()
        loss = tiled(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if payload.get("save"):
        save_state(tiled, Path(payload["save"]), optimizer)
    traffic, account = tiled.traffic, tiled.plan.accounts[mesh.get_rank()]
    counted = (traffic.sent_bytes, traffic.received_bytes, traffic.messages)
    steps = len(losses)
    planned = (account.sent_bytes * steps, account.received_bytes * steps, account.messages * steps)
    summed = traffic.summed_bytes
    return {
        "losses": losses,
        "weights": whole_weights(tiled),
        "count": sum(local_of(p).numel() for p in tiled.parameters()),
        "cut": sorted(tiled.cut_parameters),
        "traffic": counted == planned,
        "summed_bytes": summed,
    }


def states_go_wrong(mesh: DeviceMesh, folder: str) -> tuple[str, str, bool]:
    """Where nothing can be written, and where one rank alone cannot read."""
    tiled, *_ = make(mesh, {})
    nowhere = _said(lambda: save_state(tiled, Path(folder) / "file" / "state"))
    save_state(tiled, Path(folder) / "state")
    with torch.no_grad():
        for parameter in tiled.parameters():
            parameter.add_(1)
    before = whole_weights(tiled)
    broken = OSError(5, "Input/output error")
    with mock.patch.object(state, "_read", side_effect=broken) if mesh.get_rank() == 1 else nullcontext():
        alone = _said(lambda: load_state(tiled, Path(folder) / "state"))
    unchanged = all(torch.equal(weight, before[name]) for name, weight in whole_weights(tiled).items())
    return nowhere, alone, unchanged


def _said(work: Callable[[], None]) -> str:
    try:
        work()
    except TilegradError as error:
        return f"{type(error).__name__}: {error.what}"
    return "nothing"


def whole_weights(tiled: DistributedModule) -> dict[str, Tensor]:
    return {name: parameter.detach().full_tensor().clone() for name, parameter in tiled.named_parameters()}


def plain(payload: dict[str, Any]) -> tuple[list[float], nn.Module]:
    """The same in one process, without tilegrad's engine."""
    net = LocalNet(**SIZES, gain=payload.get("gain", "a*(x+b)"))  # type: ignore[arg-type]
    image, labels = data()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[payload.get("optimizer", "sgd")]
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(net.parameters(), lr=0.05, **options)  # type: ignore[arg-type]
    losses = []
    for _ in range(payload.get("steps", 3)):
        optimizer.zero_grad()
        loss = net(image, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net
