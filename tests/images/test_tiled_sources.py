"""A tiled module on an image that lies elsewhere: the same outputs and gradients, and no image in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import zarr
from pictures import FORMATS, as_tensor, picture, small_net, whole_numbers
from torch import Tensor, nn

import tilegrad
from tilegrad.errors import InputError, ModelError, RunError
from tilegrad.images import batch
from tilegrad.sim.peak import PeakBytes

PLANS: list[dict[str, Any]] = [
    {"tile": 32},
    {"tile": 40, "axes": "h"},
    {"tile": 32, "mode": "gather"},
    {"tile": 32, "halos": "disk"},
    {"budget": "2MiB"},
    {"budget": "64MiB"},
    {"budget": "8MiB", "planner": "recompute"},
    {"planner": "keep"},
    {"mode": "none"},
    {"tile": 32, "compile": {"backend": "aot_eager"}},
]


def big_picture(seed: int = 0) -> np.ndarray[Any, Any]:
    return picture(seed, (160, 144, 3)) % 4


def gradients(module: nn.Module, x: Any) -> tuple[Tensor, list[Tensor]]:
    module.zero_grad()
    out = module(x)
    out.sum().backward()
    return out.detach(), [p.grad.clone() for p in module.parameters() if p.grad is not None]


def same(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> bool:
    return torch.equal(one[0], other[0]) and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_gradients_are_those_of_the_tensor(plan: dict[str, Any], tmp_path: Path) -> None:
    array, net = big_picture(), small_net()
    path = FORMATS["tiff in tiles, deflated"](tmp_path, array)
    source = tilegrad.open(path, dtype=torch.float64, scale=2, mean=(1, 2, 3))
    tiled = tilegrad.tile(net, **plan)
    assert same(gradients(tiled, source), gradients(net, source.read()))
    turned = source[..., 10:154, :].rot90().flip(-1)
    assert same(gradients(tiled, turned), gradients(net, turned.read()))


@pytest.mark.parametrize("kind", FORMATS)
def test_any_format(kind: str, tmp_path: Path) -> None:
    source = tilegrad.open(FORMATS[kind](tmp_path, big_picture()), dtype=torch.float64, scale=1)
    net = small_net()
    assert same(gradients(tilegrad.tile(net, tile=48), source), gradients(net, source.read()))


@pytest.mark.parametrize("plan", [{"tile": 32}, {"tile": {"n": 1}, "axes": "n"}, {"budget": "3MiB"}], ids=str)
def test_a_batch(plan: dict[str, Any]) -> None:
    source = batch([tilegrad.open(big_picture(seed), dtype=torch.float64, scale=1 + seed) for seed in range(3)])
    net = small_net()
    assert same(gradients(tilegrad.tile(net, **plan), source), gradients(net, source.read()))


def test_batch_norm_in_training() -> None:
    source = tilegrad.open(big_picture(), dtype=torch.float64, scale=1)
    net = whole_numbers(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)))
    ours, theirs = gradients(tilegrad.tile(net, tile=48), source), gradients(net, source.read())
    assert torch.allclose(ours[0], theirs[0]) and all(map(torch.allclose, ours[1], theirs[1]))


def test_volumes() -> None:
    source = tilegrad.open(picture(shape=(24, 20, 18)), axes="zyx", dtype=torch.float64, scale=1)
    net = whole_numbers(nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 2, 3)))
    assert same(gradients(tilegrad.tile(net, tile=8), source), gradients(net, source.read()))


def test_several_images_and_a_mask(tmp_path: Path) -> None:
    """A picture, a mask in a zarr array that is passed as it is, and the loss inside."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.net(x), mask, reduction="sum")

    module = whole_numbers(Loss())
    source = tilegrad.open(big_picture(), dtype=torch.float64, scale=1)
    mask = zarr.create_array(tmp_path / "m.zarr", shape=(1, 160, 144), chunks=(1, 33, 50), dtype="i8")
    mask[:] = big_picture(3)[None, ..., 0].astype("i8")
    module.zero_grad()
    plain = module(source.read(), torch.from_numpy(np.asarray(mask[:])))
    plain.backward()
    wanted = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    loss = tilegrad.tile(module, tile=32)(source, mask)
    loss.backward()
    assert torch.allclose(loss, plain)
    assert all(
        torch.allclose(p.grad, w) for p, w in zip(module.parameters(), wanted, strict=True) if p.grad is not None
    )


class Sliced:
    """What h5py has."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.most = 0

    def __getitem__(self, box: Any) -> Any:
        found = self.array[box]
        self.most = max(self.most, found.size)
        return found


def test_plain_arrays_are_opened(tmp_path: Path) -> None:
    array = np.ascontiguousarray(big_picture().transpose(2, 0, 1)[None].astype("f8"))
    net = small_net()
    wanted = gradients(net, torch.from_numpy(array))
    np.save(tmp_path / "x.npy", array)
    stored = zarr.create_array(tmp_path / "x.zarr", shape=array.shape, chunks=(1, 2, 50, 40), dtype="f8")
    stored[:] = array
    sliced = Sliced(array)
    for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), stored, sliced):
        assert same(gradients(tilegrad.tile(net, tile=32), x), wanted)
    assert sliced.most < array.size / 4


def test_the_image_is_not_in_memory(tmp_path: Path) -> None:
    """Peak bytes of tensors are as predicted, which is a small part of the image's."""
    array = picture(shape=(1024, 768, 3))
    tifffile.imwrite(tmp_path / "x.tif", array, photometric="rgb", tile=(128, 128), compression="zlib")
    source = tilegrad.open(tmp_path / "x.tif", scale=1 / 255)
    net = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    tiled = tilegrad.tile(net, budget="2MiB")
    tiled.plan_for(source)
    with PeakBytes("cpu") as peak:
        tiled(source).sum().backward()
    whole = 4 * array.size
    total = tiled.plan.schedule.predicted["total_bytes"]
    assert peak.bytes <= total <= 2 << 20 < whole / 4


def test_the_plan_counts_what_is_read_whole() -> None:
    """A model that reads its image whole holds it, and the plan says so."""
    source = tilegrad.open(torch.zeros(1, 3, 256, 256, dtype=torch.uint8), scale=1)
    net = nn.Conv2d(3, 2, 3)
    keep = tilegrad.tile(net, planner="keep")
    assert keep.plan_for(source).schedule.predicted == keep.plan_for(torch.zeros(1, 3, 256, 256)).schedule.predicted
    by_tiles = tilegrad.tile(net, tile=32)
    less = by_tiles.plan_for(source).schedule.predicted["total_bytes"]
    assert less < by_tiles.plan_for(torch.zeros(1, 3, 256, 256)).schedule.predicted["total_bytes"] - 3 * 256 * 256 * 3


def test_sizes_differ_and_plans_serve() -> None:
    net = small_net()
    tiled = tilegrad.tile(net, tile=32)
    for size in (64, 96, 64, 96):
        source = tilegrad.open(picture(shape=(size, size, 3)), dtype=torch.float64, scale=1)
        assert same(gradients(tiled, source), gradients(net, source.read()))
    assert len(tiled._state.calls) == 2


def test_bytes_without_a_scale(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", big_picture())
    tiled = tilegrad.tile(nn.Conv2d(3, 2, 3), tile=32)
    source = tilegrad.open(tmp_path / "x.npy")
    with pytest.raises(InputError, match=r"(?s)uint8 as float32, and no scale.*x\.npy', scale=1/255\)"):
        tiled(source)
    with pytest.raises(InputError, match="no scale"):
        source.read()
    with pytest.raises(InputError, match="mean and std, and no scale"):
        tilegrad.open(tmp_path / "x.npy", mean=0.5, std=0.5)
    for bytes_ in (as_tensor(big_picture()), np.load(tmp_path / "x.npy", mmap_mode="r").transpose(2, 0, 1)[None]):
        with pytest.raises(ModelError, match=r"scale=1/255"):
            tiled(bytes_)
    tiled(tilegrad.open(tmp_path / "x.npy", scale=1))
    tiled(tilegrad.open(tmp_path / "x.npy") * (1 / 255))


def test_a_model_that_writes_to_its_input() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2) + 1

    with pytest.raises(RunError, match=r"writes to its input"):
        tilegrad.tile(Writes(), tile=32)(tilegrad.open(torch.zeros(1, 3, 64, 64)))


@pytest.mark.parametrize(
    "colour", [{"scale": 0}, {"scale": float("nan")}, {"std": (1, 0, 1)}, {"mean": float("inf")}], ids=str
)
def test_colours_that_leave_nothing(colour: Any) -> None:
    with pytest.raises(InputError, match="makes nothing of an image"):
        tilegrad.open(picture(), **{"scale": 1, **colour})


@pytest.mark.parametrize("channels", [1, 4])
def test_wrong_channels(channels: int) -> None:
    source = tilegrad.open(torch.zeros(1, channels, 64, 64))
    with pytest.raises(ModelError, match="channels"):
        tilegrad.tile(nn.Conv2d(3, 2, 3), tile=32)(source)
