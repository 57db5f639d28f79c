"""Layers of random networks, drawn one at a time by hypothesis. See `networks.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Options = dict[str, Any]
EXACT = (
    "conv", "conv", "conv", "transposed", "max_pool", "avg_pool", "nearest", "linear", "cubic", "pad", "crop",
    "shuffle", "unshuffle", "relu", "relu_", "point", "join", "join", "on_space", "channels", "whole",
)  # fmt: skip
FLOAT = (*EXACT, "smooth", "norm", "norm", "norm", "gate", "adaptive", "resize", "lp_pool", "softmax")


@dataclass(frozen=True)
class Layer:
    """A layer as it was drawn. `bits`: binary digits behind the point that its result may gain."""

    kind: str
    reads: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]
    part: nn.Module
    bits: int = 0

    def __repr__(self) -> str:
        said = [*(f"v{i}" for i in self.reads), *(f"{k}={v!r}" for k, v in self.options)]
        return f"{self.kind}({', '.join(said)})"


@dataclass
class Drawing:
    """Draws a layer that reads one of the last values (and perhaps an earlier one)."""

    draw: st.DrawFn
    dims: int
    exact: bool

    def layer(self, values: list[Tensor]) -> Layer | None:
        """None where the drawn kind is not to be had for these values."""
        kind = self.pick(*(EXACT if self.exact else FLOAT))
        at = max(0, len(values) - 1 - self.pick(0, 0, 0, 1))
        if kind == "join":
            other = self.draw(st.integers(0, len(values) - 1))
            options, part = self._join(values[at], values[other])
            return Layer(kind, (at, other), tuple(options.items()), part)
        found = getattr(self, f"_{kind}")(values[at])
        if found is None:
            return None
        options, part, *bits = found
        return Layer(kind, (at,), tuple(options.items()), part, *bits)

    def pick(self, *items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def module(self, name: str) -> Any:
        return getattr(nn, f"{name}{self.dims}d")

    # -- exact on small integers -----------------------------------------------------------------------------------

    def _conv(self, x: Tensor) -> Any:
        c, out = x.shape[1], self.pick(1, 2, 2, 3, 4)
        s = self.pick(1, 1, 2, 3)
        options = {
            "kernel_size": self.pick(1, 2, 3, 3, 4, 5), "stride": s, "dilation": self.pick(1, 1, 2),
            "padding": self.pick(0, 1, 2, "same") if s == 1 else self.pick(0, 1, 2, 3),
            "groups": self.pick(1, 1, 1, c) if out % c == 0 else 1, "bias": self.pick(True, False),
            "padding_mode": self.pick("zeros", "zeros", "zeros", "reflect", "replicate", "circular"),
        }  # fmt: skip
        return options, self.module("Conv")(c, out, **options)

    def _transposed(self, x: Tensor) -> Any:
        s, d = self.pick(1, 2, 2, 3), self.pick(1, 1, 2)
        options = {
            "kernel_size": self.pick(1, 2, 3, 4), "stride": s, "padding": self.pick(0, 1, 2), "dilation": d,
            "output_padding": self.pick(0, max(s, d) - 1), "bias": self.pick(True, False),
        }  # fmt: skip
        return options, self.module("ConvTranspose")(x.shape[1], self.pick(1, 2, 3), **options)

    def _max_pool(self, x: Tensor) -> Any:
        k, padded, d = self.pick(2, 2, 3, 4), self.pick(False, True), self.pick(1, 1, 2)
        options = {
            "kernel_size": k, "stride": self.pick(1, 2, 3), "padding": k // 2 if padded else 0,
            # Both, on an image of one element: torch 2.13 writes its gradient out of bounds.
            "dilation": 1 if padded else d, "ceil_mode": self.pick(True, False),
        }  # fmt: skip
        return options, self.module("MaxPool")(**options)

    def _avg_pool(self, x: Tensor) -> Any:
        options = {
            "kernel_size": 2 if self.exact else self.pick(2, 3, 4),  # of 2: at the border too a power of two
            "stride": self.pick(1, 2, 3), "padding": self.pick(0, 1),
            "ceil_mode": self.pick(True, False), "count_include_pad": self.pick(True, False),
        }  # fmt: skip
        return options, self.module("AvgPool")(**options), self.dims

    def _nearest(self, x: Tensor) -> Any:
        how = self.pick({"scale_factor": 2}, {"scale_factor": 3}, {"size": [self.pick(3, 5, 8, 13)] * self.dims})
        options = {**how, "mode": self.pick("nearest", "nearest", "nearest-exact")}
        return options, Applied(F.interpolate, options)

    def _linear(self, x: Tensor) -> Any:
        options = {"scale_factor": 2, "mode": ("linear", "bilinear", "trilinear")[self.dims - 1]}
        return options, Applied(F.interpolate, options), 2 * self.dims

    def _cubic(self, x: Tensor) -> Any:
        options = {"scale_factor": 2, "mode": "bicubic"}
        return (options, Applied(F.interpolate, options), 16) if self.dims == 2 else None

    def _pad(self, x: Tensor) -> Any:
        mode = self.pick("constant", "constant", "reflect", "replicate", "circular")
        least = 0 if mode == "circular" else -1
        amounts = [max(least, self.pick(-1, 0, 1, 2, 3)) for _ in range(2 * self.dims)]
        options = {"pad": amounts, "mode": mode, "value": 2.0 if mode == "constant" else None}
        return options, Applied(F.pad, options)

    def _crop(self, x: Tensor) -> Any:
        cuts = [(self.pick(0, 1, 2, 4), self.pick(None, -1, -2), self.pick(1, 1, 2)) for _ in range(self.dims)]
        return {"cuts": cuts}, Applied(_cropped, {"cuts": cuts})

    def _shuffle(self, x: Tensor) -> Any:
        return ({}, nn.Sequential(nn.Conv2d(x.shape[1], 4, 1), nn.PixelShuffle(2))) if self.dims == 2 else None

    def _unshuffle(self, x: Tensor) -> Any:
        return ({}, nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4 * x.shape[1], 2, 1))) if self.dims == 2 else None

    def _relu(self, x: Tensor) -> Any:
        return {}, nn.ReLU()

    def _relu_(self, x: Tensor) -> Any:
        return {}, nn.ReLU(inplace=True)

    def _point(self, x: Tensor) -> Any:
        name = self.pick(*POINTWISE)
        return {"name": name}, Applied(POINTWISE[name]), int(name == "leaky")

    def _join(self, x: Tensor, y: Tensor) -> tuple[Options, nn.Module]:
        how = self.pick(*JOINS)
        if how != "cat" and x.shape[1] == y.shape[1]:
            return {"how": how}, Applied(_joined, {"how": how})
        mix = self.module("Conv")(x.shape[1] + y.shape[1], 2, 1)
        return {"how": "cat"}, Applied(_joined, {"how": "cat"}, then=mix)

    def _on_space(self, x: Tensor) -> Any:
        c, *image = x.shape[1:]
        shape = self.pick((1, c, *image), (c, *image), (1, *image), (c, *(1 for _ in image)))
        return {"shape": shape}, OnSpace(shape)

    def _channels(self, x: Tensor) -> Any:
        how = self.pick(*CHANNELS)
        return ({"how": how}, Applied(CHANNELS[how])) if x.shape[1] % 2 == 0 or how not in HALVES else None

    def _whole(self, x: Tensor) -> Any:
        how = self.pick(*(WHOLE[:2] if self.exact else WHOLE))
        return {"how": how}, Applied(_with_statistic, {"how": how})

    # -- not exact -------------------------------------------------------------------------------------------------

    def _smooth(self, x: Tensor) -> Any:
        part = self.pick(nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.ELU(), nn.PReLU(), nn.PReLU(x.shape[1]))
        return {"name": str(part)}, part

    def _norm(self, x: Tensor) -> Any:
        c, kind, affine = x.shape[1], self.pick("batch", "batch", "group", "instance", "layer", "eval"), self.pick(0, 1)
        match kind:
            case "batch" | "eval":
                part = self.module("BatchNorm")(c, affine=bool(affine), momentum=0.3).train(kind == "batch")
            case "instance":
                part = self.module("InstanceNorm")(c, affine=bool(affine), track_running_stats=self.pick(True, False))
            case "group":
                part = nn.GroupNorm(self.pick(1, c), c)
            case _:
                part = ChannelNormLayer(c)
        return {"kind": kind, "affine": affine}, part

    def _gate(self, x: Tensor) -> Any:
        how = self.pick("mean", "amax", "std")
        return {"how": how}, Gate(x.shape[1], how)

    def _adaptive(self, x: Tensor) -> Any:
        name, size = self.pick("AdaptiveAvgPool", "AdaptiveMaxPool"), [self.pick(2, 3, 5) for _ in range(self.dims)]
        return {"name": name, "size": size}, self.module(name)(size)

    def _resize(self, x: Tensor) -> Any:
        how = self.pick({"scale_factor": 1.5}, {"scale_factor": 0.6}, {"size": [self.pick(4, 7, 11)] * self.dims})
        modes = [("linear",), ("bilinear", "bicubic"), ("trilinear",)][self.dims - 1]
        options = {**how, "mode": self.pick(*modes), "align_corners": self.pick(True, False)}
        return options, Applied(F.interpolate, options)

    def _lp_pool(self, x: Tensor) -> Any:
        return {}, nn.Sequential(nn.Softplus(), self.module("LPPool")(2, 2))

    def _softmax(self, x: Tensor) -> Any:
        dim = self.pick(1, 1, -1)
        return {"dim": dim}, nn.Softmax(dim)


class Applied(nn.Module):
    """A function of values, and perhaps a layer that follows it."""

    def __init__(self, function: Callable[..., Tensor], options: Options | None = None, then: nn.Module | None = None):
        super().__init__()
        self.function, self.options, self.then = function, options or {}, then

    def forward(self, *tensors: Tensor) -> Tensor:
        found: Tensor = self.function(*tensors, **self.options)
        return found if self.then is None else self.then(found)


class OnSpace(nn.Module):
    """A parameter for every pixel."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.map = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.map


class Gate(nn.Module):
    """Squeeze and excite: a gate per channel from a statistic of the whole image."""

    def __init__(self, channels: int, how: str):
        super().__init__()
        self.how, self.gate = how, nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        over = tuple(range(2, x.dim()))
        pooled = getattr(x, self.how)(over)
        return x * self.gate(pooled).sigmoid().view(*x.shape[:2], *(1 for _ in over))


class ChannelNormLayer(nn.LayerNorm):
    """Layer norm over channels."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def _joined(a: Tensor, b: Tensor, how: str) -> Tensor:
    """Two images cut to what they have in common, one at its start, the other at its end, and joined."""
    for dim in range(2, a.dim()):
        n = min(a.shape[dim], b.shape[dim])
        a, b = a.narrow(dim, 0, n), b.narrow(dim, b.shape[dim] - n, n)
    return JOINS[how](a, b)


def _subtracted_in_place(a: Tensor, b: Tensor) -> Tensor:
    made = a * 2
    made -= b
    return made


def _cropped(x: Tensor, cuts: list[tuple[int | None, int | None, int]]) -> Tensor:
    for axis, cut in enumerate(cuts):
        x = x[(slice(None),) * (axis + 2) + (slice(*cut),)]
    return x


def _overwritten(x: Tensor) -> Tensor:
    made = x.clone()
    made[:, 0] = x[:, -1] * 2
    return made


def _shuffled(x: Tensor) -> Tensor:
    n, c, *image = x.shape
    return x.view(n, 2, c // 2, *image).transpose(1, 2).reshape(n, c, *image)


def _with_statistic(x: Tensor, how: str) -> Tensor:
    """A statistic of the whole image, used at every pixel: the walk needs two phases."""
    over = tuple(range(2, x.dim()))
    match how:
        case "max":
            return x - getattr(F, f"adaptive_max_pool{len(over)}d")(x, 1)
        case "mean":
            return x * x.mean(over, keepdim=True)
        case _:
            return x + getattr(x, how)(over, keepdim=True)


POINTWISE: dict[str, Callable[..., Tensor]] = {
    "leaky": lambda x: F.leaky_relu(x, 0.5),
    "clamp": lambda x: x.clamp(-3, 4),
    "abs": torch.abs,
    "add_": lambda x: (x * 2).add_(1),
}
JOINS: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "cat": lambda a, b: torch.cat((a, b), 1),
    "subtract_": _subtracted_in_place,
    "larger": lambda a, b: torch.where(a > b, a, b * 2),
}
CHANNELS: dict[str, Callable[..., Tensor]] = {
    "chunk": lambda x: x.chunk(2, 1)[0] - x.chunk(2, 1)[1],
    "shuffle": _shuffled,
    "flip": lambda x: x.flip(1),
    "sum": lambda x: x.sum(1, keepdim=True),
    "write": _overwritten,
}
HALVES = ("chunk", "shuffle")
WHOLE = ("sum", "max", "mean", "amax")
