"""Numbers that tell tensors apart: equal tensors have equal ones, and others almost never."""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio, as torch's integers have it
_SAMPLES = 4096


def digest(tensor: Tensor) -> Tensor:
    """Of all bytes, as one number on the tensor's device."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(torch.int64)
    places = torch.arange(1, words.numel() + 1, device=words.device) * _ODD
    mixed = (words ^ (words >> 29) ^ places) * _ODD
    return ((mixed ^ (mixed >> 32)) * (places | 1)).sum()


def digest_sample(tensor: Tensor) -> Tensor:
    """Of some elements from all over the tensor."""
    if tensor.numel() <= _SAMPLES:
        return digest(tensor)
    at = torch.arange(_SAMPLES, device=tensor.device) * tensor.numel() // _SAMPLES
    return digest(tensor.detach()[torch.unravel_index(at, tensor.shape)])
