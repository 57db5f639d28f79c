"""Batch, group and instance normalisation, by statistics that may need the whole image.

With given statistics a normalisation is pointwise. Statistics over tiled axes become a reduction (`moments`) and a
pointwise `normalize`, so that the image is streamed once for the statistics and again to use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ir import Build, TensorType
from .base import Call, Op, Place, Read, Reads, Reduction, Sample, Weighted, along, pointwise, whole
from .registry import op


@op("batch_norm", "instance_norm", "group_norm", "_native_batch_norm_legit", "native_group_norm")
class Norm(Weighted):
    """Pointwise in the data once its statistics are known; all else is per channel."""

    remembers = ("running_mean", "running_var")
    flops_each = 4.0

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        if call.node.op == "group_norm":
            return _lower_group(call, build)
        trained = call.attr("training", call.attr("use_input_stats", False))
        if not trained:
            return None
        rank = len(call.inputs[0].shape)
        over = [d for d in range(rank) if d != 1 and (d or call.node.op == "batch_norm")]
        stats = emit_moments(build, call.node.inputs[0].value, over)
        _update_running(call, build, stats, over)
        return _normalize(build, call, call.node.inputs[0].value, stats, _affine(call))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        image = (2, 4, 5, 6)
        yield Sample(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (image, (4,), (4,)), "batch")
        yield Sample(lambda x, m, v, w: F.batch_norm(x, m, v.abs(), w), (image, (4,), (4,), (4,)), "batch, eval")
        yield Sample(lambda x, w, b: F.group_norm(x, 2, w, b), (image, (4,), (4,)), "group")
        yield Sample(lambda x: F.instance_norm(x), (image,), "instance")


def emit_moments(build: Build, x: str, over: Sequence[int]) -> str:
    """Mean and variance over these dimensions; of half precision they are single."""
    kept = tuple(1 if d in over else n for d, n in enumerate(build.type(x).shape))
    return build.emit("moments", [("self", x)], TensorType((2, *kept), _wide(build.type(x).dtype)), {"dim": list(over)})


def _wide(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _normalize(build: Build, call: Call, x: str, stats: str, affine: Sequence[tuple[str, str]] = ()) -> str:
    attrs = {"eps": call.attr("eps", 1e-5), "channel": 1}
    return build.emit("normalize", [("self", x), ("stats", stats), *affine], build.type(x), attrs)


def _affine(call: Call) -> list[tuple[str, str]]:
    return [(a, v) for a in ("weight", "bias") if (v := call.arg(a)) is not None]


def _lower_group(call: Call, build: Build) -> str:
    x, shape, groups = call.node.inputs[0].value, call.inputs[0].shape, call.attr("num_groups")
    split = TensorType((shape[0], groups, shape[1] // groups, *shape[2:]), call.inputs[0].dtype)
    viewed = build.emit("view", [("self", x)], split, {"size": list(split.shape)}, "aten.view.default")
    stats = emit_moments(build, viewed, range(2, len(split.shape)))
    plain = _normalize(build, call, viewed, stats)
    back = build.emit("view", [("self", plain)], call.out, {"size": list(shape)}, "aten.view.default")
    affine = _affine(call)
    return build.emit("per_channel", [("self", back), *affine], call.out, {"channel": 1}) if affine else back


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
        return self.finish(call, self.partial(call, tiles[0], place))

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        x = tile.to(torch.float32) if tile.dtype in (torch.float16, torch.bfloat16) else tile
        over = call.dims()
        count = prod(tile.shape[d] for d in over)
        mean = x.sum(over, keepdim=True) / max(1, count)
        square = (x - mean).square().sum(over, keepdim=True)
        return torch.full_like(mean, count), mean, square

    def combine(self, call: Call, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (na, mean_a, sq_a), (nb, mean_b, sq_b) = a, b
        n = na + nb
        delta = mean_b - mean_a
        share = nb / n.clamp(min=1)
        return n, mean_a + delta * share, sq_a + sq_b + delta.square() * na * share

    def finish(self, call: Call, total: tuple[Tensor, ...]) -> Tensor:
        count, mean, square = total
        return torch.stack([mean, square / count])

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        count, mean, _ = (t.detach() for t in total)
        x = tile.to(mean.dtype)
        over = call.dims()
        # The variance's own dependence on the mean vanishes: the deviations sum to zero.
        return torch.stack([x.sum(over, keepdim=True) / count, (x - mean).square().sum(over, keepdim=True) / count])


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
        x, stats = tiles[0], tiles[1]
        weight, bias = (tiles[call.index[a]] if a in call.index else None for a in ("weight", "bias"))
        mean, var = stats[0], stats[1]
        scale = torch.rsqrt(var + call.attr("eps"))
        if weight is not None:
            scale = scale * _on_channel(weight, call).to(scale.dtype)
        centred = x.to(mean.dtype) - mean
        if bias is None:
            return (centred * scale).to(x.dtype)
        return torch.addcmul(_on_channel(bias, call).to(mean.dtype), centred, scale).to(x.dtype)


def _on_channel(weight: Tensor, call: Call) -> Tensor:
    rank, channel = len(call.out.shape), call.attr("channel")
    return weight.view(-1, *(1 for _ in range(rank - channel - 1)))


@op("per_channel")
class PerChannel(Weighted):
    """`x * weight + bias`, one of each per channel."""

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        x = tiles[0]
        weight, bias = (tiles[call.index[a]] if a in call.index else None for a in ("weight", "bias"))
        if weight is not None:
            x = x * _on_channel(weight, call)
        x = x if bias is None else x + _on_channel(bias, call)
        return x.to(tiles[0].dtype)


@op("running_stat")
class RunningStat(Op):
    """What a normalisation layer remembers: `old + momentum * (new - old)`; variances are unbiased."""

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        old, stats = tiles
        new = stats[call.attr("row")].detach()
        count = call.attr("count")
        if call.attr("row") == 1:
            new = new * (count / max(1, count - 1))
        per_channel = new.mean(0) if new.dim() and new.shape[0] > 1 else new  # instance norm: the mean over samples
        momentum = call.attr("momentum")
        return (1 - momentum) * old + momentum * per_channel.reshape(old.shape).to(old.dtype)
