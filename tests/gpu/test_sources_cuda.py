"""On a CUDA device: images that lie on disk, read into pinned memory, bytes until they are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.images import batch
from tilegrad.sim.peak import PeakBytes

pytestmark = pytest.mark.gpu


def _net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, padding=1))
    for parameter in net.double().parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).double()
    return net.cuda()


def _source(path: Path, size: int, dtype: torch.dtype = torch.float64) -> tilegrad.ImageSource:
    np.save(path, np.random.default_rng(0).integers(0, 4, (size, size, 3), dtype=np.uint8))
    return tilegrad.open(path, dtype=dtype, scale=1)


@pytest.mark.parametrize("several", [False, True])
def test_gradients_are_plains(several: bool, tmp_path: Path) -> None:
    net, source = _net(), _source(tmp_path / "x.npy", 200)
    source = batch([source, source.rot90()]) if several else source
    net(source.read().cuda()).sum().backward()
    wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    tiled = tilegrad.tile(net, tile=48)
    for _ in range(3):
        net.zero_grad()
        tiled(source).sum().backward()
        assert all(torch.equal(p.grad, w) for p, w in zip(net.parameters(), wanted, strict=True) if p.grad is not None)


def test_the_image_is_not_on_the_device(tmp_path: Path) -> None:
    source = _source(tmp_path / "x.npy", 4096, torch.float32)
    net = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).cuda()
    tiled = tilegrad.tile(net, budget="24MiB")
    tiled.plan_for(source)
    with PeakBytes("cuda") as peak:
        tiled(source).sum().backward()
    assert peak.bytes <= 24 << 20 < 4096 * 4096 * 3


def test_predict(tmp_path: Path) -> None:
    net, source = _net(), _source(tmp_path / "x.npy", 200)
    tilegrad.predict(tilegrad.tile(net, tile=48), source, tmp_path / "out.npy")
    with torch.no_grad():
        wanted = net(source.read().cuda()).cpu()
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "out.npy")), wanted)
