"""Random small networks: convolutions, pools, transposed convolutions, resizes, crops, pads, skips.

A network is a list of steps, each a function of earlier values. Everything is integer-valued (or dyadic) float64, so
that sums are exact in any order. `dense` leaves out the steps that skip inputs: there a box is a hull, and where it
ends in padding, what is left of it after clipping may hold an input that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from tilegrad.importers import export_module
from tilegrad.ir import Graph

Step = tuple[str, tuple[int, ...], Callable[..., Tensor]]  # for people, values read, what is done with them
CHANNELS = 2


class Network(nn.Module):
    """Value 0 is the input; step `k` makes value `k + 1`. The last value and the `extra` ones are given back."""

    def __init__(self, steps: list[Step], extra: tuple[int, ...] = ()):
        super().__init__()
        self.steps, self.extra = steps, extra

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for _, reads, function in self.steps:
            values.append(function(*(values[i] for i in reads)))
        return (values[-1], *(values[i] for i in self.extra))


@dataclass(repr=False)
class Drawn:
    """A network with the shape of its input, and its graph."""

    network: Network
    shape: tuple[int, ...]
    graph: Graph = field(init=False)
    constants: dict[str, Tensor] = field(init=False)  # the weights

    def __post_init__(self) -> None:
        captured = export_module(self.network, [self.image()])
        held = {name: slot.get() for name, slot in captured.slots.items()}
        self.graph, self.constants = captured.graph, held | dict(captured.constants)

    def __repr__(self) -> str:
        steps = ", ".join(f"{said}{reads}" for said, reads, _ in self.network.steps)
        return f"Drawn({self.shape}: {steps}; and {self.network.extra})"

    def image(self) -> Tensor:
        return torch.arange(torch.Size(self.shape).numel(), dtype=torch.float64).view(self.shape) * 7 % 11 - 5

    @property
    def axes(self) -> str:
        return "dhw"[-(len(self.shape) - 2) :]


def weights(dims: int, kernel: int, inputs: int = CHANNELS, outputs: int = CHANNELS) -> Tensor:
    count = outputs * inputs * kernel**dims
    return (torch.arange(count, dtype=torch.float64) % 3 + 1).view(outputs, inputs, *[kernel] * dims)


def conv(dims: int, k: int, s: int, d: int, p: int) -> Callable[..., Tensor]:
    function, weight = (F.conv1d, F.conv2d)[dims - 1], weights(dims, k)
    return lambda x: function(x, weight, None, s, p, d)


def transposed(dims: int, k: int, s: int, d: int, p: int, extra: int) -> Callable[..., Tensor]:
    function, weight = (F.conv_transpose1d, F.conv_transpose2d)[dims - 1], weights(dims, k)
    return lambda x: function(x, weight, None, s, p, extra, 1, d)


def max_pool(dims: int, k: int, s: int, p: int, ceil: bool) -> Callable[..., Tensor]:
    function = (F.max_pool1d, F.max_pool2d)[dims - 1]
    return lambda x: function(x, k, s, p, ceil_mode=ceil)


def avg_pool(dims: int, k: int, s: int) -> Callable[..., Tensor]:
    function = (F.avg_pool1d, F.avg_pool2d)[dims - 1]
    return lambda x: function(x, k, s)


def crop(dims: int, before: int, after: int) -> Callable[..., Tensor]:
    cut = (..., *[slice(before, -after or None)] * dims)
    return lambda x: x[cut]


def joined(dims: int, how: str) -> Callable[..., Tensor]:
    """Two values, cut to what they have in common, added or concatenated (and mixed)."""
    mix, weight = (F.conv1d, F.conv2d)[dims - 1], weights(dims, 1, 2 * CHANNELS)

    def join(a: Tensor, b: Tensor) -> Tensor:
        common = [min(n, m) for n, m in zip(a.shape[-dims:], b.shape[-dims:], strict=True)]
        for axis, n in enumerate(common):
            a, b = a.narrow(axis - dims, 0, n), b.narrow(axis - dims, b.shape[axis - dims] - n, n)
        return a + b if how == "add" else mix(torch.cat([a, b], 1), weight)

    return join


@st.composite
def one_step(draw: st.DrawFn, dims: int, made: int, dense: bool) -> Step:
    def pick(*numbers: int) -> int:
        return draw(st.sampled_from(numbers))

    last = draw(st.integers(max(0, made - 2), made - 1))
    kinds = ["conv", "conv", "transposed", "max_pool", "avg_pool", "nearest", "crop", "pad", "relu", "add", "cat"]
    kind = draw(st.sampled_from(kinds if dense else [*kinds, "linear", "reflect", "replicate"]))
    k, s = pick(1, 2, 3, 4, 5), pick(1, 2, 3)
    d, p = pick(1, 2), pick(0, 1, 2)
    if dense:
        s, d, p = min(s, k), 1, min(p, k - 1)
    before, after = pick(0, 1, 2), pick(0, 1, 2)
    match kind:
        case "conv":
            return f"conv k{k} s{s} d{d} p{p}", (last,), conv(dims, k, s, d, p)
        case "transposed":
            extra = pick(0, max(s, d) - 1)
            return f"transposed k{k} s{s} d{d} p{p} +{extra}", (last,), transposed(dims, k, s, d, p, extra)
        case "max_pool":
            p, ceil = min(p, k // 2), draw(st.booleans())
            return f"max_pool k{k} s{s} p{p} {ceil}", (last,), max_pool(dims, k, s, p, ceil)
        case "avg_pool":
            k = pick(2, 4)
            s = min(s, k)
            return f"avg_pool k{k} s{s}", (last,), avg_pool(dims, k, s)
        case "nearest":
            size, scale = (None, 2.0) if dense else ([pick(5, 8, 13)] * dims, None)
            return f"nearest {size or scale}", (last,), lambda x: F.interpolate(x, size, scale)
        case "linear":
            mode = ("linear", "bilinear")[dims - 1]
            return "linear", (last,), lambda x: F.interpolate(x, scale_factor=2, mode=mode)
        case "crop":
            return f"crop {before} {after}", (last,), crop(dims, before, after)
        case "pad" | "reflect" | "replicate":
            mode = "constant" if kind == "pad" else kind
            return f"{kind} {before} {after}", (last,), lambda x: F.pad(x, [before, after] * dims, mode=mode)
        case "relu":
            return "relu", (last,), torch.relu
        case _:
            other = draw(st.integers(0, made - 1))
            return kind, (last, other), joined(dims, kind)


@st.composite
def networks(
    draw: st.DrawFn, dims: int, dense: bool = False, sizes: tuple[int, int] = (2, 23), steps: int = 5
) -> Drawn:
    shape = (1, CHANNELS, *(draw(st.integers(*sizes)) for _ in range(dims)))
    drawn: list[Step] = []
    values = [torch.zeros(shape, dtype=torch.float64)]
    for _ in range(draw(st.integers(2, steps))):
        step = draw(one_step(dims, len(values), dense))
        try:
            made = step[2](*(values[i] for i in step[1]))
        except RuntimeError:  # torch finds the input too small for this step
            continue
        if min(made.shape[2:]) >= 2 and max(made.shape[2:]) <= 70:  # an axis of length 1 is no axis
            drawn.append(step)
            values.append(made)
    assume(drawn)
    extra = tuple(draw(st.lists(st.integers(1, len(drawn)), max_size=1)))
    return Drawn(Network(drawn, extra), shape)
