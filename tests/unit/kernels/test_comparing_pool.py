"""A max pool along one dimension after the other, that remembers no places: torch's numbers and gradients, bit for bit,
and the input as it was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.kernels import comparing_pool
from tilegrad.ops import pool
from tilegrad.testing import PeakBytes

WINDOWS = [
    (kernel, stride, padding, dilation, ceil)
    for kernel, stride, padding, dilation, ceil in product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2), (False, True))
    if padding <= kernel // 2
]
TILES: list[dict[str, Any]] = [{"tile": 4}, {"tile": {"w": 3}}, {"tile": {"h": 5}}, {"planner": "keep"}]


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What torch's own pool is asked for."""
    asked: list[Tensor] = []

    def counted(x: Tensor, *rest: Any) -> Tensor:
        asked.append(x)
        return F.max_pool2d(x, *rest)

    monkeypatch.setattr(pool, "MAX", (F.max_pool1d, counted, F.max_pool3d))
    return asked


@pytest.mark.parametrize("options", TILES, ids=str)
def test_any_window(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_pool, "PIECE", 100)  # several pieces of so small an image
    image = torch.randn(2, 3, 13, 11).round_()
    image[0, 0, 3, 4], image[1, 1, 5, 5] = torch.nan, -torch.inf
    before = image.clone()
    with torch.no_grad():
        for at, window in enumerate(WINDOWS):
            if at % len(TILES) == TILES.index(options):
                net = nn.Sequential(nn.Identity(), nn.MaxPool2d(*window[:4], ceil_mode=window[4]), nn.ReLU())
                torch.testing.assert_close(
                    tilegrad.tile(net, **options)(image), net(image), rtol=0, atol=0, equal_nan=True
                )
    torch.testing.assert_close(image, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("options", TILES, ids=str)
def test_any_windows_gradient(
    options: dict[str, Any], layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole numbers, of which several of a window are the largest: the first one's gradient it is."""
    monkeypatch.setattr(comparing_pool, "PIECE", 100)
    image = torch.randn(2, 3, 13, 11, dtype=torch.float64).round_().contiguous(memory_format=layout)
    for at, window in enumerate(WINDOWS):
        if at % len(TILES) == TILES.index(options):
            net = nn.Sequential(nn.Identity(), nn.MaxPool2d(*window[:4], ceil_mode=window[4]), nn.ReLU())
            found, wanted = (gradients(run, image) for run in (tilegrad.tile(net, **options), net))
            assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True)), window


def test_what_was_read_stays_in_backward() -> None:
    """Also of one window, whose columns lie one behind the other as they are."""
    for size in (1, 2), (2, 2), (1, 4), (3, 5):
        x = torch.randn(1, 1, *size).requires_grad_()
        before = x.detach().clone()
        out = tilegrad.tile(nn.MaxPool2d((1, 2)), planner="keep")(x)
        out.backward(torch.full_like(out, 7.0))
        assert torch.equal(x, before) and x.grad is not None and x.grad.sum() == 7 * out.numel()


def gradients(run: Callable[[Tensor], Tensor], image: Tensor) -> tuple[Tensor, Tensor]:
    x = image.clone().requires_grad_()
    out = run(x)
    out.backward(torch.arange(out.numel(), dtype=out.dtype).view_as(out).remainder(7) - 3)
    assert x.grad is not None
    return out.detach(), x.grad


class Turned(nn.Module):
    """Pools an image whose memory lies otherwise than its axes."""

    def __init__(self, order: tuple[int, ...], window: tuple[int, ...]):
        super().__init__()
        self.order, self.pool = order, nn.MaxPool2d(*window)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x.permute(self.order)) * 2


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3), (2, 3, 0, 1)], ids=str)
@pytest.mark.parametrize("window", [(2, 2), (3, 2, 1)])
def test_whichever_way_an_image_lies(window: tuple[int, ...], order: tuple[int, ...]) -> None:
    image = torch.randn(6, 7, 8, 9, dtype=torch.float64).round_()
    net = Turned(order, window)
    found, wanted = (gradients(run, image) for run in (tilegrad.tile(net, planner="keep"), net))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize("window", [(2, 2), (3, 2, 1), (3, 1, 1)])
def test_what_is_no_number(window: tuple[int, ...]) -> None:
    """Of a window without a number, of one that is less than all numbers, and a gradient without bounds."""
    image = torch.randn(1, 2, 9, 8)
    image[0, 0, 2:4, 3:5], image[0, 0, 6, 6], image[0, 1, 4:8, 1:7] = torch.nan, torch.nan, -torch.inf
    found, wanted = [], []
    for run, into in ((tilegrad.tile(net := nn.MaxPool2d(*window), planner="keep"), found), (net, wanted)):
        x = image.clone().requires_grad_()
        out = run(x)
        grad = torch.linspace(-1, 1, out.numel()).view_as(out).clone()
        grad[0, 1, 0, 0] = torch.inf
        out.backward(grad)
        into += [out.detach(), x.grad]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_one_dimension() -> None:
    net, signal = nn.Sequential(nn.MaxPool1d(3, 2, 1), nn.ReLU()), torch.randn(2, 3, 33)
    with torch.no_grad():
        assert torch.equal(tilegrad.tile(net, tile={"w": 8})(signal), net(signal))
    found, wanted = (gradients(run, signal.double().round()) for run in (tilegrad.tile(net, tile={"w": 8}), net))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


def test_torch_is_not_asked_for_places(by_torch: list[Tensor]) -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2)).double()
    image = torch.randn(1, 2, 16, 16).double()
    with torch.no_grad():
        tilegrad.tile(net, tile={"h": 8})(image)
    tilegrad.tile(net, tile={"h": 8})(image).sum().backward()
    assert not by_torch


def test_it_remembers_no_places() -> None:
    """What a step keeps of a pool are its two images, which others keep anyway."""
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 1, 3, padding=1))
    image = torch.randn(1, 1, 256, 256)
    plain, ours = (kept(run, image) for run in (net, tilegrad.tile(net, planner="keep")))
    places = 8 * 8 * 128 * 128
    assert 0.9 * places < plain - ours < 1.1 * places


def kept(run: Callable[[Tensor], Tensor], image: Tensor) -> int:
    """Bytes that wait for backward."""
    run(image).sum().backward()
    with PeakBytes("cpu") as found:
        out = run(image)
        there: int = found.now
    assert out.requires_grad
    return there


def test_channels_that_lie_together_are_left_to_torch(by_torch: list[Tensor]) -> None:
    image = torch.randn(1, 8, 16, 16).contiguous(memory_format=torch.channels_last)
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    with torch.no_grad():
        assert torch.equal(tilegrad.tile(net, tile={"h": 8})(image), net(image))
    assert len(by_torch) == 2
