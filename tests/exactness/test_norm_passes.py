"""Norms in tiles: how often a tile of a normalised image is read or written, and that the gradients are plain's."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.execution import executor
from tilegrad.torch_private import TorchDispatchMode, pytree

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "batch, plain": lambda c: nn.BatchNorm2d(c, affine=False),
    "batch, eval": lambda c: nn.BatchNorm2d(c).eval(),
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True),
    "group": lambda c: nn.GroupNorm(4, c),
    "layer": lambda c: nn.GroupNorm(1, c),
}
# Reads and writes of the image, forward, forward again and backward, walk included: it stores the image and reads it,
# and adds up its gradient. Plain makes 10, and 13 for squeeze and excite. Without kernels these were 50, and 60 for
# groups.
MOST = dict.fromkeys(NORMS, 34) | {"batch, eval": 13}
FREE = ("empty", "view", "slice", "detach", "as_strided", "select", "expand", "alias", "narrow", "unflatten", "split")


class Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads and writes of tensors of this size and more, but for convolutions and their padding."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.units = least, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not any(free in name for free in (*FREE, "conv", "pad", "cat")):
            reads = () if name in ("copy_", "zero_") else (args[0],)
            units = sum(map(self._size, pytree.tree_leaves((reads, args[1:], result))))
            if units:
                self.units[name] += units
        return result

    def _size(self, item: Any) -> int:
        """Of an image: what is broadcast is not there."""
        return item.numel() if isinstance(item, Tensor) and item.numel() >= self.least and 0 not in item.stride() else 0


def network(norm: str, channels: int = 16) -> nn.Module:
    layers = (nn.Conv2d(3, channels, 3, bias=False), NORMS[norm](channels), nn.ReLU(), nn.Conv2d(channels, 2, 3))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("norm", NORMS)
def test_few_passes(norm: str) -> None:
    net, x = network(norm), torch.randn(1, 3, 66, 66)
    tiled = tilegrad.tile(net, tile=32, mode="stream")
    tiled(x).sum().backward()
    with Passes(16 * 28 * 28) as passes:
        tiled(x).sum().backward()
    assert sum(passes.units.values()) <= MOST[norm] * 16 * 64 * 64, passes.units


def gradients(run: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = run(x)
    (out * torch.linspace(-1, 2, out.shape[-1], dtype=out.dtype)).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in run.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("mode", ["stream", "scatter", "gather"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "last"])
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_plains(norm: str, layout: torch.memory_format, mode: str) -> None:
    torch.manual_seed(0)
    net = network(norm, 8).double().to(memory_format=layout)
    x = torch.randn(2, 3, 21, 26, dtype=torch.float64).contiguous(memory_format=layout)
    plain = gradients(copy.deepcopy(net), x)
    for mine, theirs in zip(gradients(tilegrad.tile(net, tile=9, mode=mode), x), plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("norm", NORMS)
def test_with_and_without_the_activation_in_place(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(norm, 8).double(), torch.randn(2, 3, 21, 26, dtype=torch.float64)
    fast = gradients(tilegrad.tile(copy.deepcopy(net), tile=9), x)
    monkeypatch.setattr(executor, "with_kernels", lambda island, *_: island.steps)
    for mine, theirs in zip(fast, gradients(tilegrad.tile(net, tile=9), x), strict=True):
        assert torch.equal(mine, theirs)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.last(x * self.gate(x.mean((2, 3), keepdim=True)).sigmoid())


def test_squeeze_and_excite_in_few_passes() -> None:
    net, x = SqueezeExcite(), torch.randn(1, 3, 66, 66)
    tiled = tilegrad.tile(net, tile=32, mode="stream")
    tiled(x).sum().backward()
    with Passes(16 * 28 * 28) as passes:
        tiled(x).sum().backward()
    assert sum(passes.units.values()) <= 18 * 16 * 64 * 64, passes.units
