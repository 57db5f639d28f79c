"""Max pools of images, whichever of channels and columns lie together. Forward reads and writes, and no more; backward
finds in each window the first of the largest elements, a byte for each, and then gathers for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # elements of a row for a worker


def largest(x: Tensor, taps: Sequence[Any]) -> Tensor:
    """`taps`: along rows and columns, with their slide, what is before the image, its size, and how many are made."""
    x, last = _laid(x)
    found = _empty(x, [t.count for t in taps], x.dtype, last)
    _look(x, found, taps, last, place=False)
    return found


def gradient(grad: Tensor, x: Tensor, taps: Sequence[Any]) -> Tensor:
    x, last = _laid(x)
    rows, columns = taps
    places = _empty(x, [t.count for t in taps], torch.uint8, last)
    _look(x, places, taps, last, place=True)
    grad = grad.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    found = _empty(x, x.shape[2:], x.dtype, last)
    samples, channels, height, width = x.shape
    wide, many = (width * channels, samples) if last else (width, samples * channels)
    spans = [((t.slide.kernel - 1) * t.slide.dilation) // t.slide.stride + 1 for t in taps]
    _gather[(triton.cdiv(wide, BLOCK), height, many)](
        grad, places, found, height, width, channels if last else 1, rows.count, columns.count, wide,
        rows.before, columns.before, rows.slide.stride, columns.slide.stride, rows.slide.dilation,
        columns.slide.dilation, rows.slide.kernel, columns.slide.kernel, *spans, BLOCK,
    )  # fmt: skip
    return found


def _look(x: Tensor, made: Tensor, taps: Sequence[Any], last: bool, *, place: bool) -> None:
    rows, columns = taps
    samples, channels = x.shape[:2]
    n, c, h, w = x.stride()
    wide, many = (columns.count * channels, samples) if last else (columns.count, samples * channels)
    _largest[(triton.cdiv(wide, BLOCK), rows.count, many)](
        x, made, rows.size, columns.size, channels if last else 1, rows.count, wide, n, c, h, w, channels,
        rows.before, columns.before, rows.slide.stride, columns.slide.stride, rows.slide.dilation,
        columns.slide.dilation, rows.slide.kernel, columns.slide.kernel, last, place, BLOCK,
    )  # fmt: skip


def _laid(x: Tensor) -> tuple[Tensor, bool]:
    """With channels or columns one behind the other; is it channels?"""
    if x.stride(1) == 1 and x.shape[1] > 1:
        return x, True
    return (x if x.stride(3) == 1 else x.contiguous()), False


def _empty(x: Tensor, size: Sequence[int], dtype: torch.dtype, last: bool) -> Tensor:
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty((*x.shape[:2], *size), dtype=dtype, device=x.device, memory_format=layout)


@triton.jit
def _largest(
    x, out, height, width, inner, rows, wide, sn, sc, sh, sw, channels, before_h, before_w, stride_h, stride_w, dil_h,
    dil_w, KH: tl.constexpr, KW: tl.constexpr, LAST: tl.constexpr, PLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < wide
    column, channel = at // inner, at % inner
    start = x + image * sn + channel if LAST else x + (image // channels) * sn + (image % channels) * sc
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.full([BLOCK], 255, tl.int32)
    for tap in tl.static_range(KH * KW):
        h = row * stride_h - before_h + (tap // KW) * dil_h
        w = column * stride_w - before_w + (tap % KW) * dil_w
        inside = there & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        value = tl.load(start + h.to(tl.int64) * sh + w.to(tl.int64) * sw, inside, float("-inf")).to(tl.float32)
        larger = inside & ((value > best) | (value != value) | (place == 255))
        best = tl.where(larger, value, best)
        place = tl.where(larger, tap, place)
    target = out + (image * rows + row) * wide + at
    if PLACE:
        tl.store(target, place.to(tl.uint8), there)
    else:
        tl.store(target, best.to(out.dtype.element_ty), there)


@triton.jit
def _gather(
    grad, places, out, height, width, inner, rows, columns, wide, before_h, before_w, stride_h, stride_w, dil_h, dil_w,
    KH: tl.constexpr, KW: tl.constexpr, SPAN_H: tl.constexpr, SPAN_W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < wide
    column, channel = at // inner, at % inner
    total = tl.zeros([BLOCK], tl.float32)
    for pair in tl.static_range(SPAN_H * SPAN_W):
        oh = (row + before_h) // stride_h - pair // SPAN_W
        ow = (column + before_w) // stride_w - pair % SPAN_W
        from_h, from_w = row + before_h - oh * stride_h, column + before_w - ow * stride_w
        inside = there & (oh >= 0) & (oh < rows) & (ow >= 0) & (ow < columns)
        inside = inside & (from_h % dil_h == 0) & (from_w % dil_w == 0)
        tap_h, tap_w = from_h // dil_h, from_w // dil_w
        inside = inside & (tap_h < KH) & (tap_w < KW)
        source = ((image * rows + oh) * columns + ow) * inner + channel
        place = tl.load(places + source, inside, 255).to(tl.int32)
        part = tl.load(grad + source, inside, 0.0).to(tl.float32)
        total += tl.where(inside & (place == tap_h * KW + tap_w), part, 0.0)
    tl.store(out + (image * height + row) * wide + at, total.to(out.dtype.element_ty), there)
