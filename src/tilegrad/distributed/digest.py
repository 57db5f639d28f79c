"""Numbers that tell tensors apart: equal tensors have equal ones, and others almost never."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio, as torch's integers have it
SAMPLES = 4096


def digest(tensor: Tensor) -> Tensor:
    """Of all bytes, as one number on the tensor's device."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(torch.int64)
    places = torch.arange(1, words.numel() + 1, device=words.device) * _ODD
    mixed = (words ^ (words >> 29) ^ places) * _ODD
    return ((mixed ^ (mixed >> 32)) * (places | 1)).sum()


def digest_sample(tensor: Tensor) -> Tensor:
    """Of some elements from all over the tensor."""
    if tensor.numel() <= SAMPLES:
        return digest(tensor)
    at = torch.arange(SAMPLES, device=tensor.device) * tensor.numel() // SAMPLES
    return digest(tensor.detach()[torch.unravel_index(at, tensor.shape)])


def outline(tensor: Tensor) -> Tensor:
    """Two numbers on the tensor's device, for what was computed and may differ in its last bits: a sum with other
    weights for every element, and the length. Alike tensors have alike sums, measured by their length."""
    tensor = tensor.detach()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).double()
    places = torch.arange(1, flat.numel() + 1, device=flat.device, dtype=torch.float64)
    return torch.stack([(flat * torch.cos(places)).sum(), flat.norm()])


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Of two outlines: further apart than rounding brings them, even in half precision?"""
    if not all(map(isfinite, (*one, *other))):
        return any(map(isfinite, one)) != any(map(isfinite, other))
    return abs(one[0] - other[0]) > 0.05 * max(one[1], other[1])
