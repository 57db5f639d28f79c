"""Modules that `fully_shard` has been through, as a whole or block by block.

Its own hooks gather parameters when a block is called, and no block is called here. So parameters stay sharded until a
call binds them: then they are gathered, and their gradients are averaged over the ranks that share them, as
`fully_shard` would.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def shards(module: nn.Module) -> list[Any]:
    """The modules in it that `fully_shard` was called on. Asked in every call, and so without a detour."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nobody shards without it
    kind = getattr(fsdp, "FSDPModule", None)
    found, left = dict[nn.Module, None](), [module] if kind is not None else []
    while left:
        each = left.pop()
        found[each] = None
        left += [child for child in reversed(each._modules.values()) if child is not None] if each._modules else ()
    return [each for each in found if isinstance(each, kind)] if kind is not None else []


@contextlib.contextmanager
def captured_whole(module: nn.Module) -> Iterator[None]:
    """The module as it would be if nobody had sharded it: parameters whole, though without values, and no hooks."""
    before: list[tuple[dict[Any, Any], dict[Any, Any]]] = []

    def put(live: dict[Any, Any], other: dict[Any, Any]) -> None:
        before.append((live, dict(live)))
        live.clear()
        live.update(other)

    for each in module.modules():
        for name in _HOOKS:
            live = getattr(each, name)
            put(live, {key: hook for key, hook in live.items() if not _is_fsdp(hook)})
        put(each._parameters, {name: _blank(p) for name, p in each._parameters.items()})
    try:
        yield
    finally:
        for live, content in reversed(before):
            live.clear()
            live.update(content)


def _is_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed")


def _blank(parameter: Any) -> Any:
    if not isinstance(parameter, DTensor):
        return parameter
    local = parameter.to_local()
    return nn.Parameter(torch.empty(parameter.shape, dtype=local.dtype, device=local.device), parameter.requires_grad)


def whole_of(tensor: Any) -> Tensor:
    """All of a sharded parameter."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.full_tensor(grad_placements=[Partial("avg")] * tensor.device_mesh.ndim)
