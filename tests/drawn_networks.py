"""Hypothesis strategies for random small networks and for ways to tile them.

`networks()` draws a directed graph of layers as an `nn.Module`, together with inputs for it. With `exact=True` all
numbers are integers (or halves, quarters, …) so small that float64 holds every sum exactly in any order: tiled and
plain must be equal to the last bit. Without it norms, gates, means, heads and losses join in.

A layer that torch refuses for the sizes at hand is left out, so every drawn network runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import log2, prod
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from drawn_layers import Drawing, Layer
from tilegrad.bounds import MODES
from tilegrad.testing.exact import integer_module, integer_tensor, run_step, size_of

ELEMENTS = 8192  # of a value
TILES = 40  # of a walk
BITS = 50  # of float64's 52

LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1 sum": lambda x, y: F.l1_loss(x, y, reduction="sum"),
    "bce": F.binary_cross_entropy_with_logits,
    "huber": F.huber_loss,
    "cross entropy": F.cross_entropy,
    "cross entropy, ignoring 0": lambda x, y: F.cross_entropy(x, y, ignore_index=0),
    "cross entropy map": lambda x, y: F.cross_entropy(x, y, reduction="none"),
    "dice": lambda x, y: 1 - 2 * (x.sigmoid() * y).sum() / (x.sigmoid().sum() + y.sum() + 1),
}
HEADS = ("pool", "flatten", "max")


class RandomNetwork(nn.Module):
    """Value 0 is the image; layer `k` makes value `k + 1`. Gives back the values `outputs`, or what `end` makes of
    the last one: a loss or a head."""

    def __init__(self, shape: tuple[int, ...], seed: int, exact: bool):
        super().__init__()
        self.shape, self.seed, self.exact = shape, seed, exact
        self.layers: list[Layer] = []
        self.outputs: tuple[int, ...] = ()
        self.end: str | None = None
        self.parts = nn.ModuleList()
        self.head: nn.Module | None = None

    def __repr__(self) -> str:
        layers = "; ".join(f"v{k + 1} = {layer}" for k, layer in enumerate(self.layers))
        return f"RandomNetwork({self.shape}, seed {self.seed}: {layers}; gives {self.end or self.outputs})"

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        values = self.values(x)
        if self.end in LOSSES:
            return LOSSES[self.end](values[-1], target)
        if self.head is not None:
            return self.head(values[-1])
        return tuple(values[i] for i in self.outputs) if len(self.outputs) > 1 else values[self.outputs[0]]

    def values(self, x: Tensor) -> list[Tensor]:
        values = [x]
        for layer, part in zip(self.layers, self.parts, strict=True):
            values.append(part(*(values[i] for i in layer.reads)))
        return values

    def inputs(self) -> list[Tensor]:
        """The image and, for a loss, its target."""
        generator = torch.Generator().manual_seed(self.seed)
        image = torch.randn(self.shape, dtype=torch.float64, generator=generator)
        if self.exact:
            image = integer_tensor(self.shape, -3, 3, self.seed)
        if self.end not in LOSSES:
            return [image]
        with torch.no_grad():
            n, c, *size = self.values(image)[-1].shape
        if self.end.startswith("cross"):
            return [image, integer_tensor((n, *size), 0, c - 1, self.seed).long()]
        return [image, integer_tensor((n, c, *size), 0, 1, self.seed)]


@st.composite
def networks(
    draw: st.DrawFn, dims: int | None = None, *, exact: bool = True, layers: int = 5, ends: bool = False
) -> RandomNetwork:
    """A random network in training mode. dims: one, two or three image axes (drawn where it is not given); layers:
    at most so many; ends: perhaps with a head or a loss at its end."""
    dims = dims or draw(st.sampled_from([1, 2, 2, 2, 3]))
    largest = {1: 47, 2: 23, 3: 9}[dims]
    size = st.one_of(st.integers(2, largest), st.sampled_from([2, 3, 5, 7, largest]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(draw(size) for _ in range(dims)))
    network = RandomNetwork(shape, draw(st.integers(0, 999)), exact)
    drawing = Drawing(draw, dims, exact)
    values = network.inputs()
    for _ in range(draw(st.integers(2, layers))):
        if (layer := drawing.layer(values)) is not None:
            values = _extended(network, layer) or values
    assume(network.layers)
    last = len(values) - 1
    network.outputs = (last, *draw(st.lists(st.integers(1, last), max_size=2)))
    if not _trains(network):  # a layer that works in place has written over what another output's gradient needs
        network.outputs = (last,)
    if ends:
        network.end = draw(st.sampled_from([None, *LOSSES, *HEADS]))
        network.head = _head(network.end, values[-1])
    return network


def _extended(network: RandomNetwork, layer: Layer) -> list[Tensor] | None:
    """All values with one more layer, or None (and the network as it was) where that does not work."""
    part = layer.part.double()
    if network.exact:
        integer_module(part, -1, 1, network.seed + 100 * len(network.layers))
    network.layers.append(layer)
    network.parts.append(part)
    found = _run(network)
    if found is None:
        network.layers.pop()
        network.parts = network.parts[:-1]
    return found


def _run(network: RandomNetwork) -> list[Tensor] | None:
    """All values, where plain torch runs the network both ways, and nothing gets too large to be exact."""
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        values = network.values(network.inputs()[0].requires_grad_())
        for value in values:
            value.retain_grad()
        torch.autograd.backward(values[-1].sum())
    except (RuntimeError, ValueError, Warning):
        return None
    network.zero_grad()
    for name, buffer in network.named_buffers():
        buffer.copy_(before[name])
    if not values[-1].numel() or max(v.numel() for v in values) > ELEMENTS:
        return None
    found = [v.detach() for v in values]
    if not all(bool(v.isfinite().all()) for v in found):
        return None
    if not network.exact:
        return found
    # A weight's gradient sums activation times gradient over all pixels, from three outputs with gradients up to 2.
    largest, gradient = max(map(size_of, found)), max(size_of(v.grad) for v in values)
    bits = log2(max(1.0, largest)) + log2(6 * max(1.0, gradient)) + log2(ELEMENTS) + sum(x.bits for x in network.layers)
    return found if bits < BITS else None


def _trains(network: RandomNetwork) -> bool:
    try:
        run_step(copy.deepcopy(network), network.inputs())
    except RuntimeError:
        return False
    return True


def _head(end: str | None, x: Tensor) -> nn.Module | None:
    """What a classifier puts behind the image."""
    axes = x.dim() - 2
    match end:
        case "pool" | "max":
            pool = getattr(nn, f"Adaptive{'Avg' if end == 'pool' else 'Max'}Pool{axes}d")(1)
            return nn.Sequential(pool, nn.Flatten(), nn.Linear(x.shape[1], 3)).double()
        case "flatten":
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(x.shape[1:]), 3)).double()
    return None


@st.composite
def tilings(draw: st.DrawFn, network: RandomNetwork, mode: str | None = None) -> dict[str, Any]:
    """Options of `tilegrad.tile` for a network: some of its axes, tiles from one element to more than the image."""
    n, _, *image = network.shape
    lengths = {"n": n, **dict(zip("dhw"[-len(image) :], image, strict=True))}
    axes = [axis for axis, length in lengths.items() if length > 1]
    chosen = draw(st.lists(st.sampled_from(axes), min_size=1, unique=True))
    sizes: dict[str, int] = {}
    for axis in axes:
        if axis in chosen:
            room = TILES // prod(-(-lengths[a] // size) for a, size in sizes.items())
            least = max(1, -(-lengths[axis] // max(1, room)))
            sizes[axis] = draw(st.integers(least, lengths[axis] + 2))
    mode = mode or draw(st.sampled_from(MODES))
    halos = draw(st.sampled_from(["device", "device", "host", "disk"])) if mode == "stream" else "device"
    return {"tile": sizes, "mode": mode, "halos": halos}
