"""Parameters that live on space: every rank keeps its own box of them, and nothing else.

Where a module has such parameters, all of its parameters are DTensors of torch, sharded or replicated, since torch's
tools want all or none: `clip_grad_norm_`, optimizers that ask for norms, `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor

from ..errors import InputError
from ..ir import Kind
from ..planners.ranks.plan import MeshPlan
from ..region import Box
from .part import placements

_OWNER = "tilegrad_owner"  # of a tensor in a state dict: whose box it is


def cut_parameters(module: nn.Module, plan: MeshPlan, state: Any) -> list[weakref.ref[Tensor]]:
    """Cut what is still whole. What was there before, which nobody should hold any more."""
    named = dict(module.named_parameters(remove_duplicate=False))
    values = {str(v.target): v.name for v in plan.graph.of_kind(Kind.PARAMETER)}
    coords = plan.mesh.coords_of(state.group.rank)
    axes = state.group.mesh.axes  # not the one that is only streamed along
    boxes = {name: plan.owned(v, coords) for name, v in values.items() if not plan.placement.cut[v].isdisjoint(axes)}
    for name, box in state.cut.items():
        if name in boxes and boxes[name] != box:
            what = f"parameter '{name}' is cut into {box} already, where {boxes[name]} is due"
            raise InputError(what, hint="images of one size, and the same cuts")
    fresh = {name: box for name, box in boxes.items() if name not in state.cut}
    if fresh and any(isinstance(p, DTensor) for p in module.parameters()) and not state.cut:
        what = f"parameter '{next(iter(fresh))}' lives on space, and others were sharded before"
        raise InputError(what, hint="without fully_shard: ranks own the large ones by box already")
    if fresh and state.skeleton is None:
        state.skeleton = without_data(module)
    if not fresh and not any(p.is_meta for p in named.values()):
        return []
    first = not state.cut
    state.cut |= fresh
    made: dict[int, nn.Parameter] = {}  # one that has several names stays one
    for name, parameter in named.items():
        if id(parameter) not in made and (parameter.is_meta or (state.cut and not isinstance(parameter, DTensor))):
            box = boxes.get(name, Box.full(parameter.shape))
            with torch.no_grad():
                own = _own(module, name, parameter, box, state.group.device)
            made[id(parameter)] = _parameter(own, parameter, _placements(plan, values.get(name), name), state)
        if id(parameter) in made:
            path, _, short = name.rpartition(".")
            module.get_submodule(path)._parameters[short] = made[id(parameter)]
    if first and state.cut:
        module.register_load_state_dict_pre_hook(_take_boxes)  # type: ignore[no-untyped-call]
        module.register_state_dict_post_hook(_name_owner)  # type: ignore[no-untyped-call]
    return [weakref.ref(p) for p in named.values() if id(p) in made and not p.is_meta]


def check_let_go(before: Iterable[weakref.ref[Tensor]]) -> None:
    """An optimizer that holds the whole parameters would go on with them."""
    if any(each() is not None for each in before):
        gc.collect()
    if any(each() is not None for each in before):
        what = "parameters live on space and are cut now, but something that was made before holds them whole"
        raise InputError(what, hint="tiled.plan_for(x, …) first, then the optimizer, and what else has parameters")


def _placements(plan: MeshPlan, value: str | None, name: str) -> list[Any]:
    """What torch calls the cut of a parameter."""
    cut = plan.placement.cut[value] if value is not None else frozenset()
    dims = {axis: plan.axes.dims[value][axis] for axis in plan.mesh.axes if axis in cut} if value is not None else {}
    found = placements(plan.mesh, plan.graph.shape(value) if value is not None else (), dims)
    if found is None:
        what = f"parameter '{name}' lives on space, and torch has no name for how it would be cut"
        raise InputError(what, hint="part(x, mesh) without cuts=")
    return found


def _parameter(own: Tensor, before: nn.Parameter, where: list[Any], state: Any) -> nn.Parameter:
    if state.cut:
        stride = torch.empty(before.shape, device="meta").stride()
        mesh, shape = state.device_mesh, before.shape
        own = DTensor.from_local(own.contiguous(), mesh, where, run_check=False, shape=shape, stride=stride)
    found = nn.Parameter(own, before.requires_grad)
    found.__dict__.update(before.__dict__)  # what others have noted on it
    return found


def local_of(tensor: Any) -> Any:
    """What a rank has of a tensor; of its own box gradients go back to the DTensor."""
    return _Own.apply(tensor) if isinstance(tensor, DTensor) else tensor  # type: ignore[no-untyped-call]


class _Own(Function):
    """As torch's `to_local`, which in 2.11 gets the strides of boxes of uneven sizes wrong: their gradients are copied
    for that, and gathered to whole ones."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.model, own = tensor.detach(), tensor.to_local()
        return own.view_as(own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        return like(grad, ctx.model) if grad is not None else None


def like(local: Tensor, model: Tensor) -> Tensor:
    """A rank's own box as the same kind of tensor as another of its size."""
    if not isinstance(model, DTensor):
        return local
    mesh, where = model.device_mesh, model.placements
    return DTensor.from_local(local, mesh, where, run_check=False, shape=model.shape, stride=model.stride())


def _take_boxes(module: nn.Module, entries: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Before a state dict is loaded: of whole weights, each rank takes its own box."""
    errors: list[str] = rest[-1]
    for name, parameter in module.named_parameters():
        entry = entries.get(prefix + name)
        if not isinstance(parameter, DTensor) or not isinstance(entry, Tensor):
            continue
        if isinstance(entry, DTensor):
            if getattr(entry, _OWNER, _owner(parameter)) != _owner(parameter):
                errors.append(f"'{name}' in the state dict is the box of another rank: use save_state and load_state")
        elif entry.shape == parameter.shape:
            whole = DTensor.from_local(entry.to(parameter.device), parameter.device_mesh, run_check=False)
            entries[prefix + name] = whole.redistribute(placements=parameter.placements)


def _name_owner(module: nn.Module, entries: dict[str, Any], prefix: str, *rest: Any) -> None:
    """In a state dict every box says whose it is, also in a file."""
    for name, _ in module.named_parameters():
        if isinstance(entry := entries.get(prefix + name), DTensor) and not isinstance(entry, nn.Parameter):
            setattr(entry, _OWNER, _owner(entry))


def _owner(parameter: Any) -> str:
    return f"{parameter.device_mesh.get_coordinate()} of {tuple(parameter.device_mesh.shape)}"


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
