"""Where tensors wait. A store is one file in this folder: it gives room, and says whether the room is on the device.

Rule W1  What was written to a slot is read from it, box by box, until the slot is dropped.
Rule W2  A slot that is dropped gives back its room: to the next who needs it or, by `let_go`, to all.
Rule W3  A store without room raises a `RunError` that says so, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

Layout = torch.memory_format
Part = tuple[slice, ...] | None  # of a tensor; None: all of it


class Slot:
    """Room for one tensor of a device."""

    near = False  # on the device: a part that is read may be a view

    def open(self) -> Tensor:
        """The tensor, wherever it lies; to be written to and read at once, not kept."""
        raise NotImplementedError

    def read(self, part: Part, device: torch.device) -> Tensor:
        """On a device: a view where it lies there, else a copy."""
        here = self.open() if part is None else self.open()[part]
        if self.near:
            return here
        return here.clone() if device.type == here.device.type else here.to(device, non_blocking=True)

    def write(self, part: Part, tensor: Tensor) -> None:
        here = self.open() if part is None else self.open()[part]
        here.copy_(tensor, non_blocking=True)

    def add(self, part: Part, tensor: Tensor) -> None:
        here = self.open() if part is None else self.open()[part]
        here += tensor.to(here.device)


class ValueStore:
    """A place for tensors. A pass makes one for each value, or for all halos together, and drops it."""

    name: ClassVar[str]

    @classmethod
    def let_go(cls) -> None:
        """A model is gone: room that nobody uses is given back."""

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
