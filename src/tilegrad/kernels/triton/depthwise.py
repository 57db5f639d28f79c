"""Convolutions with a kernel for each channel, and stride 1, of images whose channels lie together. They read and write
little more than a copy; cuDNN takes four to ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS, CHANNELS = 16, 64  # of a worker
SUMMED = 1024  # pixels times channels of a worker that adds up gradients of weights
WORKERS = 2048


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: Sequence[int], before: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """`size`: of what is made; `before`: zeros in front of the image, along rows and columns."""
    samples, channels, height, width = x.shape
    out = torch.empty(
        (samples, channels, *size), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    taps = weight.reshape(channels, -1).t().contiguous()  # of one tap those of all channels
    grid = triton.cdiv(size[1], COLUMNS), samples * size[0], triton.cdiv(channels, CHANNELS)
    _convolve[grid](
        x, taps, bias, out, height, width, channels, *size, *_strides(x), *_strides(out), *before,
        *dilation, *weight.shape[2:], bias is not None, COLUMNS, CHANNELS,
    )  # fmt: skip
    return out


def of_image(
    grad: Tensor, weight: Tensor, size: Sequence[int], before: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The gradient of an image of this size: the same with the kernel turned around."""
    turned = [d * (k - 1) - b for d, k, b in zip(dilation, weight.shape[2:], before, strict=True)]
    return convolve(grad, weight.flip(2, 3), None, size, turned, dilation)


def of_weight(
    grad: Tensor, x: Tensor, kernel: Sequence[int], before: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """In single precision."""
    samples, channels, height, width = x.shape
    wide = triton.next_power_of_2(kernel[1])
    many = min(32, triton.next_power_of_2(channels))
    columns = max(1, SUMMED * 4 // (many * wide))
    blocks, rows = triton.cdiv(channels, many), samples * grad.shape[2]
    each = triton.cdiv(rows, min(rows, max(1, WORKERS // (blocks * kernel[0]))))
    parts = triton.cdiv(rows, each)
    sums = torch.empty(parts, *kernel, channels, dtype=torch.float32, device=x.device)
    _of_weight[(kernel[0], parts, blocks)](
        x, grad, sums, height, width, channels, *grad.shape[2:], *_strides(x), *_strides(grad), *before, *dilation,
        rows, each, *kernel, wide, columns, many,
    )  # fmt: skip
    return sums.sum(0).permute(2, 0, 1)[:, None]


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(2), x.stride(3)


@triton.jit
def _convolve(
    x, taps, bias, out, height, width, channels, out_height, out_width, x_n, x_h, x_w, out_n, out_h, out_w,
    before_h, before_w, apart_h, apart_w,
    TALL: tl.constexpr, WIDE: tl.constexpr, BIAS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    far = tl.zeros([1, 1], tl.int64)  # images may have more than 2³¹ elements
    sample, row = far + tl.program_id(1) // out_height, far + tl.program_id(1) % out_height
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    known = channel < channels
    total = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    if BIAS:
        total += tl.load(bias + channel, known, 0.0).to(tl.float32)
    for tall in tl.static_range(TALL):
        at_h = row + tall * apart_h - before_h
        inside = (at_h >= 0) & (at_h < height)
        line = x + sample * x_n + at_h * x_h + channel
        for wide in tl.static_range(WIDE):
            at_w = column + wide * apart_w - before_w
            found = tl.load(line + at_w * x_w, inside & (at_w >= 0) & (at_w < width) & known, 0.0)
            tap = tl.load(taps + (tall * WIDE + wide) * channels + channel, known, 0.0)
            total += found.to(tl.float32) * tap.to(tl.float32)
    to = out + sample * out_n + row * out_h + column * out_w + channel
    tl.store(to, total.to(out.dtype.element_ty), (column < out_width) & known)


@triton.jit
def _of_weight(
    x, grad, sums, height, width, channels, out_height, out_width, x_n, x_h, x_w, g_n, g_h, g_w,
    before_h, before_w, apart_h, apart_w, rows, each,
    TALL: tl.constexpr, WIDE: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tall, part = tl.program_id(0), tl.program_id(1)
    tap = tl.arange(0, TAPS)[:, None, None]
    column = tl.arange(0, COLUMNS)[None, :, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, None, :]
    known = channel < channels
    total = tl.zeros([TAPS, COLUMNS, CHANNELS], tl.float32)
    far = tl.zeros([], tl.int64)  # images may have more than 2³¹ elements
    for line in range(part * each, tl.minimum((part + 1) * each, rows)):
        sample, row = far + line // out_height, far + line % out_height
        at_h = row + tall * apart_h - before_h
        if (at_h >= 0) & (at_h < height):
            read = x + sample * x_n + at_h * x_h + channel
            made = grad + sample * g_n + row * g_h + channel
            for first in range(0, out_width, COLUMNS):
                here = first + column
                dy = tl.load(made + here * g_w, (here < out_width) & known, 0.0)
                at_w = here + tap * apart_w - before_w
                found = tl.load(read + at_w * x_w, (at_w >= 0) & (at_w < width) & (tap < WIDE) & known, 0.0)
                total += found.to(tl.float32) * dy.to(tl.float32)
    found = tl.sum(total, 1)
    tap = tl.arange(0, TAPS)[:, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    to = sums + ((part * TALL + tall) * WIDE + tap) * channels + channel
    tl.store(to, found, (tap < WIDE) & (channel < channels))
