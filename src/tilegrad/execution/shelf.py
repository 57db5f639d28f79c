"""Tensors by key, kept in a store, given back on the device they came from: halos and their gradients."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ..ops.channels import layout_of
from .stores import Slot, make_store


class Shelf:
    def __init__(self, store: str):
        self.store = make_store(store)
        self.items: dict[Hashable, tuple[Slot, torch.device]] = {}
        self.bytes = 0

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a copy of `tensor` (which may be a view of something large)."""
        layout = torch.contiguous_format if tensor.is_contiguous() else layout_of(tensor)
        slot = self.store.reserve(tensor.shape, tensor.dtype, tensor.device, layout, zeros=False)
        slot.open().copy_(tensor, non_blocking=True)
        self.items[key] = (slot, tensor.device)
        self.bytes += tensor.numel() * tensor.element_size()

    def take(self, key: Hashable) -> Tensor | None:
        """The tensor, for the last time; None where nothing was left."""
        return self.get(key, last=True) if key in self.items else None

    def get(self, key: Hashable, *, last: bool) -> Tensor:
        """The tensor on its device; `last`: nobody will ask again."""
        slot, device = self.items.pop(key) if last else self.items[key]
        found = fetched(slot, slot.open(), device)
        if last:
            self.bytes -= found.numel() * found.element_size()
        return found


def fetched(slot: Slot, part: Tensor, device: torch.device) -> Tensor:
    """A part of a slot on its device: a view where it lies there, else a copy."""
    if slot.near:
        return part
    return part.clone() if device.type == part.device.type else part.to(device, non_blocking=True)
