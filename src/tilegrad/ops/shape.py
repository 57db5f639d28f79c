"""Operators that only rearrange: permute, transpose, view, flatten, expand, casts and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from ..region import POINT, Chain, Repeat, Slide, Whole, Window
from . import aten
from .base import Call, Op, Place, Read, Reads, Sample, Seed, Weighted, whole
from .registry import op


@op("contiguous", "clone", "to", "_to_copy", "detach", "alias", "lift_fresh_copy", "_assert_tensor_metadata")
class Copy(Weighted):
    elementwise = True
    flops_each = 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.clone() * 2, ((1, 2, 5, 6),))
        yield Sample(lambda x: x.contiguous() + x.double(), ((1, 2, 5, 6),))


@op("permute", "transpose", "movedim", "t", "mT", "swapaxes", "numpy_T")
class Permute(Op):
    view = True
    flops_each = 0.0

    def order(self, call: Call) -> list[int]:
        """Output dimension `d` is input dimension `order[d]`, found by permuting the dimension numbers."""
        rank = len(call.inputs[0].shape)
        probe = torch.empty(tuple(range(1, rank + 1)), device="meta")  # sizes name the dimensions
        return [size - 1 for size in aten.call(call.node, [probe]).shape]

    def reads(self, call: Call) -> Reads:
        order = self.order(call)
        return (tuple(Read(order.index(k), POINT) for k in range(len(order))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.permute(0, 2, 3, 1), ((1, 2, 5, 6),))
        yield Sample(lambda x: x.transpose(1, -1).contiguous(), ((1, 2, 5, 6),))


@op("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
class ViewOp(Op):
    """A view keeps the order of elements, so it maps groups of neighbouring dimensions to groups of the same size. The
    first of a group drives the first of the other, in steps of what lies behind them: tokens are rows of pixels,
    windows are rows of rows. The others of a group that mixes are read whole."""

    view = True
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        before, after = call.inputs[0].shape, call.out.shape
        reads = [Read(None, Whole(n, 1)) for n in before]
        for ins, outs in view_groups(before, after):
            if ins and outs:
                reads[ins[0]] = Read(outs[0], _between(_size(before, ins[1:]), _size(after, outs[1:])))
        return (tuple(reads), *(whole(t.shape) for t in call.inputs[1:]))

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        """Flatten every group, take what is due of it, and shape it."""
        (x, *_), before, after = tiles, call.inputs[0].shape, call.out.shape
        groups = view_groups(before, after)
        if tuple(x.shape) == tuple(before) and place.out.shape == tuple(after):
            return x.reshape(after)
        x = x.reshape([_size(x.shape, ins) for ins, _ in groups])
        for dim, (ins, outs) in enumerate(groups):
            if not ins or not outs:
                continue
            start = place.out[outs[0]].lo * _size(after, outs[1:])
            start -= place.origin(call, 0, ins[0]) * _size(before, ins[1:])
            length = _size(place.out.shape, outs)
            if length != x.shape[dim]:
                x = x.narrow(dim, start, length)
        return x.reshape(place.out.shape)

    def is_native(self, call: Call) -> bool:
        return False

    def run_whole(self, call: Call, tensors: Sequence[Tensor], seed: Seed, device: torch.device) -> Tensor:
        """A value may lie otherwise here than where it was captured (strides of attention differ between kernels), and
        then torch's own view would be refused."""
        return tensors[0].reshape(call.out.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.view(1, 2, 3, 5, 6).transpose(1, 2).reshape(1, 6, 5, 6), ((1, 6, 5, 6),))
        yield Sample(lambda x: x.unsqueeze(2).squeeze(2) * 2, ((1, 2, 5, 6),))
        yield Sample(lambda x: x.flatten(2) * 2, ((1, 2, 5, 6),), "tokens are rows")
        yield Sample(lambda x: x.view(1, 2, 3, 2, 4) * 2, ((1, 2, 6, 4),), "windows of rows")
        yield Sample(lambda x: x.view(1, 2, 3, 8) * 2, ((1, 2, 6, 4),), "wider rows")
        yield Sample(lambda x: x.view(1, 2, 8, 3) * 2, ((1, 2, 4, 6),), "narrower rows")


Group = tuple[list[int], list[int]]


def view_groups(before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """Neighbouring dimensions of the input and those of the output that hold the same elements; dimensions of size 1
    go with what follows them."""
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs = [], []
        while i < len(before) and before[i] == 1:
            i += 1
        while j < len(after) and after[j] == 1:
            j += 1
        if i < len(before) and j < len(after):
            a, b = before[i], after[j]
            ins, outs, i, j = [i], [j], i + 1, j + 1
            while a != b:
                if a < b:
                    ins.append(i)
                    a, i = a * before[i], i + 1
                else:
                    outs.append(j)
                    b, j = b * after[j], j + 1
            groups.append((ins, outs))
        else:
            i, j = len(before), len(after)
    return groups


def _size(shape: Sequence[int], dims: Sequence[int]) -> int:
    return prod(shape[d] for d in dims)


def _between(inner_in: int, inner_out: int) -> Window:
    """From the leading dimension of a group to that of another, of which each holds so many elements."""
    if inner_in == inner_out:
        return POINT
    if inner_in == 1:
        return Slide(inner_out, inner_out)
    if inner_out == 1:
        return Repeat(inner_in)
    return Chain(Slide(inner_out, inner_out), Repeat(inner_in))


@op("expand", "broadcast_to")
class Expand(Weighted):
    view = True
    anywhere = True
    flops_each = 0.0

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0].expand(place.out.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: x * y.expand(1, 2, 5, 6), ((1, 2, 5, 6), (2, 1, 1)))
