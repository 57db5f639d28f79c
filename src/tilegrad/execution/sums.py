"""Gradients of half precision to which many islands add, summed in single precision.

Those of small tensors (biases, the numbers of norms) wait for the end of an island's backward, and are added all at
once: on a GPU each of them is a kernel that takes longer to begin than to run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..torch_private import add_each, copy_each

PAIR = 2  # a sum of two is rounded once, in any precision; one of more loses per cents in bfloat16
SMALL = 2**16  # elements


class Sums:
    def __init__(self, early: dict[str, Tensor]) -> None:
        self._early = early  # memory that sums have already
        self._totals: dict[str, Tensor] = {}
        self._waiting: dict[str, Tensor] = {}

    def gather(self, leaf: Tensor, name: str) -> None:
        """From now on what comes to a leaf comes here."""

        def add(tensor: Tensor) -> None:
            assert tensor.grad is not None
            grad, tensor.grad = tensor.grad, None
            if grad.numel() <= SMALL and name not in self._waiting:
                self._waiting[name] = grad
            elif name in self._totals:
                self._totals[name] += grad
            else:
                room = self._early.pop(name, None)
                self._totals[name] = grad.to(torch.float32) if room is None else room.copy_(grad)

        leaf.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Add what waits."""
        waiting, self._waiting = self._waiting, {}
        singles = {name: torch.empty_like(grad, dtype=torch.float32) for name, grad in waiting.items()}
        if waiting:
            copy_each(list(singles.values()), list(waiting.values()))
        known = [name for name in singles if name in self._totals]
        if known:
            add_each([self._totals[name] for name in known], [singles[name] for name in known])
        self._totals = singles | self._totals

    def take(self, name: str) -> Tensor | None:
        if name in self._waiting:
            self.settle()
        return self._totals.pop(name, None)

    def clear(self) -> None:
        self._totals, self._waiting = {}, {}
