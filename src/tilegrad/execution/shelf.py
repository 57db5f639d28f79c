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
        slot.write(None, tensor)
        self.items[key] = (slot, tensor.device)
        self.bytes += tensor.numel() * tensor.element_size()

    def take(self, key: Hashable) -> Tensor | None:
        """The tensor, for the last time; None where nothing was left."""
        return self.get(key, last=True) if key in self.items else None

    def get(self, key: Hashable, *, last: bool) -> Tensor:
        """The tensor on its device; `last`: nobody will ask again."""
        slot, device = self.items.pop(key) if last else self.items[key]
        found = slot.read(None, device)
        if last:
            self.bytes -= found.numel() * found.element_size()
        return found
