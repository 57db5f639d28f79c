"""What the allocator of a GPU holds for a step, and what that teaches.

A plan counts tensors. Kernels take workspaces besides, and the allocator holds more than it hands out. While a step
runs it may hold little more than is predicted: before it would, it gives back what lies unused between tensors, and
maps it anew in one piece. Where that is too little it may hold the budget, and where even that is, memory has run out
(rule R1 of `runner.py`); if there is no smaller plan, the step is run without that limit. A recording cannot give
anything back while it is made: what it holds is looked at afterwards, and teaches how much less to plan for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ..schedule import Schedule
from ..torch_private import allocated_bytes, expand_segments
from ..units import format_bytes

FEW = 3  # steps that are looked at: those before one is recorded, and that one
THRICE = 3  # times that is planned again: with other tiles kernels take other workspaces
ROOM = 256 << 20
NEAR = 1.1  # times what is predicted: what a step may hold, unless that is found to be too little
COARSE = 2 << 20  # the allocator takes memory in pieces: so much is not passing a budget
WORDS = ("can't allocate memory", "unable to find an engine", "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED")
_log = logging.getLogger("tilegrad")


def first_budget(budget: int) -> int:
    """What a plan may count on before any step has run: some is for workspaces, and for what lies between tensors."""
    return budget - between_bytes(budget)


def between_bytes(budget: int) -> int:
    """What an allocator may hold and not have handed out. Whole nodes leave as much once more free: their tensors are
    of very different sizes, and a small one in the middle of a hole makes it useless for a large one."""
    return min(budget // 16, ROOM)


class Reserved:
    """Looks at the first steps of a plan."""

    def __init__(self, device: torch.device, budget: int):
        self.device, self.budget = device, budget
        self.left, self.most = FEW, 0
        self.here = self.held = self.mine = 0  # before a step: handed out, held, and what of it is the model's
        self.stays = 0  # what libraries took in a step and keep
        self.again = THRICE
        self.near = True  # are steps held to what is predicted?
        self.lifted = False  # is there a limit no more? Not until it is planned again
        expand_segments()
        torch.cuda.empty_cache()

    def begin(self, tensors: Mapping[str, Tensor], predicted: int) -> Limit | None:
        """Before a step: what is there, and what of it is the model's. What others hold and do not use is not ours."""
        if self.left:
            give_back(self.device)
            here = [t for t in tensors.values() if t.device == self.device]
            grads = [t.grad for t in here if t.is_leaf and t.grad is not None]
            mine = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*here, *grads)}
            self.here, self.held = allocated_bytes(self.device), torch.cuda.memory_reserved(self.device)
            self.mine = sum(mine.values())
        if self.lifted:
            return None
        further = max(0, self.budget - int(NEAR * predicted)) if self.near and predicted else 0
        return Limit(self.device, allocated_bytes(self.device) - self.mine + self.budget - further, further)

    def end(self, schedule: Schedule, found: Iterable[Tensor] = ()) -> None:
        """After it. `found`: gradients."""
        if self.left:
            self.left -= 1
            self.most = max(self.most, torch.cuda.memory_reserved(self.device) - self.held + self.mine)
            outputs = sum(schedule.graph.type(name).bytes for name in schedule.graph.outputs)
            known = 2 * outputs + sum(t.numel() * t.element_size() for t in found)
            self.stays = max(self.stays, allocated_bytes(self.device) - self.here - known)

    def widen(self, limit: Limit | None) -> bool:
        """What is predicted was too little for this step: those that come may hold the budget. Can this one be run
        again like that?"""
        if limit is None:
            return False
        self.near = False
        return limit.widen()

    def lift(self) -> None:
        """No plan could be run within the limit."""
        _log.warning("a step does not fit into %s as the allocator counts: it may hold more", format_bytes(self.budget))
        self.lifted, self.left = True, max(1, self.left)

    def lesson(self, schedule: Schedule) -> int | None:
        """The budget to plan again for, where steps held more than they should: as much more than that is within it.
        Where that was not enough, what lies between tensors does not shrink with them, and there is less for them."""
        if self.most <= self.budget + COARSE or not self.again:
            return None
        need = int(schedule.predicted["total_bytes"])
        outside = schedule.graph.outside_bytes()  # the rest grows and shrinks with tiles
        share = min(1.0, (need - outside) / max(1, self.most - outside - self.stays))
        less = int(outside + share * (self.budget - outside - self.stays))
        if self.again < THRICE:
            less = min(less, max(need - (self.most - self.budget), 3 * less // 4)) * 31 // 32
        _log.warning(
            "a step predicted to need %s held %s, more than the budget of %s: planned again for %s",
            *map(format_bytes, (need, self.most, self.budget, less)),
        )
        self.again, self.left, self.most, self.lifted = self.again - 1, FEW, 0, False
        return less


class Limit(AbstractContextManager[None]):
    """The most that the allocator may hold while a step runs: what others have, and the budget. Its forward enters it,
    and its backward; what others have made in between is theirs."""

    def __init__(self, device: torch.device, most: int, further: int = 0):
        self.device, self.most, self.further = device, most, further
        self.here: int | None = None  # handed out when it was left
        self.before = 1.0

    def widen(self) -> bool:
        """To the budget. Was it less?"""
        wider, self.most, self.further = self.further > 0, self.most + self.further, 0
        return wider

    def __enter__(self) -> None:
        if self.here is not None:
            self.most += max(0, allocated_bytes(self.device) - self.here)
        self.before = torch.cuda.get_per_process_memory_fraction(self.device)
        share = self.most / torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(self.before, share), self.device)

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_per_process_memory_fraction(self.before, self.device)
        self.here = allocated_bytes(self.device)


def is_out_of_memory(error: RuntimeError) -> bool:
    """torch's own error, or a library's for which too little was left."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in WORDS)


def give_back(device: torch.device) -> None:
    """What the allocator holds and nobody uses."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
