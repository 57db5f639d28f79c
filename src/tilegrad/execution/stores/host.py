"""The host's memory, pinned. For a model on the CPU that is the device's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Layout, Slot, ValueStore
from .device import DeviceStore


class HostStore(ValueStore):
    name = "host"

    def reserve(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout,
        *,
        zeros: bool,
    ) -> Slot:
        if device.type != "cuda":
            return DeviceStore().reserve(shape, dtype, device, layout, zeros=zeros)
        made = torch.empty(tuple(shape), dtype=dtype, pin_memory=True, memory_format=layout)
        return _Pinned(made.zero_() if zeros else made)


class _Pinned(Slot):
    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def open(self) -> Tensor:
        return self.tensor
