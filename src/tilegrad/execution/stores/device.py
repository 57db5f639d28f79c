"""The device's own memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .base import Layout, Near, Slot, ValueStore


class DeviceStore(ValueStore):
    name = "device"

    def reserve(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout,
        *,
        zeros: bool,
    ) -> Slot:
        made = torch.empty(tuple(shape), dtype=dtype, device=device, memory_format=layout)
        return Near(made.zero_() if zeros else made)
