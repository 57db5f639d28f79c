"""Kernels that are written in Triton, which comes with torch for GPUs. Where it does not work torch's own are used."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

MOST_ROWS = 65535  # of an image, or of all samples: what a GPU can count along a launch's second and third axis
_log = logging.getLogger(__name__)


@cache
def works_on(device: torch.device) -> bool:
    """Does a kernel run there? It is built first, for which there must be a compiler."""
    try:
        from .pixel_norm import normalise

        normalise(torch.ones(4, 16, dtype=torch.bfloat16, device=device), None, None, 1e-5)
    except Exception as error:  # whatever keeps it from being built: torch's own kernels are slower, and as good
        _log.info("no Triton kernels on %s: %s", device, error)
        return False
    return True


def usable(x: Tensor) -> bool:
    """On this tensor; nothing is tried out while a step is recorded."""
    return x.is_cuda and x.numel() > 0 and works_on(x.device)
