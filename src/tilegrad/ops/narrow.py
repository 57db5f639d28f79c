"""Slices, splits and picks along one dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..region import POINT, Crop, Whole
from .base import Call, Op, Place, Read, Reads, Sample, along
from .registry import op


@op("slice")
class Slice(Op):
    """`x[..., start:end:step, ...]`. Along a tiled axis it is a crop; elsewhere it cuts channels."""

    view = True
    flops_each = 0.0

    def _cut(self, call: Call) -> tuple[int, Crop]:
        dim = call.dim()
        n = call.inputs[0].shape[dim]
        start, _, step = slice(call.attr("start"), call.attr("end"), call.attr("step", 1)).indices(n)
        return dim, Crop(start, call.out.shape[dim], step)

    def reads(self, call: Call) -> Reads:
        dim, crop = self._cut(call)
        return (tuple(Read(k, crop if k == dim else POINT) for k in range(len(call.out.shape))),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        (x,) = tiles
        dim, crop = self._cut(call)
        return x if crop.step == 1 else x[(slice(None),) * dim + (slice(None, None, crop.step),)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x[:, :, 2:-1, 1:] * 1, ((1, 2, 8, 7),))
        yield Sample(lambda x: x[:, 1:, ::2, 1::3] * 1, ((1, 3, 8, 9),), "steps")


@op("crop")
class CropBox(Slice):
    """A box of the input: what importers give for slices along several dimensions at once."""

    native = False
    view = False

    def reads(self, call: Call) -> Reads:
        ends = zip(call.attr("start"), call.attr("stop"), strict=True)
        return (tuple(Read(k, Crop(a, b - a)) for k, (a, b) in enumerate(ends)),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0].clone()  # the box that was read is the piece


@op("split", "split_with_sizes", "chunk", "tensor_split", "narrow", "unsafe_split", "unsafe_chunk")
class Split(Op):
    """One piece of a split: capture gives each piece a node of its own, with `start` and `length`."""

    view = True
    native = False
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        crop = Crop(call.attr("start", 0), call.out.shape[call.dim()])
        return (tuple(Read(k, crop if k == call.dim() else POINT) for k in range(len(call.out.shape))),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0]  # the box that was read is the piece

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.chunk(2, 1)[1] * x.chunk(2, 1)[0], ((1, 4, 5, 6),))
        yield Sample(lambda x: torch.split(x, [1, 3], 1)[1] * 1, ((1, 4, 5, 6),))
        yield Sample(lambda x: torch.split(x, 3, 2)[1] * 1, ((1, 2, 8, 6),), "rows")


@op("select", "unbind")
class Select(Op):
    """One index of a dimension; the dimension goes away."""

    view = True
    native = False
    flops_each = 0.0

    def reads(self, call: Call) -> Reads:
        return (along(call, [call.dim()], keep=False),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return tiles[0].select(call.dim(), call.attr("index"))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x[:, 1] * 1, ((1, 3, 5, 6),))
        yield Sample(lambda x: x.unbind(1)[2] * 1, ((1, 3, 5, 6),))
        yield Sample(lambda x: x[:, :, 1] * 1, ((1, 3, 5, 6),), "a row: whole")


@op("index_select", "select_scatter", "slice_scatter", "gather", "take_along_dim")
class AlongDim(Op):
    """Reads and writes anywhere along `dim`, and only there."""

    flops_each = 0.0

    def reads(self, call: Call) -> Reads | None:
        rank = len(call.out.shape)
        if call.node.op == "gather" or any(len(t.shape) not in (rank, rank - 1, 1) for t in call.inputs):
            return None
        dim = call.dim()
        return tuple(self._read(t.shape, dim, rank, i) for i, t in enumerate(call.inputs))

    @staticmethod
    def _read(shape: Sequence[int], dim: int, rank: int, i: int) -> tuple[Read, ...]:
        if i and len(shape) == 1 and rank != 2:
            return (Read(None, Whole(shape[0], 1)),)
        outs = [d for d in range(rank) if d != dim or len(shape) == rank]
        return tuple(Read(None, Whole(n, 1)) if d == dim else Read(d, POINT) for d, n in zip(outs, shape, strict=True))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.index_select(1, torch.tensor([2, 0])) * 1, ((1, 3, 5, 6),))
        yield Sample(lambda x, y: torch.select_scatter(x, y, 1, 0), ((1, 3, 5, 6), (1, 5, 6)))
