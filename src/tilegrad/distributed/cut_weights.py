"""Parameters that live on space: every rank keeps its own box of them, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..ir import Kind
from ..planners.ranks.plan import MeshPlan
from ..region import Box


def cut_parameters(module: nn.Module, plan: MeshPlan, state: Any) -> None:
    """Cut what is still whole, in place: parameters stay the same objects, so that optimizers know them. Only those
    without data are replaced."""
    named = dict(module.named_parameters(remove_duplicate=False))
    boxes = {
        str(v.target): plan.owned(v.name, plan.mesh.coords_of(state.group.rank))
        for v in plan.graph.of_kind(Kind.PARAMETER)
        if plan.placement.cut[v.name]
    }
    for name, box in state.cut.items():
        if name in boxes and boxes[name] != box:
            what = f"parameter '{name}' is cut into {box} already, where {boxes[name]} is due"
            raise InputError(what, hint="images of one size, and the same cuts")
    fresh = {name: box for name, box in boxes.items() if name not in state.cut}
    drawn = {name: Box.full(p.shape) for name, p in named.items() if p.is_meta and name not in boxes}
    if fresh and state.skeleton is None:
        state.skeleton = without_data(module)
    for name, box in (*fresh.items(), *drawn.items()):
        parameter = named[name]
        with torch.no_grad():
            own = _own(module, name, parameter, box, state.group.device)
        if parameter.is_meta:  # cannot be given data: another takes its place
            path, _, short = name.rpartition(".")
            module.get_submodule(path)._parameters[short] = nn.Parameter(own, parameter.requires_grad)
        else:
            parameter.data, parameter.grad = own, None
    state.cut |= fresh


def _own(module: nn.Module, name: str, parameter: Tensor, box: Box, device: torch.device) -> Tensor:
    """This rank's box; of a parameter without data, as its module draws it."""
    if not parameter.is_meta:
        return parameter.detach()[box.slices].clone()
    path, _, short = name.rpartition(".")
    owner = module.get_submodule(path)
    draw = getattr(owner, "draw_box", None)
    if draw is None:
        what = f"parameter '{name}' has no data, and its module {type(owner).__name__} cannot draw a box of it"
        raise InputError(what, hint="make the module with data, or give it a method draw_box(name, box, device)")
    found: Tensor = draw(short, box, device)
    return found


def without_data(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        memo: dict[int, Any] = {id(t): _blank(t) for t in (*module.parameters(), *module.buffers())}
        return copy.deepcopy(module, memo)


def _blank(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
