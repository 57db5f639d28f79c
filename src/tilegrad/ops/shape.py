"""Operators that only rearrange: permute, transpose, view, flatten, expand, casts and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..region import POINT, Whole
from . import aten
from .base import Call, Op, Place, Read, Reads, Sample, pointwise, whole
from .registry import op


@op("contiguous", "clone", "to", "_to_copy", "type_as", "detach", "alias", "lift_fresh_copy", "_assert_tensor_metadata")
class Copy(Op):
    saves = ()

    def reads(self, call: Call) -> Reads:
        return (pointwise(call.inputs[0].shape, call.out.shape), *(whole(t.shape) for t in call.inputs[1:]))

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.clone() * 2, ((1, 2, 5, 6),))
        yield Sample(lambda x: x.contiguous() + x.double(), ((1, 2, 5, 6),))


@op("permute", "transpose", "movedim", "t", "mT", "swapaxes", "numpy_T")
class Permute(Op):
    saves = ()

    def order(self, call: Call) -> list[int]:
        """Output dimension `d` is input dimension `order[d]`, found by permuting the dimension numbers."""
        rank = len(call.inputs[0].shape)
        probe = torch.empty(tuple(range(1, rank + 1)), device="meta")  # sizes name the dimensions
        return [size - 1 for size in aten.call(call.node, [probe]).shape]

    def reads(self, call: Call) -> Reads:
        order = self.order(call)
        return (tuple(Read(order.index(k), POINT) for k in range(len(order))),)

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.permute(0, 2, 3, 1), ((1, 2, 5, 6),))
        yield Sample(lambda x: x.transpose(1, -1).contiguous(), ((1, 2, 5, 6),))


@op("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
class View(Op):
    """Dimensions that keep their size and their neighbours' products stay; the others mix and are read whole."""

    saves = ()

    def reads(self, call: Call) -> Reads:
        before, after = call.inputs[0].shape, call.out.shape
        kept = _kept_dims(before, after)
        first = tuple(Read(kept[k], POINT) if k in kept else Read(None, Whole(n, 1)) for k, n in enumerate(before))
        return (first, *(whole(t.shape) for t in call.inputs[1:]))

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0].reshape(place.out.shape)

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.view(1, 2, 3, 5, 6).transpose(1, 2).reshape(1, 6, 5, 6), ((1, 6, 5, 6),))
        yield Sample(lambda x: x.unsqueeze(2).squeeze(2) * 2, ((1, 2, 5, 6),))
        yield Sample(lambda x: x.flatten(2), ((1, 2, 5, 6),), "mixes the image axes")


def _kept_dims(before: Sequence[int], after: Sequence[int]) -> dict[int, int]:
    """Input dimension -> output dimension, where a view leaves a dimension as it is."""
    kept: dict[int, int] = {}
    i = j = 0
    while i < len(before) and j < len(after):
        if before[i] == after[j] and before[i] > 1:
            kept[i] = j
            i, j = i + 1, j + 1
        elif before[i] == 1:
            i += 1
        elif after[j] == 1:
            j += 1
        else:  # a group that mixes: grow both sides until their products agree
            a, b = before[i], after[j]
            i, j = i + 1, j + 1
            while a != b:
                if a < b:
                    a, i = a * before[i], i + 1
                else:
                    b, j = b * after[j], j + 1
    return kept


@op("expand", "expand_as", "broadcast_to")
class Expand(Op):
    saves = ()
    anywhere = True

    def reads(self, call: Call) -> Reads:
        return (pointwise(call.inputs[0].shape, call.out.shape), *(whole(t.shape) for t in call.inputs[1:]))

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0].expand(place.out.shape)

    def flops(self, call: Call) -> float:
        return 0.0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x, y: x * y.expand(1, 2, 5, 6), ((1, 2, 5, 6), (2, 1, 1)))
