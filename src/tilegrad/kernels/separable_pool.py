"""A max pool on a CPU where nobody asks which element was the largest: along one dimension, then along the other.

torch looks at each window's elements one after another, 1 to 5 ns each, and remembers where the largest was, which only
a gradient needs. The largest of two rows is found for many columns at once, and what is left of a window is a row. The
image is taken in pieces that stay in the cache; so there is also less in between than torch's places would need. Where
a process shall be no larger than what is alive in it (`execution/heap.py`) torch's own is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ops import Call, Place
from ..ops.channels import layout_of
from ..ops.pool import windows
from ..region import Slide
from .base import Kernel, first_result, whole_place

PIECE = 2**18  # elements


class SeparablePool(Kernel):
    chain = (frozenset({"max_pool1d", "max_pool2d"}),)
    devices = frozenset({"cpu"})
    holes = True

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        call, x = calls[0], tiles[0][0]
        here = place or whole_place(call, x.device)
        axes = 2 if call.node.op == "max_pool2d" else 1
        slides, out = windows(call, axes), here.out.shape
        befores = [before for before, _ in here.pad(call)[-axes:]]
        taps = [_taps(*each) for each in zip(slides, befores, x.shape[-axes:], out[-axes:], strict=True)]
        recorded = torch.is_grad_enabled() and x.requires_grad
        laid = x.device.type == "cpu" and layout_of(x) == torch.contiguous_format
        if recorded or not laid or not all(taps) or not x.numel() or torch.compiler.is_compiling():
            return first_result(call, tiles[0], place, x.device)
        found = x.new_empty(out)
        planes, images = x.reshape(-1, *x.shape[-axes:]), found.view(-1, *out[-axes:])
        many = max(1, PIECE // planes[0].numel())
        for some, made in zip(torch.split(planes, many), torch.split(images, many), strict=True):
            for dim, each in enumerate(taps[:-1]):
                some = _largest(some, 1 + dim, each, None)
            _largest(some, axes, taps[-1], made)
        return found


Taps = list[tuple[slice, slice]]  # of what is read, and of what that is compared with


def _taps(slide: Slide, before: int, size: int, count: int) -> Taps:
    """Where each element of a window lies along one dimension, and for which outputs; the rest is padding. Nothing, if
    there is none that all outputs have: the first to be looked at."""
    found: Taps = []
    for tap in range(slide.kernel):
        shift = tap * slide.dilation - before
        low, high = max(0, -(shift // slide.stride)), min(count, (size - 1 - shift) // slide.stride + 1)
        if high > low:
            first = low * slide.stride + shift
            read = slice(first, first + (high - low - 1) * slide.stride + 1, slide.stride)
            found.append((read, slice(low, high)))
    found.sort(key=lambda tap: tap[1].start - tap[1].stop)
    return found if found and found[0][1] == slice(0, count) else []


def _largest(x: Tensor, dim: int, taps: Taps, out: Tensor | None) -> Tensor:
    def part(of: Tensor, which: slice) -> Tensor:
        return of[(slice(None),) * dim + (which,)]

    (first, every), *rest = taps
    if rest and rest[0][1] == every:
        found = torch.maximum(part(x, first), part(x, rest.pop(0)[0]), out=out)
    else:
        found = part(x, first).clone() if out is None else out.copy_(part(x, first))
    for read, compared in rest:
        target = part(found, compared)
        torch.maximum(target, part(x, read), out=target)
    return found
