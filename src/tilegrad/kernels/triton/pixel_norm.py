"""Layer norm of pixels: rows of channels, many more than a row is long. torch has a worker for each row, which is idle
for the most part where rows are short; here it has several rows at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HELD = 2048  # elements of a worker, at least a row
WORKERS = 512  # of a backward pass: each has sums of its own


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that are one behind the other in memory; their mean, and one over their deviation, in single precision."""
    rows, length = x.shape
    found = torch.empty_like(x)
    mean, root = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    wide = triton.next_power_of_2(length)
    many = max(1, HELD // wide)
    _normalise[(triton.cdiv(rows, many),)](
        x, weight, bias, found, mean, root, rows, length, eps, weight is not None, bias is not None, many, wide
    )
    return found, mean, root


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, root: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows, and sums for weight and bias in single precision."""
    rows, length = x.shape
    found = torch.empty_like(x)
    wide = triton.next_power_of_2(length)
    many = max(1, HELD // wide)
    workers = min(WORKERS, triton.cdiv(rows, many))
    sums = torch.empty(2, workers, length, dtype=torch.float32, device=x.device)
    _gradients[(workers,)](
        grad, x, weight, mean, root, found, sums, sums[1], rows, length, workers, weight is not None, many, wide
    )
    by_weight, by_bias = sums.sum(1)
    return found, by_weight, by_bias


@triton.jit
def _normalise(
    x, weight, bias, out, means, roots, rows, length, eps,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, MANY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * MANY + tl.arange(0, MANY)).to(tl.int64)[:, None]
    at = tl.arange(0, WIDE)[None, :]
    there = (row < rows) & (at < length)
    x = tl.load(x + row * length + at, there, 0.0).to(tl.float32)
    mean = tl.sum(x, 1, keep_dims=True) / length
    apart = tl.where(there, x - mean, 0.0)
    root = 1.0 / tl.sqrt(tl.sum(apart * apart, 1, keep_dims=True) / length + eps)
    y = apart * root
    if WEIGHT:
        y = y * tl.load(weight + at, at < length, 0.0).to(tl.float32)
    if BIAS:
        y = y + tl.load(bias + at, at < length, 0.0).to(tl.float32)
    tl.store(out + row * length + at, y.to(out.dtype.element_ty), there)
    tl.store(means + row, mean, row < rows)
    tl.store(roots + row, root, row < rows)


@triton.jit
def _gradients(
    grad, x, weight, means, roots, out, by_weight, by_bias, rows, length, workers,
    WEIGHT: tl.constexpr, MANY: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    worker = tl.program_id(0)
    at = tl.arange(0, WIDE)[None, :]
    weights = tl.full([1, WIDE], 1.0, tl.float32)
    if WEIGHT:
        weights = tl.load(weight + at, at < length, 0.0).to(tl.float32)
    along = tl.zeros([MANY, WIDE], tl.float32)
    total = tl.zeros([MANY, WIDE], tl.float32)
    for block in range(worker, tl.cdiv(rows, MANY), workers):
        row = (block * MANY + tl.arange(0, MANY)).to(tl.int64)[:, None]
        there = (row < rows) & (at < length)
        mean = tl.load(means + row, row < rows, 0.0)
        root = tl.load(roots + row, row < rows, 0.0)
        y = tl.where(there, (tl.load(x + row * length + at, there, 0.0).to(tl.float32) - mean) * root, 0.0)
        dy = tl.load(grad + row * length + at, there, 0.0).to(tl.float32)
        along += dy * y
        total += dy
        dy = dy * weights
        dx = (dy - y * (tl.sum(dy * y, 1, keep_dims=True) / length) - tl.sum(dy, 1, keep_dims=True) / length) * root
        tl.store(out + row * length + at, dx.to(out.dtype.element_ty), there)
    each = worker * length + at
    tl.store(by_weight + each, tl.sum(along, 0, keep_dims=True), at < length)
    tl.store(by_bias + each, tl.sum(total, 0, keep_dims=True), at < length)
