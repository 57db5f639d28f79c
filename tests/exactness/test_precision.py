"""Half precision and autocast: tiled gradients are as close to the truth as plain ones.

Rounding differs, so both are measured against float64, and the mean over tensors is compared: each tile's part of a
gradient is rounded once by torch, their sum is kept in single precision, and a single rounding may fall either way.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad

MODES = ("stream", "scatter", "gather")
every_mode = pytest.mark.parametrize("mode", MODES)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3)
    )


def image(size: int = 40) -> Tensor:
    return torch.randn(1, 2, size, size, generator=torch.Generator().manual_seed(1))


def gradients(run: nn.Module, x: Tensor, autocast: bool = False) -> list[Tensor]:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = run(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    (out * weights).sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in run.parameters())]


def errors(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True)]


def assert_as_close(tiled: list[Tensor], plain: list[Tensor], truth: list[Tensor], share: float = 1.2) -> None:
    assert [t.dtype for t in tiled] == [t.dtype for t in plain]
    ours, theirs = errors(tiled, truth), errors(plain, truth)
    assert sum(ours) <= share * sum(theirs), (ours, theirs)


@every_mode
@pytest.mark.parametrize("tile", [6, 16])
def test_autocast(tile: int, mode: str) -> None:
    net = make_net()
    truth = gradients(copy.deepcopy(net).double(), image().double())
    plain = gradients(copy.deepcopy(net), image(), autocast=True)
    tiled = gradients(tilegrad.tile(net, tile=tile, mode=mode), image(), autocast=True)
    assert tiled[0].dtype == torch.bfloat16
    assert_as_close(tiled, plain, truth)


@every_mode
def test_autocast_outside_of_backward_too(mode: str) -> None:
    """Backward is usually called outside the block; inside it must change nothing."""
    nets = [tilegrad.tile(make_net(), tile=8, mode=mode) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        nets[0](image()).float().sum().backward()
        out = nets[1](image())
    out.float().sum().backward()
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_same_module_with_and_without_autocast() -> None:
    net = make_net()
    tiled = tilegrad.tile(net, tile=8)
    for autocast in (False, True, False):
        assert gradients(tiled, image(), autocast)[0].dtype == (torch.bfloat16 if autocast else torch.float32)
        net.zero_grad()
    torch.testing.assert_close(tiled(image()), net(image()))


@every_mode
def test_bfloat16_over_many_tiles(mode: str) -> None:
    net = make_net().bfloat16()
    x = image(64).bfloat16()
    truth = gradients(copy.deepcopy(net).double(), x.double())
    plain = gradients(copy.deepcopy(net), x)
    tiled = gradients(tilegrad.tile(net, tile=8, mode=mode), x)
    assert_as_close(tiled, plain, truth)


@every_mode
def test_bfloat16_statistics(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).bfloat16()
    x = image().bfloat16()
    truth_net, plain_net = copy.deepcopy(net).double(), copy.deepcopy(net)
    truth, plain = gradients(truth_net, x.double()), gradients(plain_net, x)
    tiled = gradients(tilegrad.tile(net, tile=8, mode=mode), x)
    skipped = 2  # the bias before batch norm, whose gradient is nothing but rounding
    for found in (truth, plain, tiled):
        del found[1 + skipped]
    assert_as_close(tiled, plain, truth, share=2.0)
    for ours, theirs, exact in zip(net.buffers(), plain_net.buffers(), truth_net.buffers(), strict=True):
        assert ours.dtype == theirs.dtype
        assert float((ours.double() - exact).abs().max()) <= 1.5 * float((theirs.double() - exact).abs().max()) + 1e-3


@every_mode
def test_single_precision(mode: str) -> None:
    net = make_net()
    truth = gradients(copy.deepcopy(net).double(), image(64).double())
    plain = gradients(copy.deepcopy(net), image(64))
    assert_as_close(gradients(tilegrad.tile(net, tile=9, mode=mode), image(64)), plain, truth, share=2.0)


@every_mode
def test_a_gradient_scaler(mode: str) -> None:
    net = make_net()
    plain, tiled = copy.deepcopy(net), tilegrad.tile(net, tile=8, mode=mode)
    found: list[Any] = []
    for run in (plain, tiled):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(run.parameters(), lr=0.01)
        scaler.scale(run(image()).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append([p.detach().clone() for p in run.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
