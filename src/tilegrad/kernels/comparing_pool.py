"""A max pool that does not remember where the largest elements were: backward compares what was read with the result.

torch keeps a place of eight bytes for every output. What a pool reads and makes is there for backward anyway, for the
rectifier before it and the convolution behind it. And without places forward is faster. On a CPU the largest of two
rows is found for many columns at once, and what is left of a window is a row; torch looks at one element after another,
1 to 5 ns each. The image is taken in pieces that stay in the cache. On a GPU it waits for memory alone. Where a process
shall be no larger than what is alive in it (`execution/heap.py`) torch's own is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..ops import Call, Place
from ..ops.channels import layout_of
from ..ops.pool import windows
from ..region import Slide
from .base import Kernel, first_result, op_of, whole_place
from .triton import MOST_ROWS, usable

PIECE = 2**17  # elements
MOST_TAPS = 255  # of a window


class ComparingPool(Kernel):
    chain = (frozenset({"max_pool1d", "max_pool2d"}),)
    holes = True

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        x = tiles[0][0]
        how = _How.of(calls[0], x, place or whole_place(calls[0], x.device))
        if how is None or not x.numel() or torch.compiler.is_compiling():
            return first_result(calls[0], tiles[0], place, x.device)
        found: Tensor = _Pool.apply(x, how) if torch.is_grad_enabled() else how.largest(x)  # type: ignore[no-untyped-call]
        return found


class _Pool(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: _How) -> Tensor:
        found = how.largest(x)
        ctx.how = how
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.how.gradient(grad, *ctx.saved_tensors), None


@dataclass(frozen=True)
class _Taps:
    """Along one dimension: where each element of the windows lies, and of which outputs; the rest is padding."""

    slide: Slide
    before: int
    size: int
    count: int
    each: tuple[tuple[slice, slice], ...]

    @classmethod
    def of(cls, slide: Slide, before: int, size: int, count: int) -> _Taps:
        found = []
        for tap in range(slide.kernel):
            shift = tap * slide.dilation - before
            low, high = max(0, -(shift // slide.stride)), min(count, (size - 1 - shift) // slide.stride + 1)
            if high > low:
                first = low * slide.stride + shift
                read = slice(first, first + (high - low - 1) * slide.stride + 1, slide.stride)
                found.append((read, slice(low, high)))
        return cls(slide, before, size, count, tuple(found))

    @cached_property
    def widest(self) -> list[tuple[slice, slice]]:
        """The first is one that all outputs have, if there is any."""
        return sorted(self.each, key=lambda tap: tap[1].start - tap[1].stop)

    @cached_property
    def overlap(self) -> bool:
        return (self.slide.kernel - 1) * self.slide.dilation >= self.slide.stride

    @cached_property
    def exact(self) -> bool:
        """Is every element in one window?"""
        return not self.overlap and sum(len(range(*read.indices(self.size))) for read, _ in self.each) == self.size


@dataclass(frozen=True)
class _How:
    """What is made of which part of an image."""

    call: Call
    place: Place
    taps: tuple[_Taps, ...]

    @classmethod
    def of(cls, call: Call, x: Tensor, place: Place) -> _How | None:
        """None where some output has no element that all have along a dimension, the first to be looked at."""
        axes = 2 if call.node.op == "max_pool2d" else 1
        befores = [before for before, _ in place.pad(call)[-axes:]]
        sides = zip(windows(call, axes), befores, x.shape[-axes:], place.out.shape[-axes:], strict=True)
        taps = tuple(_Taps.of(*side) for side in sides)
        able = all(t.each and t.widest[0][1] == slice(0, t.count) for t in taps)
        return cls(call, place, taps) if able else None

    @cached_property
    def apart(self) -> list[tuple[int, Any, Any]]:
        """For each element of a window: which of the columns that are taken apart it lies in, where, and of which
        outputs."""
        step, found = self.taps[-1].slide.stride, []
        for tap in product(*(t.each for t in self.taps)):
            column = tap[-1][0]
            within = slice(column.start // step, (column.stop - 1) // step + 1)
            read = (..., *(read for read, _ in tap[:-1]), within)
            found.append((column.start % step, read, (..., *(made for _, made in tap))))
        return found

    @cached_property
    def exact(self) -> bool:
        return all(t.exact for t in self.taps)

    def largest(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return self._without_data(x)
        if self._by_triton(x):
            from .triton.max_pool import largest

            return largest(x, self.taps)
        if not self._in_pieces(x):
            with torch.no_grad():
                return op_of(self.call).run(self.call, (x,), self.place)
        axes, out = len(self.taps), self.place.out.shape
        found = x.new_empty(out)
        planes, images = x.reshape(-1, *x.shape[-axes:]), found.view(-1, *out[-axes:])
        many = _at_once(planes)
        for some, made in zip(torch.split(planes, many), torch.split(images, many), strict=True):
            for dim, each in enumerate(self.taps[:-1]):
                some = _largest(some, 1 + dim, each, None)
            _largest(some, axes, self.taps[-1], made)
        return found

    def _without_data(self, x: Tensor) -> Tensor:
        """What is made, and for a moment what lies between rows and columns of a piece."""
        found, planes = x.new_empty(self.place.out.shape), x.flatten(0, -1 - len(self.taps))
        if len(self.taps) > 1:
            x.new_empty((min(len(planes), _at_once(planes)), self.taps[0].count, self.taps[1].size))
        return found

    def gradient(self, grad: Tensor, x: Tensor, found: Tensor) -> Tensor:
        if self._by_triton(x):
            from .triton.max_pool import gradient

            return gradient(grad, x, self.taps)
        if x.is_meta or self._in_pieces(x):
            return self._compared(grad, x, found)
        with torch.enable_grad():  # the places once more
            again = x.detach().requires_grad_()
            made = op_of(self.call).run(self.call, (again,), self.place)
        return torch.autograd.grad(made, again, grad)[0]

    def _by_triton(self, x: Tensor) -> bool:
        if not usable(x) or x.dim() != 4 or len(self.taps) != 2 or x.dtype == torch.float64:
            return False
        few = self.taps[0].slide.kernel * self.taps[1].slide.kernel <= MOST_TAPS
        return few and max(x.shape[0] * x.shape[1], self.taps[0].size, self.taps[0].count) <= MOST_ROWS

    @staticmethod
    def _in_pieces(x: Tensor) -> bool:
        """Channels that lie together are compared by torch's own as fast."""
        return x.device.type == "cpu" and layout_of(x) == torch.contiguous_format

    def _compared(self, grad: Tensor, x: Tensor, found: Tensor) -> Tensor:
        """Piece by piece; on tensors without data one piece stands for all."""
        axes, of_x = len(self.taps), x.new_empty(x.shape)  # one plane behind the other, whichever way the image lies
        every = [*(t.reshape(-1, *t.shape[-axes:]) for t in (grad, x, found)), of_x.view(-1, *x.shape[-axes:])]
        many = _at_once(of_x.flatten(0, -1 - axes))
        for pieces in zip(*(torch.split(t[:many] if x.is_meta else t, many) for t in every), strict=True):
            self._compare(*pieces)
        return of_x

    def _compare(self, grad: Tensor, x: Tensor, found: Tensor, of_x: Tensor) -> None:
        """The gradient of a window is its first element's that is as large as the largest; of one that has no numbers,
        the last one's. A comparison that makes ones and zeros takes a tenth of the time of one that makes booleans."""
        step = self.taps[-1].slide.stride
        columns = _apart(x, step)
        usual = x.is_meta or bool(isfinite(grad.sum()) and isfinite(found.sum()))
        if step == 1:
            given = [of_x]
        elif usual and self.exact:
            given = columns  # each is looked at once
        else:
            given = [torch.empty_like(each) for each in columns]
        if usual:
            self._compare_numbers(grad.clone(), columns, found, given)
        else:
            self._compare_any(grad, columns, found, given)
        if step > 1:
            _join(given, of_x)

    def _compare_numbers(self, left: Tensor, columns: Sequence[Tensor], found: Tensor, given: Sequence[Tensor]) -> None:
        """`left`: what no element has yet been given. It becomes zero where it is taken off."""
        for each in given if not self.exact else ():
            each.zero_()
        room = None if self.exact else torch.empty_like(found)
        for phase, read, made in self.apart:
            target, rest = given[phase][read], left[made]
            out = target if room is None else room[made]
            hit = torch.eq(columns[phase][read], found[made], out=out).mul_(rest)
            rest.sub_(hit)
            if room is not None:
                target.add_(hit)

    def _compare_any(self, grad: Tensor, columns: Sequence[Tensor], found: Tensor, given: Sequence[Tensor]) -> None:
        """Where a product with zero may be no number, and the largest of a window none."""
        for each in given:
            each.zero_()
        wrong, zero = found.isnan(), grad.new_zeros(())
        left = ~wrong
        for phase, read, made in self.apart:
            hit = columns[phase][read].eq(found[made]).logical_and_(left[made])
            given[phase][read].add_(torch.where(hit, grad[made], zero))
            left[made].logical_xor_(hit)
        for phase, read, made in reversed(self.apart) if wrong.any() else ():
            hit = columns[phase][read].isnan().logical_and_(wrong[made])
            given[phase][read].add_(torch.where(hit, grad[made], zero))
            wrong[made].logical_xor_(hit)


def _apart(x: Tensor, step: int) -> list[Tensor]:
    """Every `step`th column, from each of the first ones on. They are written to, so they are copies."""
    return [x] if step == 1 else [x[..., p::step].clone(memory_format=torch.contiguous_format) for p in range(step)]


def _join(columns: Sequence[Tensor], out: Tensor) -> None:
    """The other way round. Pairs of numbers are laid down as complex ones: half the time."""
    if len(columns) == 2 and out.shape[-1] % 2 == 0 and out.dtype in (torch.float32, torch.float64):
        torch.complex(*columns, out=torch.view_as_complex(out.view(*out.shape[:-1], -1, 2)))
        return
    for phase, each in enumerate(columns):
        out[..., phase :: len(columns)].copy_(each)


def _at_once(planes: Tensor) -> int:
    return max(1, PIECE // planes.shape[1:].numel())


def _largest(x: Tensor, dim: int, taps: _Taps, out: Tensor | None) -> Tensor:
    before = (slice(None),) * dim
    (first, every), *rest = taps.widest
    if rest and rest[0][1] == every:
        found = torch.maximum(x[(*before, first)], x[(*before, rest.pop(0)[0])], out=out)
    else:
        found = x[(*before, first)].clone() if out is None else out.copy_(x[(*before, first)])
    for read, compared in rest:
        target = found[(*before, compared)]
        torch.maximum(target, x[(*before, read)], out=target)
    return found
