"""Adaptive pooling. Few outputs over a large image are a reduction into bins; otherwise it is local."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ..region import POINT, Adaptive, Box, Interval, Whole
from .base import Call, Place, Read, Reads, Reduction, Sample
from .registry import op

FEW = 8  # inputs per output from which bins are folded rather than tiled


class _Adaptive(Reduction):
    binned = True

    def reads(self, call: Call) -> Reads:
        shape, out, rank = call.inputs[0].shape, call.out.shape, len(call.inputs[0].shape)
        reads = [Read(d, POINT) for d in range(rank - self.spatial)]
        for d in range(rank - self.spatial, rank):
            folded = out[d] == 1 or shape[d] >= FEW * out[d]
            reads.append(Read(None, Whole(shape[d], 1)) if folded else Read(d, Adaptive(shape[d], out[d])))
        return (tuple(reads),)

    def bins(self, call: Call, place: Place, dim: int) -> list[Interval]:
        """For each output of the place along `dim`, the part of its bin inside the tile, in tile coordinates."""
        n, m = call.inputs[0].shape[dim], call.out.shape[dim]
        tile, window = place.reads[0][dim].clip(n), Adaptive(n, m)
        return [window.reads(o, o + 1).shift(-tile.lo).clip(tile.size) for o in range(*place.out[dim])]

    def flops(self, call: Call) -> float:
        return call.inputs[0].size / max(1, call.out.size)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return self.finish(call, self.partial(call, tiles[0], place), place)

    def finish(self, call: Call, total: tuple[Tensor, ...], place: Place | None = None) -> Tensor:
        return total[0]


@op("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
class AdaptiveAvg(_Adaptive):
    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        total = tile.to(torch.float32) if tile.dtype in (torch.float16, torch.bfloat16) else tile
        for dim in range(tile.dim() - self.spatial, tile.dim()):
            total = torch.stack([total.narrow(dim, b.lo, b.size).sum(dim) for b in self.bins(call, place, dim)], dim)
        return (total,)

    def finish(self, call: Call, total: tuple[Tensor, ...], place: Place | None = None) -> Tensor:
        result, rank = total[0], total[0].dim()
        whole = place or Place(Box.full(call.out.shape), (Box.full(call.inputs[0].shape),))
        if all(n == 1 for n in call.out.shape[-self.spatial :]):
            return (result / prod(call.inputs[0].shape[-self.spatial :])).to(getattr(torch, call.out.dtype))
        for dim in range(rank - self.spatial, rank):
            counts = [span.size for span in self.bins(call, whole, dim)]
            sizes = torch.tensor(counts, dtype=result.dtype, device=result.device)
            result = result / sizes.view(-1, *(1 for _ in range(rank - 1 - dim)))
        return result.to(getattr(torch, call.out.dtype))

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        full = Place(Box.full(call.out.shape), place.reads)
        return self.finish(call, self.partial(call, tile, full))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 3, 9, 7),), "global")
        yield Sample(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), ((1, 3, 9, 8),), "local")
        yield Sample(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ((1, 2, 19, 25),), "bins")
        yield Sample(lambda x: F.adaptive_avg_pool1d(x, 4), ((1, 2, 10),))
        yield Sample(lambda x: F.adaptive_avg_pool3d(x, 1), ((1, 2, 4, 5, 3),))


@op("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
class AdaptiveMax(_Adaptive):
    """The winner of a bin is the first maximum in raster order of the whole image, as torch picks it."""

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        image = tile.shape[-self.spatial :]
        axes = range(tile.dim() - self.spatial, tile.dim())
        values, places = [], []
        for cell in product(*(self.bins(call, place, dim) for dim in axes)):
            part = tile
            for dim, span in zip(axes, cell, strict=True):
                part = part.narrow(dim, span.lo, span.size)
            best, at = self._first(call, part, cell, image, place)
            values.append(best)
            places.append(at)
        shape = (*tile.shape[: -self.spatial], *(place.out[dim].size for dim in axes))
        return torch.stack(values, -1).reshape(shape), torch.stack(places, -1).reshape(shape)

    def _first(
        self, call: Call, part: Tensor, cell: tuple[Interval, ...], image: Sequence[int], place: Place
    ) -> tuple[Tensor, Tensor]:
        if not part.numel():
            lead = part.shape[: -self.spatial]
            return part.new_full(lead, float("-inf")), torch.full(lead, -1, dtype=torch.int64, device=part.device)
        flat = part.flatten(-self.spatial)
        at = flat.max(-1).indices
        best = flat.gather(-1, at.unsqueeze(-1)).squeeze(-1)
        coords = torch.unravel_index(at, part.shape[-self.spatial :])
        whole = torch.zeros_like(at)
        for axis, (coord, span) in enumerate(zip(coords, cell, strict=True)):
            dim = axis - self.spatial
            whole = whole * call.inputs[0].shape[dim] + coord + span.lo + place.origin(call, 0, dim)
        return best, whole

    def combine(self, call: Call, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (b[1] < 0)) | ((a[0] == b[0]) & (a[1] >= 0) & (a[1] < b[1]))
        return torch.where(first, a[0], b[0]), torch.where(first, a[1], b[1])

    def combine_all(self, call: Call, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        values, places = parts
        best = values.amax(0)
        none = torch.iinfo(places.dtype).max
        first = torch.where((places >= 0) & ((values == best) | values.isnan()), places, none).amin(0)
        return best, torch.where(first == none, -1, first)

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        at = total[1].detach().flatten(-self.spatial)
        inside = torch.ones_like(at, dtype=torch.bool)
        local, rest = torch.zeros_like(at), at
        strides: list[tuple[Tensor, int]] = []
        for dim in range(-1, -self.spatial - 1, -1):
            n = call.inputs[0].shape[dim]
            strides.append((rest % n - place.origin(call, 0, dim), tile.shape[dim]))
            rest = rest // n
        for coord, size in reversed(strides):
            inside &= (coord >= 0) & (coord < size)
            local = local * size + coord
        picked = tile.flatten(-self.spatial).gather(-1, torch.where(inside, local, 0))
        return torch.where(inside, picked, 0).reshape(total[0].shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: F.adaptive_max_pool2d(x, 1), ((2, 3, 9, 7),), "global")
        yield Sample(lambda x: F.adaptive_max_pool2d(x, (4, 3)), ((1, 3, 9, 8),), "local")
        yield Sample(lambda x: F.adaptive_max_pool2d(x, (2, 3)), ((1, 2, 19, 25),), "bins")
