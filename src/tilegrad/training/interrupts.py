"""Ctrl-C and SIGTERM: they end a run between two steps, whatever they fall into.

Work that can be thrown away is done inside `droppable()`: there a signal is a KeyboardInterrupt at once. Elsewhere,
while weights change or a checkpoint is written, it waits for the next `droppable()`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """`with Interrupts() as interrupts:` around a run. together: the ranks of a mesh stop at the same step, so that
    none of them waits for another."""

    def __init__(self, *, together: bool = False):
        self.signal = 0
        self._together, self._droppable = together, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._arrived) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _arrived(self, number: int, frame: Any) -> None:
        self.signal = number
        if self._droppable:
            raise KeyboardInterrupt

    @contextmanager
    def droppable(self) -> Iterator[None]:
        self.check()
        self._droppable = not self._together
        try:
            yield
        finally:
            self._droppable = False
        if not self._together:
            self.check()  # someone in between may have taken the interrupt for his own, as a planner does

    def check(self) -> None:
        if self._together:
            told = torch.tensor([self.signal])
            if dist.get_backend() == "nccl":
                told = told.cuda()
            dist.all_reduce(told, dist.ReduceOp.MAX)
            self.signal = int(told)
        if self.signal:
            raise KeyboardInterrupt
