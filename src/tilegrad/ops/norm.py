"""Batch, group and instance normalisation, by statistics that may need the whole image.

With given statistics a normalisation is pointwise. Statistics of the image itself become a reduction (`moments`) and a
pointwise `normalize`, so that the image is streamed once for the statistics and again to use them. Both know their own
gradients, in as many passes over the image as plain PyTorch makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..ir import Build, TensorType
from .base import Call, Op, Place, Read, Reads, Reduction, Sample, Weighted, along, pointwise, whole
from .channels import LOW, affine, layout_of, sums
from .registry import op

HALF = ("float16", "bfloat16")


@op("batch_norm", "instance_norm", "group_norm", "_native_batch_norm_legit", "native_group_norm")
class Norm(Weighted):
    """Pointwise in the data once its statistics are known; all else is per channel."""

    remembers = ("running_mean", "running_var")
    flops_each = 4.0

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        x, rank = call.node.inputs[0].value, len(call.inputs[0].shape)
        affine = [(a, v) for a in ("weight", "bias") if (v := call.arg(a)) is not None]
        if call.node.op == "group_norm":
            stats = emit_moments(build, x, range(1, rank), call.attr("num_groups"))
        elif call.attr("training", call.attr("use_input_stats", False)):
            over = [d for d in range(rank) if d != 1 and (d or call.node.op == "batch_norm")]
            stats = emit_moments(build, x, over)
            _update_running(call, build, stats, over)
        else:
            return None
        attrs = {"eps": call.attr("eps", 1e-5)}
        return build.emit("normalize", [("self", x), ("stats", stats), *affine], build.type(x), attrs)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        names = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, var = (tiles[call.index[a]] if a in call.index else None for a in names)
        learns = any(t is not None and t.requires_grad for t in (weight, bias))
        if call.node.op != "batch_norm" or mean is None or call.attr("training", False) or not tiles[0].requires_grad:
            return self.run_native(call, tiles, place.device)
        if learns and not tiles[0].is_cuda:  # a CPU's own backward is as good
            return self.run_native(call, tiles, place.device)
        assert var is not None
        rest = weight, bias, mean, var, call.attr("eps", 1e-5)
        return frozen_norm(tiles[0], *rest, place.once(call, lambda: frozen_numbers(tiles[0], *rest)))

    def is_native(self, call: Call) -> bool:
        """What is frozen, in half precision, is one pass of ours when whole as in tiles: on a GPU torch's own takes
        most of the time of a network's step. In more precision a convolution before it takes it in."""
        frozen = call.node.op == "batch_norm" and call.arg("running_mean") and not call.attr("training", False)
        return super().is_native(call) and not (frozen and call.out.dtype in HALF)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        image = (2, 4, 5, 6)
        yield Sample(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (image, (4,), (4,)), "batch")
        yield Sample(lambda x, m, v, w: F.batch_norm(x, m, v.abs(), w), (image, (4,), (4,), (4,)), "batch, eval")
        yield Sample(lambda x, w, b: F.group_norm(x, 2, w, b), (image, (4,), (4,)), "group")
        yield Sample(lambda x: F.instance_norm(x), (image,), "instance")


def emit_moments(build: Build, x: str, over: Sequence[int], groups: int = 1) -> str:
    """Mean and variance over these dimensions, for groups of channels; of half precision they are single."""
    kept = [1 if d in over else n for d, n in enumerate(build.type(x).shape)]
    if 1 in over:
        kept[1] = groups
    dtype = build.type(x).dtype
    wide = "float32" if dtype in HALF else dtype
    return build.emit("moments", [("self", x)], TensorType((2, *kept), wide), {"dim": list(over), "groups": groups})


def _update_running(call: Call, build: Build, stats: str, over: Sequence[int]) -> None:
    """Running mean and variance as new values that replace the buffers after the step, exactly once."""
    count = prod(call.inputs[0].shape[d] for d in over)
    for row, name in enumerate(("running_mean", "running_var")):
        old = call.arg(name)
        if old is None:
            continue
        attrs = {"row": row, "momentum": call.attr("momentum", 0.1), "count": count}
        earlier = dict(build.updates)  # a layer that is called twice goes on from its first call
        inputs = [("old", earlier.get(old, old)), ("stats", stats)]
        earlier[old] = build.emit("running_stat", inputs, build.type(old), attrs)
        build.updates = list(earlier.items())


@op("moments")
class Moments(Reduction):
    """Mean and biased variance over `dim`, stacked. Tiles are joined by the pairwise rule, not by sums of squares."""

    def reads(self, call: Call) -> Reads:
        reads = along(call, call.dims())
        return (tuple(Read(None if r.dim is None else r.dim + 1, r.window) for r in reads),)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        found: Tensor = _OfOneTile.apply(tiles[0], self, call, place)  # type: ignore[no-untyped-call]
        return found

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        if "over" not in call.memo:
            call.memo["over"] = call.dims(), call.attr("groups", 1)
        over, groups = call.memo["over"]
        if groups > 1:
            tile, over = _split(tile, 1, groups), list(range(2, tile.dim() + 1))
        count = prod([tile.shape[d] for d in over])
        wide = torch.float32 if tile.dtype in LOW else tile.dtype
        if tile.is_cuda and count:  # one pass; a CPU is faster with three
            mean, var = _moments(tile, over, wide)
            square = var * count
        else:
            mean = tile.sum(over, keepdim=True, dtype=wide) / max(1, count)
            square = (tile - mean).square_().sum(over, keepdim=True)
        found = torch.full_like(mean, count), mean, square
        return found if groups == 1 else tuple(t.squeeze(2) for t in found)

    def combine(self, call: Call, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (na, mean_a, sq_a), (nb, mean_b, sq_b) = a, b
        n = na + nb
        delta = mean_b - mean_a
        share = nb / n.clamp(min=1)
        return n, mean_a + delta * share, sq_a + sq_b + delta.square() * na * share

    def combine_all(self, call: Call, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        counts, means, squares = parts
        count = counts.sum(0)
        mean = (means * counts).sum(0) / count.clamp(min=1)
        return count, mean, torch.addcmul(squares, counts, (means - mean).square_()).sum(0)

    def finish(self, call: Call, total: tuple[Tensor, ...]) -> Tensor:
        count, mean, square = total
        return torch.stack([mean, square / count])

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
        """The variance's own dependence on the mean vanishes: the deviations sum to zero."""
        count, mean, _ = total
        shift, scale = grad.view(2, *mean.shape).to(mean.dtype) / count
        shift, scale, mean = _ungrouped(tile, shift, 2 * scale, mean)
        return affine(tile, scale, shift, mean, onto)


def _moments(tile: Tensor, over: Sequence[int], wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Mean and variance on a GPU. Its kernel for channels takes half precision as it is."""
    if list(over) != [d for d in range(tile.dim()) if d != 1]:
        var, mean = torch.var_mean(tile.to(wide), list(over), correction=0, keepdim=True)
        return mean, var
    mean, root = torch.batch_norm_stats(tile.contiguous(memory_format=layout_of(tile)), 0.0)
    var = torch.where(root > 0, root.square().reciprocal(), 0.0)
    return tuple(t.view(1, -1, *(1 for _ in over[1:])) for t in (mean, var))  # type: ignore[return-value]


def _split(x: Tensor, dim: int, groups: int) -> Tensor:
    return x.view(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])


def _ungrouped(x: Tensor, *numbers: Tensor) -> tuple[Tensor, ...]:
    """Of groups as of channels."""
    groups = numbers[0].shape[1] if x.dim() > 1 else 1
    if groups in (1, x.shape[1]):
        return numbers
    return tuple(t.repeat_interleave(x.shape[1] // groups, 1) for t in numbers)


class _OfOneTile(Function):
    """A reduction of which one tile has everything."""

    @staticmethod
    def forward(ctx: Any, tile: Tensor, op: Moments, call: Call, place: Place) -> Tensor:
        total = op.partial(call, tile, place)
        ctx.save_for_backward(tile, *total)
        ctx.known = op, call, place
        return op.finish(call, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        tile, *total = ctx.saved_tensors
        op, call, place = ctx.known
        return op.gradient(call, tile, tuple(total), grad, place), None, None, None


@op("normalize")
class Normalize(Op):
    """`(x - mean) / sqrt(var + eps) * weight + bias` with `stats` from `moments`."""

    flops_each = 4.0

    def reads(self, call: Call) -> Reads:
        data = pointwise(call.inputs[0].shape, call.out.shape)
        # stats has a leading row dimension, then the data's dimensions with the reduced ones of size 1
        stats = pointwise(call.inputs[1].shape[1:], call.out.shape)
        rest = (whole(t.shape) for t in call.inputs[2:])
        return (data, (whole(call.inputs[1].shape)[0], *stats), *rest)

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return _normalized(call, tiles, tiles[1])


def _normalized(call: Call, tiles: Sequence[Tensor], stats: Tensor) -> Tensor:
    weight, bias = (tiles[call.index[a]] if a in call.index else None for a in ("weight", "bias"))
    found: Tensor = _Normalized.apply(tiles[0], stats, weight, bias, call.attr("eps", 1e-5))  # type: ignore[no-untyped-call]
    return found


Numbers = tuple[Tensor, Tensor, Tensor, Tensor | None]  # mean, one over the deviation, scale, shift


class FrozenNorm(Function):
    """Batch norm by what it remembers. torch's own backward sums over the image even where nobody learns from that, and
    keeps the image for it; on a GPU it gives each channel to one worker."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        eps: float,
        known: Numbers,
    ) -> Tensor:
        ctx.save_for_backward(x if any(ctx.needs_input_grad[1:3]) else None)
        ctx.known, ctx.types = known, [t.dtype if t is not None else None for t in (weight, bias)]
        if x.is_cuda:
            return affine(x, known[2], known[3], known[0])
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (mean, root, scale, _) = ctx.saved_tensors, ctx.known
        of_weight = of_bias = None
        if x is not None:
            total, along = sums(x, mean, grad)
            of_weight = _over_samples(along * root).to(ctx.types[0]) if ctx.needs_input_grad[1] else None
            of_bias = _over_samples(total).to(ctx.types[1]) if ctx.needs_input_grad[2] else None
        return affine(grad, scale) if ctx.needs_input_grad[0] else None, of_weight, of_bias, *[None] * 4


def frozen_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float, known: Numbers
) -> Tensor:
    found: Tensor = FrozenNorm.apply(x, weight, bias, mean, var, eps, known)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def frozen_numbers(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Numbers:
    wide = torch.float32 if x.dtype in LOW else x.dtype
    stats = torch.stack([_on_channel(mean, x, wide), _on_channel(var, x, wide)])
    return *_scales(x, stats, weight, eps), None if bias is None else _on_channel(bias, x, wide)


def _over_samples(numbers: Tensor) -> Tensor:
    return (numbers if len(numbers) == 1 else numbers.sum(0)).view(-1)


class _Normalized(Function):
    """One pass over the image, and one in backward, and one more for gradients of anything else than the image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stats: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward(x, stats, weight)
        ctx.eps, ctx.bias = eps, None if bias is None else bias.dtype
        mean, _, scale = _scales(x, stats, weight, eps)
        return affine(x, scale, None if bias is None else _on_channel(bias, x, mean.dtype), mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, stats, weight = ctx.saved_tensors
        mean, root, scale = _scales(x, stats, weight, ctx.eps)
        of_x = affine(grad, scale) if ctx.needs_input_grad[0] else None
        of_stats = of_weight = of_bias = None
        if any(ctx.needs_input_grad[1:]):
            total, along = sums(x, mean, grad)
            if ctx.needs_input_grad[1]:
                of_stats = _of_groups(torch.stack([total * scale, along * scale * root.square() / 2]).neg_(), stats)
            if weight is not None:
                of_weight = _over_samples(along * root).to(weight.dtype)
            if ctx.bias is not None:
                of_bias = _over_samples(total).to(ctx.bias)
        return of_x, of_stats, of_weight, of_bias, None


def _of_groups(each: Tensor, stats: Tensor) -> Tensor:
    """Gradients of the numbers of channels as those of the statistics."""
    groups = stats.shape[2]
    return (each if groups == each.shape[2] else _split(each, 2, groups).sum(3)).sum_to_size(stats.shape)


def _scales(x: Tensor, stats: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, one over the deviation, and what the image is multiplied with."""
    mean, var = stats.unbind()
    mean, root = _ungrouped(x, mean, torch.rsqrt(var + eps))
    return mean, root, root if weight is None else root * _on_channel(weight, x, root.dtype)


def _on_channel(weight: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).view(1, -1, *[1] * (x.ndim - 2))


@op("running_stat")
class RunningStat(Op):
    """What a normalisation layer remembers: `old + momentum * (new - old)`; variances are unbiased."""

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        old, stats = tiles
        if "numbers" not in call.memo:
            row, count = call.attr("row"), call.attr("count")
            call.memo["numbers"] = row, count / max(1, count - 1) if row == 1 else None, call.attr("momentum")
        row, scale, momentum = call.memo["numbers"]
        new = stats.detach()[row]
        if scale is not None:
            new = new * scale
        per_channel = new.mean(0) if new.shape and new.shape[0] > 1 else new  # instance norm: the mean over samples
        return (1 - momentum) * old + momentum * per_channel.reshape(old.shape).to(old.dtype)
