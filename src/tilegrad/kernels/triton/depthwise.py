"""Convolutions with a kernel for each channel, and stride 1, of images whose channels lie together. They read and write
little more than a copy; cuDNN takes four to ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4  # of a worker, at most four: a line of the image that it has read is used in all of them
COLUMNS, CHANNELS, WARPS = 32, 32, 2
SUMMED = 2048  # elements that a worker holds of each of four sums, where it adds up gradients of weights
OF_WEIGHT = 4  # warps
WORKERS = 1024
# Where each size that is a multiple of 16 were a kernel of its own, tiles at borders would be waiting for a compiler
IMAGE = ("height", "width", "out_height", "out_width", "before_h", "before_w", "apart_h", "apart_w")
VARIES = {"_convolve": (*IMAGE, "groups"), "_of_weight": (*IMAGE, "rows", "each")}


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
    turned: bool = False,
) -> Tensor:
    """`size`: of what is made; `before`: zeros in front of the image, along rows and columns; `turned`: the kernel, by
    half a turn."""
    samples, channels, height, width = x.shape
    out = torch.empty((samples, channels, *size), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    kernel, blocks = weight.shape[2:], triton.cdiv(channels, CHANNELS)
    lines, apart = kernel[0] + 2 * (ROWS - 1), blocks * CHANNELS
    taps = torch.empty(lines, kernel[1], apart, dtype=torch.float32, device=x.device)
    _lay_out[(lines, blocks)](weight.contiguous(), taps, channels, apart, *kernel, turned, ROWS, CHANNELS, num_warps=1)
    groups = triton.cdiv(size[0], ROWS * dilation[0]) * dilation[0]
    _convolve[(triton.cdiv(size[1], COLUMNS), samples * groups, blocks)](
        x, taps, bias, out, height, width, channels, apart, *size, groups, *_strides(x), *_strides(out), *before,
        *dilation, *kernel, bias is not None, ROWS, COLUMNS, CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return out


def of_image(
    grad: Tensor, weight: Tensor, size: Sequence[int], before: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The gradient of an image of this size: the same with the kernel turned around."""
    pads = [d * (k - 1) - b for d, k, b in zip(dilation, weight.shape[2:], before, strict=True)]
    return convolve(grad, weight, None, size, pads, dilation, turned=True)


def of_weight(grad: Tensor, x: Tensor, kernel: Sequence[int], before: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """In single precision."""
    samples, channels, height, width = x.shape
    wide = triton.next_power_of_2(kernel[1])
    many = min(32, triton.next_power_of_2(channels))
    columns = max(1, SUMMED // (many * wide))
    lines, blocks, rows = triton.cdiv(kernel[0], 4), triton.cdiv(channels, many), samples * height
    each = triton.cdiv(rows, min(rows, max(1, WORKERS // (blocks * lines))))
    parts = triton.cdiv(rows, each)
    sums = torch.empty(parts, *kernel, channels, dtype=torch.float32, device=x.device)
    _of_weight[(lines, parts, blocks)](
        x, grad, sums, height, width, channels, *grad.shape[2:], *_strides(x), *_strides(grad), *before, *dilation,
        rows, each, *kernel, wide, columns, many, num_warps=OF_WEIGHT,
    )  # fmt: skip
    return sums.sum(0).permute(2, 0, 1)[:, None]


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(2), x.stride(3)


@triton.jit
def _lay_out(
    weight, taps, channels, apart,
    TALL: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Of each tap those of all channels, one behind the other, with lines of zeros above and below."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tall = tl.zeros([CHANNELS], tl.int32) + tl.program_id(0) - (ROWS - 1)
    there = (tall >= 0) & (tall < TALL) & (channel < channels)
    for wide in tl.static_range(WIDE):
        at = tall * WIDE + wide
        if TURNED:
            at = TALL * WIDE - 1 - at
        found = tl.load(weight + channel * (TALL * WIDE) + at, there, 0.0).to(tl.float32)
        tl.store(taps + (tl.program_id(0) * WIDE + wide) * apart + channel, found)


@triton.jit(do_not_specialize=VARIES["_convolve"])
def _convolve(
    x, taps, bias, out, height, width, channels, apart, out_height, out_width, groups,
    x_n, x_h, x_w, out_n, out_h, out_w, before_h, before_w, apart_h, apart_w,
    TALL: tl.constexpr, WIDE: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A worker makes up to four rows that are as far apart as the kernel's own. Around the kernel lie zeros."""
    far = tl.zeros([1, 1], tl.int64)  # images may have more than 2³¹ elements
    sample, group = far + tl.program_id(1) // groups, far + tl.program_id(1) % groups
    row = group // apart_h * (apart_h * ROWS) + group % apart_h
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    known = channel < channels
    first = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    if BIAS:
        first += tl.load(bias + channel, known, 0.0).to(tl.float32)
    second, third, fourth = first, first, first
    line = WIDE * apart
    for tall in range(TALL + ROWS - 1):
        at_h = row + tall * apart_h - before_h
        inside = (at_h >= 0) & (at_h < height) & known
        read = x + sample * x_n + at_h * x_h + channel
        tap = taps + (tall + ROWS - 1) * line + channel
        for wide in tl.static_range(WIDE):
            at_w = column + wide * apart_w - before_w
            found = tl.load(read + at_w * x_w, inside & (at_w >= 0) & (at_w < width), 0.0).to(tl.float32)
            first += found * tl.load(tap + wide * apart)
            if ROWS > 1:
                second += found * tl.load(tap + wide * apart - line)
            if ROWS > 2:
                third += found * tl.load(tap + wide * apart - 2 * line)
            if ROWS > 3:
                fourth += found * tl.load(tap + wide * apart - 3 * line)
    to = out + sample * out_n + column * out_w + channel
    there = (column < out_width) & known
    _put(to, out_h, row, out_height, first, there)
    if ROWS > 1:
        _put(to, out_h, row + apart_h, out_height, second, there)
    if ROWS > 2:
        _put(to, out_h, row + 2 * apart_h, out_height, third, there)
    if ROWS > 3:
        _put(to, out_h, row + 3 * apart_h, out_height, fourth, there)


@triton.jit
def _put(to, out_h, row, out_height, found, there):
    tl.store(to + row * out_h, found.to(to.dtype.element_ty), there & (row < out_height))


@triton.jit(do_not_specialize=VARIES["_of_weight"])
def _of_weight(
    x, grad, sums, height, width, channels, out_height, out_width, x_n, x_h, x_w, g_n, g_h, g_w,
    before_h, before_w, apart_h, apart_w, rows, each,
    TALL: tl.constexpr, WIDE: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A worker adds up four lines of the kernel, over some rows of the image."""
    tall, part = tl.program_id(0) * 4, tl.program_id(1)
    tap = tl.arange(0, TAPS)[:, None, None]
    column = tl.arange(0, COLUMNS)[None, :, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, None, :]
    known = channel < channels
    first = tl.zeros([TAPS, COLUMNS, CHANNELS], tl.float32)
    second, third, fourth = first, first, first
    far = tl.zeros([1, 1, 1], tl.int64)  # images may have more than 2³¹ elements
    for line in range(part * each, tl.minimum((part + 1) * each, rows)):
        sample, at_h = far + line // height, far + line % height
        read = x + sample * x_n + at_h * x_h + channel
        row = at_h + before_h - tall * apart_h
        made = grad + sample * g_n + channel
        for begin in range(0, out_width, COLUMNS):
            here = begin + column
            at_w = here + tap * apart_w - before_w
            found = tl.load(read + at_w * x_w, (at_w >= 0) & (at_w < width) & (tap < WIDE) & known, 0.0).to(tl.float32)
            there = (here < out_width) & known
            first += found * _line(made + here * g_w, g_h, row, out_height, there)
            second += found * _line(made + here * g_w, g_h, row - apart_h, out_height, there)
            third += found * _line(made + here * g_w, g_h, row - 2 * apart_h, out_height, there)
            fourth += found * _line(made + here * g_w, g_h, row - 3 * apart_h, out_height, there)
    tap = tl.arange(0, TAPS)[:, None]
    channel = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    line = tl.zeros([1, 1], tl.int32) + tall
    to = sums + ((part * TALL + line) * WIDE + tap) * channels + channel
    there = (tap < WIDE) & (channel < channels)
    tl.store(to, tl.sum(first, 1), there)
    tl.store(to + WIDE * channels, tl.sum(second, 1), there & (line + 1 < TALL))
    tl.store(to + 2 * WIDE * channels, tl.sum(third, 1), there & (line + 2 < TALL))
    tl.store(to + 3 * WIDE * channels, tl.sum(fourth, 1), there & (line + 3 < TALL))


@triton.jit
def _line(made, g_h, row, out_height, there):
    return tl.load(made + row * g_h, there & (row >= 0) & (row < out_height), 0.0).to(tl.float32)
