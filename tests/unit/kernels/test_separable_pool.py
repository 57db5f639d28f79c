"""A max pool along one dimension after the other: torch's numbers, bit for bit, and the input as it was."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from tilegrad.kernels import separable_pool
from tilegrad.ops import pool

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
    monkeypatch.setattr(separable_pool, "PIECE", 100)  # several pieces of so small an image
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


def test_one_dimension() -> None:
    net, signal = nn.Sequential(nn.MaxPool1d(3, 2, 1), nn.ReLU()), torch.randn(2, 3, 33)
    with torch.no_grad():
        assert torch.equal(tilegrad.tile(net, tile={"w": 8})(signal), net(signal))


def test_torch_is_asked_where_a_gradient_needs_the_places(by_torch: list[Tensor]) -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2)).double()
    image = torch.randn(1, 2, 16, 16).double()
    with torch.no_grad():
        tilegrad.tile(net, tile={"h": 8})(image)
    assert not by_torch
    tilegrad.tile(net, tile={"h": 8})(image).sum().backward()
    assert len(by_torch) == 2  # once a tile: forward, where nothing is recorded, does without


def test_channels_that_lie_together_are_left_to_torch(by_torch: list[Tensor]) -> None:
    image = torch.randn(1, 8, 16, 16).contiguous(memory_format=torch.channels_last)
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    with torch.no_grad():
        assert torch.equal(tilegrad.tile(net, tile={"h": 8})(image), net(image))
    assert len(by_torch) == 2
