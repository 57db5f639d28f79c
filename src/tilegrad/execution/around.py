"""What holds while the steps of a pass run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .heap import served


@contextlib.contextmanager
def around(device: torch.device) -> Iterator[None]:
    """Records alone take notes for autograd. Casts are part of the graph: the mode the caller is in does not count."""
    real = device.type != "meta"
    precision = torch.autocast(device.type, enabled=False) if real else contextlib.nullcontext()
    with torch.no_grad(), precision, served(device):
        yield
