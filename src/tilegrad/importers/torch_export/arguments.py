"""A module and its arguments, before they are traced: names, shapes, devices, and what cannot be traced at all."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import CaptureError, ModelError
from ...torch_private import FakeTensorMode


def from_shapes(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in which tensors without data stand where shapes were."""
    dtype = next((p.dtype for p in module.parameters()), torch.get_default_dtype())

    def made(item: Any) -> Any:
        if not is_shape(item):
            return item
        if min(item, default=0) < 0:
            raise ModelError(f"negative dimension in the shape {tuple(item)}", hint="sizes of 0 or more")
        return torch.empty(item, dtype=dtype, device="meta")

    return tuple(map(made, args)), {name: made(item) for name, item in kwargs.items()}


def argument_names(module: nn.Module, paths: Sequence[str]) -> list[str]:
    """A name for every tensor among the arguments, from its place there: `x`, `batch_mask`."""
    try:
        known = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # a forward that hides its signature
        known = []
    found: list[str] = []
    for path in paths:
        _, kind, first, *rest = path.split("_", 3)
        if kind == "0" and first.isdigit():
            first = _positional(known, int(first))
        name = re.sub(r"\W", "_", "_".join([first, *rest]))
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"input_{name}"
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found


def _positional(known: Sequence[inspect.Parameter], at: int) -> str:
    """What a positional argument is called: `x`, or `images_0` where it is one of `*images`."""
    last = len(known) - 1
    for k, parameter in enumerate(known):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and k <= at:
            return f"{parameter.name}_{at - k}"
    return known[at].name if at <= last else f"input_{at}"


def device_of(module: nn.Module, given: Iterable[Any] = ()) -> torch.device:
    """Where a module's nodes run: where its parameters are, or its buffers; if it has none, the tensors it is given."""
    data = (t for t in given if isinstance(t, Tensor) and not t.is_meta)
    return next((t.device for t in chain(module.parameters(), module.buffers(), data)), torch.device("cpu"))


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast chooses on a device, where it is on."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def check_ready(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise CaptureError(
                f"'{name}' is a lazy parameter that has no shape yet",
                where=f"{name} of {type(module).__name__}",
                hint="call once on a small input before tilegrad.tile",
            )
    for kind, hint in _WRAPPERS.items():
        if type(module).__name__ == kind:
            raise CaptureError(f"a {kind} cannot be captured", where=type(module).__name__, hint=hint)


_WRAPPERS = {
    "DistributedDataParallel": "tile the model inside, then wrap it: DistributedDataParallel(tilegrad.tile(model, …))",
    "FullyShardedDataParallel": "tile the model inside, then shard it",
    "RecursiveScriptModule": "the module that was scripted",
}


def is_shape(item: Any) -> bool:
    """A tuple of sizes, which stands for a tensor."""
    if isinstance(item, torch.Size):
        return True
    return type(item) is tuple and bool(item) and all(type(n) is int for n in item)


def fake_inputs(module: nn.Module, flat: Sequence[Tensor]) -> list[Tensor]:
    """Inputs without data. Parameters may live on another device than a large image: nodes run where parameters are."""
    device, mode = device_of(module, flat), FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in flat]
        return [fake.requires_grad_(t.requires_grad) for fake, t in zip(fakes, flat, strict=True)]
