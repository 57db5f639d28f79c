"""What plain PyTorch allocates, found by running the module itself on tensors without data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_private import FakeTensorMode, pytree
from .peak import PeakBytes


def plain_bytes(module: nn.Module, args: Any, kwargs: Any, *, train: bool) -> int:
    """What plain PyTorch allocates in one step of `module`, found by running it on tensors without data: such as know
    of no device, which is quick, or where the module asks for one, such as claim to be on the CPU."""
    try:
        return _rehearsed(module, args, kwargs, train, "meta")
    except Exception:  # whatever a module's own code thinks of such tensors: what is really wrong shows below
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _rehearsed(module, args, kwargs, train, "cpu")


def _rehearsed(module: nn.Module, args: Any, kwargs: Any, train: bool, device: str) -> int:
    dtype = next((p.dtype for p in module.parameters()), None)

    def blank(item: Any) -> Any:
        if isinstance(item, Tensor):
            made = torch.empty_like(item, device=device)
            return made.requires_grad_(train and item.requires_grad)
        return torch.empty(item, dtype=dtype, device=device) if isinstance(item, tuple) and _is_shape(item) else item

    with torch.set_grad_enabled(train):
        state = {name: blank(t) for name, t in _named(module)}
        args, kwargs = pytree.tree_map(blank, (args, kwargs), is_leaf=lambda x: isinstance(x, tuple) and _is_shape(x))
        with _replaced(module, state), PeakBytes("meta") as peak:  # which is what tensors without data are made of
            outputs = module(*args, **kwargs)
            roots = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
            if train and roots:
                torch.autograd.backward(roots, [torch.empty_like(t) for t in roots])
    return peak.bytes


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    every = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return [pair for each in every for pair in each]


@contextlib.contextmanager
def _replaced(module: nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Other tensors in place of parameters and buffers, for backward too: a checkpoint runs the module again there."""
    places = [
        (registry, key, tensor, state[f"{prefix}.{key}" if prefix else key])
        for prefix, part in module.named_modules()
        for registry in (part._parameters, part._buffers)
        for key, tensor in registry.items()
        if (f"{prefix}.{key}" if prefix else key) in state
    ]
    known = {id(tensor): other for _, _, tensor, other in places}  # what is shared stays shared
    try:
        for registry, key, tensor, _ in places:
            registry[key] = known[id(tensor)]
        yield
    finally:
        for registry, key, tensor, _ in places:
            registry[key] = tensor


def _is_shape(item: tuple[Any, ...]) -> bool:
    return bool(item) and all(isinstance(n, int) for n in item)
