"""Outputs that are never whole: what is written is what the untiled model gives, everywhere."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from pictures import picture, small_net, whole_numbers
from torch import Tensor, nn

import tilegrad
from tilegrad.cli import main
from tilegrad.errors import BudgetError, FormatError, InputError, RunError
from tilegrad.images import ImageSource, zarr_array
from tilegrad.models import unet
from tilegrad.sim.peak import PeakBytes

PLANS: list[dict[str, Any]] = [
    {"tile": 32},
    {"tile": 40, "axes": "h"},
    {"tile": 32, "mode": "gather"},
    {"budget": "900KiB"},
    {"budget": "64MiB"},
]


def source_of(size: tuple[int, int] = (130, 118)) -> ImageSource:
    return tilegrad.open(picture(shape=(*size, 3)) % 4, dtype=torch.float64, scale=1)


def read(path: Path, dtype: torch.dtype = torch.float64) -> Tensor:
    return tilegrad.open(path, dtype=dtype, axes="nchw" if path.suffix == ".zarr" else None).read()


@pytest.mark.parametrize("name", ["out.zarr", "out.tif", "out.npy"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_the_untiled_model_gives(plan: dict[str, Any], name: str, tmp_path: Path) -> None:
    net, source, out = small_net(), source_of(), tmp_path / name
    wanted = net(source.read()).detach()
    tiled = tilegrad.tile(net, **plan)
    tilegrad.predict(tiled, source, out)
    assert torch.equal(read(out), wanted)
    tilegrad.predict(tiled, source, out, argmax=True, dtype=torch.uint8, overwrite=True)
    assert torch.equal(read(out, torch.uint8), wanted.argmax(1, keepdim=True).to(torch.uint8))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_unet_on_crops_with_their_receptive_field(tmp_path: Path) -> None:
    """At random places, at borders and over seams."""
    net = whole_numbers(unet(depth=2, width=0.125, in_channels=3)).eval()
    source = source_of((352, 320))
    tilegrad.predict(tilegrad.tile(net, tile=64), source, tmp_path / "out.zarr")
    found, draw = read(tmp_path / "out.zarr"), np.random.default_rng(0)
    margin, size = 48, 64  # of what a pixel sees, and in steps of all strides together
    corners = [(0, 0), (288, 256), (64 - 32, 128 - 32), *(tuple(4 * draw.integers(0, 64, 2)) for _ in range(5))]
    for top, left in corners:
        rows, columns = (
            (max(0, at - margin), min(n, at + size + margin)) for at, n in ((int(top), 352), (int(left), 320))
        )
        with torch.no_grad():
            part = net(source[..., slice(*rows), slice(*columns)].read())
        inside = part[..., top - rows[0] : top - rows[0] + size, left - columns[0] : left - columns[0] + size]
        assert torch.equal(found[..., top : top + size, left : left + size], inside)


class Several(nn.Module):
    """A map, another made of it, and a number for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.first(x).relu()
        return {"first": first, "second": self.second(first), "mean": first.mean((2, 3), keepdim=True)}


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_several_outputs(plan: dict[str, Any], tmp_path: Path) -> None:
    net, source = whole_numbers(Several()), source_of()
    wanted, tiled = net(source.read()), tilegrad.tile(net, **plan)
    by_name = {name: tmp_path / f"{name}.npy" for name in ("second", "first")}
    tilegrad.predict(tiled, source, by_name)
    assert all(torch.equal(read(path), wanted[name]) for name, path in by_name.items())
    in_order = [tmp_path / f"{at}.zarr" for at in range(3)]
    tilegrad.predict(tiled, source, in_order)
    assert torch.equal(read(in_order[1]), wanted["second"])
    assert torch.allclose(read(in_order[2]), wanted["mean"])
    for wrong, match in (("one.zarr", "1 paths for 3"), ({"third": "x.npy"}, "the module gives first, second, mean")):
        with pytest.raises(InputError, match=match):
            tilegrad.predict(tiled, source, wrong)


def test_neither_image_nor_result_is_in_memory(tmp_path: Path) -> None:
    """One budget, whatever the size."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    for size in (256, 512, 1024):
        np.save(tmp_path / "x.npy", picture(shape=(size, size, 3)))
        tiled = tilegrad.tile(net, budget="2MiB")
        with torch.no_grad(), pytest.raises(BudgetError) if size == 1024 else torch.no_grad():
            tiled(torch.zeros(1, 3, size, size)) if size == 1024 else None
        source = tilegrad.open(tmp_path / "x.npy", scale=1 / 255)
        tilegrad.predict(tiled, source, tmp_path / "out.npy", overwrite=True)  # planned
        with PeakBytes("cpu") as peak:
            tilegrad.predict(tiled, source, tmp_path / "out.npy", overwrite=True)
        assert peak.bytes <= tiled.plan.schedule.predicted["total_bytes"] <= 2 << 20
    assert read(tmp_path / "out.npy").shape == (1, 4, 1024, 1024)


def test_nothing_is_left_of_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiled, source = tilegrad.tile(small_net(), tile=32), source_of()
    tilegrad.predict(tiled, source, tmp_path / "out.zarr")
    before = read(tmp_path / "out.zarr")
    writes = []

    def full(self: object, box: object, tile: object) -> None:
        writes.append(box)
        if len(writes) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zarr_array.ZarrWriter, "write", full)
    with pytest.raises(RunError, match=r"(?s)No space left on device.*out\.zarr"):
        tilegrad.predict(tiled, source, tmp_path / "out.zarr", overwrite=True)
    assert torch.equal(read(tmp_path / "out.zarr"), before)
    assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"]


def test_what_is_not_possible(tmp_path: Path) -> None:
    net, source = small_net(), source_of()
    tiled = tilegrad.tile(net, tile=32)
    with pytest.raises(InputError, match="is not tiled"):
        tilegrad.predict(net, source, tmp_path / "out.zarr")
    with pytest.raises(InputError, match=r"a name that ends in .*\.npy"):
        tilegrad.predict(tiled, source, tmp_path / "out.png")
    with pytest.raises(InputError, match="there is no folder"):
        tilegrad.predict(tiled, source, tmp_path / "no" / "out.zarr")
    (tmp_path / "out.npy").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        tilegrad.predict(tiled, source, tmp_path / "out.npy")
    assert (tmp_path / "out.npy").read_text() == "mine"


FACTORY = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("predict_net.py").write_text(FACTORY)
    array = picture(shape=(90, 70, 3))
    tifffile.imwrite("x.tif", array, photometric="rgb", tile=(16, 16))
    names: dict[str, Any] = {}
    exec(FACTORY, names)
    net = names["net"]()
    torch.save(net.state_dict(), "weights.pt")
    torch.save({"model": net.state_dict(), "step": 3}, "checkpoint.pt")
    seen = (torch.from_numpy(array).permute(2, 0, 1)[None].float() * (1 / 255) - 0.5) / 0.2
    wanted = net(seen).detach()
    call = ["predict", "predict_net.py:net", "x.tif", "--scale", "1/255", "--mean", "0.5", "--std", "0.2"]
    assert main([*call, "--checkpoint", "weights.pt", "--out", "a.zarr", "--tile", "32"]) == 0
    assert "a.zarr: 1x3x90x70 in" in capsys.readouterr().out
    assert torch.allclose(read(tmp_path / "a.zarr", torch.float32), wanted, atol=1e-5)
    more = ["--checkpoint", "checkpoint.pt", "--argmax", "--dtype", "uint8", "--out", "b.tif", "--budget", "400KiB"]
    assert main([*call, *more]) == 0
    assert read(tmp_path / "b.tif", torch.uint8).shape == (1, 1, 90, 70)
    capsys.readouterr()
    Path("broken.pt").write_bytes(b"nothing")
    torch.save(nn.Conv2d(1, 1, 1).state_dict(), "other.pt")
    torch.save([1, 2], "list.pt")
    for wrong, said in (
        ([*call, "--out", "a.zarr"], "is there already"),
        ([*call, "--out", "c.zarr", "--checkpoint", "none.pt"], "there is no such checkpoint"),
        ([*call, "--out", "c.zarr", "--checkpoint", "broken.pt"], "the checkpoint cannot be read"),
        ([*call, "--out", "c.zarr", "--checkpoint", "other.pt"], "for another model"),
        ([*call, "--out", "c.zarr", "--checkpoint", "list.pt"], "holds no state dict"),
        (["predict", "predict_net.py:net", "x.tif", "--out", "c.zarr"], "scale=1/255"),
        ([*call, "--out", "c.zarr", "--tile", "8", "--budget", "1GiB"], "not both"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err
    assert not Path("c.zarr").exists()


class Harmful:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harmed"),)


def test_a_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilegrad.cli.predict import load_weights

    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Harmful()}, "evil.pt")
    with pytest.raises(FormatError, match="cannot be read"):
        load_weights(nn.Conv2d(1, 1, 1), "evil.pt")
    assert not Path("harmed").exists()
