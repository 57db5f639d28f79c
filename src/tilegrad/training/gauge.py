"""What a run measures of itself: seconds, images a second, the peak of a step, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..sim.peak import PeakBytes
from .reader import Example


class Gauge:
    def __init__(self, module: nn.Module, device: str):
        self.device = torch.device(device)
        kept = (*module.parameters(), *module.buffers())
        self._kept = sum(tensor.numel() * tensor.element_size() for tensor in kept)
        self._peaks: dict[Any, int] = {}
        self._seen: dict[Any, int] = {}
        self.peak_bytes = self.total = self.done = 0
        self.step_s = self._seconds = 0.0
        self._images = self._steps = 0
        self._losses: list[float] = []

    def begin(self, step: int, total: int) -> None:
        self.total, self.done = total, step

    @contextmanager
    def step(self, groups: list[list[Example]]) -> Iterator[None]:
        """Around the gradients of a step. The first of its shape plans, and is no measure of others. To count tensors
        costs some time on a CPU, so the second is counted, and stands for those that follow."""
        shapes = tuple((len(group), tuple(group[0].image.shape)) for group in groups)
        seen = self._seen[shapes] = self._seen.get(shapes, 0) + 1
        began = time.perf_counter()
        if self.device.type == "cuda" or seen <= 2:
            with PeakBytes(self.device) as peak:
                yield
            self._peaks[shapes] = peak.bytes + self._kept
        else:
            yield
        self.peak_bytes, self.step_s = self._peaks[shapes], time.perf_counter() - began
        if seen > 1:
            self._seconds, self._steps = self._seconds + self.step_s, self._steps + 1
            self._images += sum(map(len, groups))

    def count(self, loss: float) -> None:
        self._losses.append(loss)
        self.done += 1

    @property
    def images_per_s(self) -> float:
        return self._images / self._seconds if self._seconds else 0.0

    def figures(self) -> dict[str, float]:
        rate = self.images_per_s
        return {"seconds": round(self.step_s, 4), "images_per_s": round(rate, 4), "peak_bytes": self.peak_bytes}

    def left(self) -> str:
        seconds = int(self._seconds / max(1, self._steps) * max(0, self.total - self.done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def mean_loss(self) -> float:
        """Over the steps since this was last asked."""
        found, self._losses = self._losses, []
        return sum(found) / len(found) if found else float("nan")
