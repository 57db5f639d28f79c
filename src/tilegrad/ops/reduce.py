"""Reductions: sum, mean, amax, amin and what is built from them. Over channels they are local; over the image
they are folded tile by tile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from ..ir import Build
from .base import Call, Op, Place, Reads, Reduction, Sample, along, pointwise
from .channels import LOW
from .norm import emit_moments
from .registry import op


def _keep(call: Call) -> bool:
    return bool(call.attr("keepdim", False))


class _Along(Op):
    """Over channels it is local: its dimensions are read whole, the others one by one."""

    def reads(self, call: Call) -> Reads | None:
        return (along(call, call.dims(), _keep(call)),)


@op("sum", "mean")
class SumOp(_Along, Reduction):
    """Tiles add up; in half precision they add up in single."""

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        dtype = getattr(torch, call.out.dtype)
        dtype = torch.float32 if dtype in LOW else dtype
        return (tile.sum(call.dims(), keepdim=_keep(call), dtype=dtype),)

    def finish(self, call: Call, total: tuple[Tensor, ...]) -> Tensor:
        result = total[0]
        if call.node.op == "mean":
            result = result / prod(call.inputs[0].shape[d] for d in call.dims())
        return result.to(getattr(torch, call.out.dtype))

    def gradient(
        self,
        call: Call,
        tile: Tensor,
        total: tuple[Tensor, ...],
        grad: Tensor,
        place: Place,
        *others: Tensor,
        onto: Tensor | None = None,
    ) -> Tensor:
        kept = [1 if d in call.dims() else n for d, n in enumerate(tile.shape)]
        if call.node.op == "mean":
            grad = grad / prod(call.inputs[0].shape[d] for d in call.dims())
        share = grad.to(tile.dtype).reshape(kept).expand(tile.shape)
        return share if onto is None else onto + share

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.mean((2, 3)), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.sum(), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.mean(1, keepdim=True), ((2, 3, 5, 6),), "channels")
        yield Sample(lambda x: x.sum(2), ((2, 3, 5, 6),), "rows only")
        yield Sample(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), ((2, 3, 5, 6),), "squeeze, excite")


@op("amax", "amin", "max", "min")
class Extreme(_Along, Reduction):
    """The extreme and how often it is met: torch shares the gradient evenly among ties."""

    def reads(self, call: Call) -> Reads | None:
        if len(call.inputs) > 1:  # of two tensors, element by element
            return tuple(pointwise(t.shape, call.out.shape) for t in call.inputs)
        return super().reads(call)

    def foldable(self, call: Call) -> bool:
        return len(call.inputs) == 1 and call.attr("output") is None  # the forms with indices pick one winner: whole

    def _best(self, call: Call, x: Tensor) -> Tensor:
        best = torch.amax if "max" in call.node.op else torch.amin
        return best(x, call.dims(), keepdim=True)

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        best = self._best(call, tile)
        return best, (tile == best).sum(call.dims(), keepdim=True)

    def combine(self, call: Call, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        better = torch.maximum if "max" in call.node.op else torch.minimum
        best = better(a[0], b[0])
        return best, a[1] * (a[0] == best) + b[1] * (b[0] == best)

    def combine_all(self, call: Call, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        best = parts[0].amax(0) if "max" in call.node.op else parts[0].amin(0)
        return best, (parts[1] * (parts[0] == best)).sum(0)

    def finish(self, call: Call, total: tuple[Tensor, ...]) -> Tensor:
        return total[0].reshape(call.out.shape) if total[0].numel() == call.out.size else self._squeeze(call, total[0])

    def _squeeze(self, call: Call, x: Tensor) -> Tensor:
        return x if _keep(call) else x.squeeze(tuple(call.dims()))

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        best, ties = (t.detach() for t in total)
        share = (tile.detach() == best).to(tile.dtype) / ties
        return self._squeeze(call, (tile * share).sum(call.dims(), keepdim=True))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.amax((2, 3)), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.amin((2, 3), keepdim=True) + x, ((2, 3, 5, 6),))
        yield Sample(lambda x: x.max(), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.amax(1), ((2, 3, 5, 6),), "channels")
        yield Sample(lambda x: x.max(1).values, ((2, 3, 5, 6),), "channels, with indices")


@op("var", "std")
class SpreadOp(_Along):
    """Variance and deviation: local over channels, from `moments` over the image."""

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        over = call.dims()
        if not set(over) & set(tiled):
            return None
        stats = emit_moments(build, call.node.inputs[0].value, over)
        count = prod(call.inputs[0].shape[d] for d in over)
        correction = call.attr("correction")
        if correction is None:
            correction = 1 if call.attr("unbiased", True) else 0
        scale = count / max(1, count - correction)
        return build.emit("spread_of", [("stats", stats)], call.out, {"scale": scale, "root": call.node.op == "std"})

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.var((2, 3)), ((2, 3, 5, 6),))
        yield Sample(lambda x: x / x.std((2, 3), keepdim=True), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.var(1, keepdim=True), ((2, 3, 5, 6),), "channels")


@op("spread_of")
class SpreadOf(Op):
    """Variance or deviation from `moments`."""

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        found = (tiles[0][1] * call.attr("scale")).reshape(call.out.shape)
        if call.attr("root"):
            flat = found == 0  # torch gives no deviation the gradient zero
            found = torch.where(flat, 0, torch.where(flat, 1, found).sqrt())
        return found.to(getattr(torch, call.out.dtype))


@op("logsumexp", "prod", "any", "all", "argmax", "argmin", "linalg_vector_norm", "norm", "count_nonzero")
class AlongSome(_Along):
    """Local over channels; over the image they run whole."""

    def reads(self, call: Call) -> Reads | None:
        return None if isinstance(call.attr("p", call.attr("ord", 2)), str) else super().reads(call)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(lambda x: x.logsumexp(1), ((2, 3, 5, 6),))
        yield Sample(lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True), ((2, 3, 5, 6),))
        yield Sample(lambda x: x.logsumexp((2, 3)), ((2, 3, 5, 6),), "over the image: whole")
