"""What the allocator of a GPU holds for a step, and what that teaches.

A plan counts tensors. Kernels take workspaces besides, and the allocator holds more than it hands out: both are seen
when the first step has run, and the first that is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from ..schedule import Schedule
from ..torch_private import expand_segments
from ..units import format_bytes

FEW = 3  # steps that are looked at: those before one is recorded, and that one
TWICE = 2  # times that is planned again: with other tiles kernels take other workspaces
COARSE = 32 << 20  # the allocator takes memory in pieces: so much is not passing a budget
WORDS = ("can't allocate memory", "unable to find an engine", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED")
_log = logging.getLogger("tilegrad")


class Reserved:
    """Looks at the first steps of a plan."""

    def __init__(self, device: torch.device, budget: int):
        self.device, self.budget = device, budget
        self.left, self.others, self.most = FEW, 0, 0
        self.again = TWICE
        expand_segments()
        torch.cuda.empty_cache()

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Before a step: what is there and is not the model's."""
        if self.left:
            here = [t for t in tensors.values() if t.device == self.device]
            grads = [t.grad for t in here if t.is_leaf and t.grad is not None]
            mine = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*here, *grads)}
            self.others = max(0, torch.cuda.memory_allocated(self.device) - sum(mine.values()))

    def end(self) -> None:
        """After it."""
        if self.left:
            self.left -= 1
            self.most = max(self.most, torch.cuda.memory_reserved(self.device) - self.others)

    def lesson(self, schedule: Schedule) -> int | None:
        """The budget to plan again for, where steps held more than they should: as much more than that is within it."""
        if self.most <= self.budget + COARSE or not self.again:
            return None
        need = int(schedule.predicted["total_bytes"])
        outside = schedule.graph.outside_bytes()  # the rest grows and shrinks with tiles
        share = min(1.0, (need - outside) / max(1, self.most - outside))
        less = int(outside + share * (self.budget - outside))
        _log.warning(
            "a step predicted to need %s held %s, more than the budget of %s: planned again for %s",
            *map(format_bytes, (need, self.most, self.budget, less)),
        )
        give_back(self.device)
        self.again, self.left, self.most = self.again - 1, FEW, 0
        return less


def is_out_of_memory(error: RuntimeError) -> bool:
    """torch's own error, or a library's for which too little was left."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in WORDS)


def give_back(device: torch.device) -> None:
    """What the allocator holds and nobody uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
