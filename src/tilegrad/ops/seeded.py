"""Random operators that have no rule by place: they run whole, from a seed of their own, so that a node that is run
again draws the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .base import Call, Op, Place, Seed


class Seeded(Op):
    random = True
    repeats = False

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        with seeded(place.seed, place.device):
            return super().run(call, tiles, place)


@contextlib.contextmanager
def seeded(seed: Seed, device: torch.device | None) -> Iterator[None]:
    """Draw from `seed`, and leave torch's generators as they were."""
    assert isinstance(seed, int)
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices, device_type="cuda"):
        torch.default_generator.manual_seed(seed & (1 << 63) - 1)
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed & (1 << 63) - 1)
        yield
