"""Where tensors wait. A store is one file in this folder: it gives room, and says whether the room is on the device.

Rule W1  What was written to a slot is read from it, box by box, until the slot is dropped.
Rule W2  A slot that is dropped gives back its room.
Rule W3  A store without room raises a `RunError` that says so, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

Layout = torch.memory_format


class Slot:
    """Room for one tensor of a device."""

    near = False  # on the device: a part that is read may be a view

    def open(self) -> Tensor:
        """The tensor, wherever it lies; to be written to and read at once, not kept."""
        raise NotImplementedError


class ValueStore:
    """A place for tensors. A pass makes one for each value, or for all halos together, and drops it."""

    name: ClassVar[str]

    def reserve(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout,
        *,
        zeros: bool,
    ) -> Slot:
        """`device`: whose tensors wait; `zeros`: filled with them, else with anything."""
        raise NotImplementedError


class Near(Slot):
    """A tensor that lies on the device itself."""

    near = True

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def open(self) -> Tensor:
        return self.tensor
