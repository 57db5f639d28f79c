"""What torch's tools make of weights that ranks own by box. The same code runs in one process, with plain tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from local_tasks import SIZES, data, make
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as torch_states
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tilegrad
from tilegrad.distributed import part
from tilegrad.errors import TilegradError
from tilegrad.models.local_net import LocalNet


class Lamb(torch.optim.Optimizer):
    """Steps of the size of the weights: asks every parameter and every step for its norm."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad)
                weight, size = p.norm(), mean.norm()
                ratio = torch.where(size > 0, weight / size, torch.ones_like(size))
                p.sub_(mean * ratio * group["lr"])


def use(run: nn.Module, x: Any, y: Any) -> dict[str, Any]:
    """Numbers that depend on all of the weights."""
    found: dict[str, Any] = {}
    average = AveragedModel(run, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for name, optimizer in (
        ("lamb", Lamb(run.parameters())),
        ("adamw", torch.optim.AdamW(run.parameters(), lr=0.01, foreach=True)),
    ):
        for _ in range(2):
            optimizer.zero_grad()
            run(x, y).backward()
            found[f"{name}: norm"] = full(nn.utils.clip_grad_norm_(run.parameters(), 0.5)).item()
            optimizer.step()
            average.update_parameters(run)
        found |= {f"{name}: {key}": full(p) for key, p in run.named_parameters()}
    found |= {f"average: {key}": full(p) for key, p in average.module.named_parameters()}
    with torch.no_grad():
        found["average: loss"] = average(x, y).item()
    return found


def full(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def tools(mesh: Any, _: None) -> dict[str, Any]:
    tiled, x, y, _ = make(mesh, {})
    assert all(isinstance(p, DTensor) for p in tiled.parameters())
    return use(tiled, x, y)


def plain_tools() -> dict[str, Any]:
    return use(LocalNet(**SIZES), *data())  # type: ignore[arg-type]


# -- state dicts -------------------------------------------------------------------------------------------------------


def save_with_torch(mesh: Any, folder: str) -> dict[str, Tensor]:
    """A step, and its state through torch's checkpoint; all of it."""
    tiled, x, y, optimizer = make(mesh, {"optimizer": "adam"})
    tiled(x, y).backward()
    optimizer.step()
    model, state = torch_states.get_state_dict(tiled, optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder)
    whole = torch_states.StateDictOptions(full_state_dict=True)
    return {name: t.clone() for name, t in torch_states.get_model_state_dict(tiled, options=whole).items()}


def load_with_torch(mesh: Any, folder: str) -> tuple[dict[str, Tensor], float]:
    """The state under another number of ranks, and the loss of one more step."""
    tiled, x, y, optimizer = make(mesh, {"optimizer": "adam"})
    model, state = torch_states.get_state_dict(tiled, optimizer)
    dcp.load({"model": model, "optimizer": state}, checkpoint_id=folder)
    torch_states.set_state_dict(tiled, optimizer, model_state_dict=model, optim_state_dict=state)
    found = {name: full(p) for name, p in tiled.named_parameters()}
    optimizer.zero_grad()
    tiled(x, y).backward()
    optimizer.step()
    return found, tiled(x, y).item()


def load_whole(mesh: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Plain weights, as one process saves them."""
    tiled, *_ = make(mesh, {})
    tiled.load_state_dict(weights)
    return {name: full(p) for name, p in tiled.named_parameters()}


def refused(mesh: Any, path: str) -> list[str]:
    """What is not right is said."""
    found = []
    for wrong in (_optimizer_first, _cut_by_hand, _rank_0_file, _step_before_backward, _pickle):
        try:
            wrong(mesh, path)
        except (TilegradError, RuntimeError) as error:
            found.append(str(error))
        else:
            found.append("nothing")
    return found


def _optimizer_first(mesh: Any, _: str) -> None:
    image, labels = data()
    tiled = tilegrad.distribute(LocalNet(**SIZES), mesh)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(tiled.parameters(), lr=0.1)
    tiled(part(image, mesh), labels)
    optimizer.step()


def _cut_by_hand(mesh: Any, _: str) -> None:
    image, labels = data()
    tiled = tilegrad.distribute(LocalNet(**SIZES), mesh)  # type: ignore[arg-type]
    tiled(part(image, mesh, cuts={"h": (0, 4, 13)}), labels)


def _rank_0_file(mesh: Any, path: str) -> None:
    tiled, *_ = make(mesh, {})
    if dist.get_rank() == 0:
        torch.save(tiled.state_dict(), path)
    dist.barrier()
    loaded = torch.load(path, weights_only=False)
    problem = ""
    try:
        tiled.load_state_dict(loaded)
    except RuntimeError as error:
        problem = str(error)
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, problem)  # rank 0 has its own box
    raise RuntimeError(" ".join(said))


def _step_before_backward(mesh: Any, _: str) -> None:
    tiled, x, y, optimizer = make(mesh, {})
    tiled(x, y).backward()
    loss = tiled(x, y)
    optimizer.step()
    loss.backward()


def _pickle(mesh: Any, path: str) -> None:
    torch.save(make(mesh, {})[0], f"{path}.{dist.get_rank()}")
