"""Ways to train in less memory, each a module around a network: what people do by hand, and tilegrad."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from nets import checkpointed

Context = Callable[[], contextlib.AbstractContextManager[Any]]


class Under(nn.Module):
    """A network whose forward pass runs under a context."""

    def __init__(self, net: nn.Module, context: Context):
        super().__init__()
        self.net, self.context = net, context

    def forward(self, image: Tensor) -> Any:
        with self.context():
            return self.net(image)


def on_cpu(net: nn.Module, *, pinned: bool) -> nn.Module:
    """What autograd saves waits on the host."""
    return Under(net, lambda: save_on_cpu(pin_memory=pinned))


class Elsewhere(saved_tensors_hooks):
    """What `save_on_cpu` does to tensors without data: they are gone until backward. Counts their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        super().__init__(self._pack, lambda kind: torch.empty_strided(*kind[:2], dtype=kind[2], device=kind[3]))

    def _pack(self, tensor: Tensor) -> tuple[Any, ...]:
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda net: net,
    "compiled": torch.compile,  # type: ignore[dict-item]
    "checkpoint": checkpointed,
    "save_on_cpu": lambda net: on_cpu(net, pinned=next(net.parameters()).is_cuda),
}
