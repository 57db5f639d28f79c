"""What one trace has seen so far."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ...torch_private import FakeTensor
from .reach import TensorSlot
from .state import Write


@dataclass
class Session:
    """One trace: what it has seen so far."""

    module: nn.Module
    registered: dict[int, TensorSlot]  # parameters and buffers, which torch.export replaces in their registries
    hidden: dict[int, str]  # tensors that no registry knows -> their name in the holder
    holder: nn.Module
    result: Any = None
    sources: tuple[Any, ...] = ()
    tokens: list[int] = field(default_factory=list)
    seen: list[tuple[weakref.ref[Tensor], str]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    inside: bool = False  # does the user's code run right now?
    thread: int = field(default_factory=threading.get_ident)

    def fake(self, item: Any) -> Any:
        """The stand-in of a tensor that the module holds, wherever it was found."""
        if not isinstance(item, Tensor) or isinstance(item, FakeTensor):
            return item
        if id(item) in self.hidden:
            name = self.hidden[id(item)]
            return self.holder._parameters.get(name, self.holder._buffers.get(name))
        return self.registered[id(item)].get() if id(item) in self.registered else item


def is_fake(item: Any) -> bool:
    return isinstance(item, FakeTensor)
