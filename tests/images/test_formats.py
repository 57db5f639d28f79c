"""Every format gives the same boxes of the same picture, and so does every way of looking at it."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st
from pictures import FORMATS, HEIGHT, WIDTH, WITH_LEVELS, as_tensor, picture
from torch.utils.data import DataLoader, Dataset

import tilegrad
from tilegrad.errors import InputError
from tilegrad.images import ImageSource, batch, formats
from tilegrad.region import Box

every_format = pytest.mark.parametrize("kind", FORMATS)


def boxes(count: int, seed: int = 0) -> list[tuple[slice, ...]]:
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        (top, bottom), (left, right) = (sorted(draw.integers(0, n, 2)) for n in (HEIGHT, WIDTH))
        first = int(draw.integers(0, 3))
        found.append(
            (slice(None), slice(first, None), slice(int(top), int(bottom) + 1), slice(int(left), int(right) + 1))
        )
    return found


@every_format
def test_the_same_boxes(kind: str, tmp_path: Path) -> None:
    array = picture()
    source = tilegrad.open(FORMATS[kind](tmp_path, array), dtype=torch.uint8)
    whole = as_tensor(array)
    assert source.shape == whole.shape and source.stored is torch.uint8
    assert torch.equal(source.read(), whole)
    for box in boxes(20):
        assert torch.equal(source[box].read(), whole[box])


@every_format
@pytest.mark.parametrize("dtype", [">u2", "<f4", ">f8", "int16"])
def test_other_pixels(kind: str, dtype: str, tmp_path: Path) -> None:
    array = picture(1, dtype=dtype)
    if kind == "slide":
        pytest.skip("slides have bytes")
    if kind == "tensor":
        array = array.astype(array.dtype.newbyteorder("="))
    source = tilegrad.open(FORMATS[kind](tmp_path, array), dtype=torch.float64, scale=1)
    assert torch.equal(source.read(), as_tensor(array).double())


@pytest.mark.parametrize("kind", WITH_LEVELS)
def test_levels(kind: str, tmp_path: Path) -> None:
    array = picture()
    path = FORMATS[kind](tmp_path, array)
    small = tilegrad.open(path, level=1, dtype=torch.uint8)
    assert small.levels == [(1, 3, HEIGHT, WIDTH), (1, 3, (HEIGHT + 1) // 2, (WIDTH + 1) // 2)]
    assert torch.equal(small.read(), as_tensor(array[::2, ::2]))
    assert torch.equal(small[..., 7:21, 5:].read(), small.read()[..., 7:21, 5:])
    with pytest.raises(InputError, match="there is no level 2"):
        tilegrad.open(path, level=2)


@every_format
def test_it_is_opened_again_in_another_process(kind: str, tmp_path: Path) -> None:
    array = picture()
    source = tilegrad.open(FORMATS[kind](tmp_path, array), scale=1 / 255)[..., 3:40, 5:].flip(-1)
    text = pickle.dumps(source)
    assert torch.equal(pickle.loads(text).read(), source.read())
    if kind not in ("tensor", "array", "anything that slices"):
        assert len(text) < 2500  # not the pixels


@given(st.data())
def test_views_are_those_of_tensors(data: st.DataObject) -> None:
    """Slices, flips and turns in any order."""
    whole = torch.arange(3 * 7 * 9).reshape(1, 3, 7, 9)
    source: Any = tilegrad.open(whole, dtype=torch.int64)
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["cut", "flip", "turn"])):
            case "cut":
                part = [sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)))) for n in whole.shape]
                box = tuple(slice(lo, max(hi, lo + 1)) for lo, hi in part)
                source, whole = source[box], whole[box]
            case "flip":
                dims = data.draw(st.lists(st.integers(-4, 3), min_size=1, max_size=2, unique_by=lambda d: d % 4))
                source, whole = source.flip(dims), whole.flip(dims)
            case "turn":
                k = data.draw(st.integers(-5, 5))
                source, whole = source.rot90(k), whole.rot90(k, (-2, -1))
    assert source.shape == whole.shape
    assert torch.equal(source.read(), whole)


def test_colours_are_those_of_tensors() -> None:
    """The same operations in the same order give the same bits, also behind cuts, flips and turns."""
    whole = as_tensor(picture())
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    source = tilegrad.open(whole, scale=1 / 255, mean=mean, std=std)
    seen = (whole.float() * (1 / 255) - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.equal(source.read(), seen)
    gain = torch.tensor([1.1, 0.9, 1.0]).view(3, 1, 1)
    assert torch.equal((source * gain + 0.1).read(), seen * gain + 0.1)
    assert torch.equal(
        (source * gain)[:, 1:, 5:].flip(1, -1).rot90().read(), (seen * gain)[:, 1:, 5:].flip(1, -1).rot90(1, (-2, -1))
    )
    assert torch.equal(tilegrad.open(whole, scale=1 / 255).normalize(mean, std).read(), seen)
    assert torch.equal(source.read(Box(((0, 1), (1, 2), (3, 9), (0, 4)))), seen[:, 1:2, 3:9, 0:4])


def test_a_batch() -> None:
    first, second = (as_tensor(picture(seed)) for seed in (1, 2))
    one, other = tilegrad.open(first, scale=0.5), tilegrad.open(second, scale=2)
    both = batch([one, other, one])
    seen = torch.cat([first * 0.5, second.float() * 2, first * 0.5])
    assert both.shape == (3, 3, HEIGHT, WIDTH) and torch.equal(both.read(), seen)
    assert torch.equal(both[1:, :, 4:].flip(0).read(), seen[1:, :, 4:].flip(0))
    with pytest.raises(InputError, match="in a batch"):
        batch([one, other[..., 1:]])


class Slides(Dataset[ImageSource]):
    def __init__(self, paths: list[Path]):
        self.sources = [tilegrad.open(path, scale=1 / 255) for path in paths]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, at: int) -> ImageSource:
        return self.sources[at][..., :32, :32].rot90(at)


def test_workers_carry_them(tmp_path: Path) -> None:
    paths = []
    for seed, kind in enumerate(("tiff in tiles, deflated", "zarr 3", "npy", "slide")):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths.append(FORMATS[kind](folder, picture(seed)))
    slides = Slides(paths)
    context = None if sys.platform == "win32" else "forkserver"
    loader = DataLoader(slides, batch_size=2, num_workers=1, collate_fn=batch, multiprocessing_context=context)
    found = torch.cat([each.read() for each in loader])
    assert torch.equal(found, torch.cat([slides[at].read() for at in range(4)]))


def test_a_forked_process_opens_a_slide_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes must not share a place in one open file."""
    source = tilegrad.open(FORMATS["slide"](tmp_path, picture()), dtype=torch.uint8)
    reader: Any = source.parts[0].opened.reader
    before, seen = reader.slide, source.read()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert torch.equal(source.read(), seen) and reader.slide is not before


def test_axes() -> None:
    array = picture(shape=(5, 6, 7))
    assert tilegrad.open(array, axes="zyx").shape == (1, 1, 5, 6, 7)
    assert tilegrad.open(array, axes="hwc").shape == (1, 7, 5, 6)
    assert tilegrad.open(array[:1], axes="zyx").shape == (1, 1, 1, 6, 7)
    assert tilegrad.open(picture(shape=(2, 3, 6, 7))).shape == (2, 3, 6, 7)
    assert tilegrad.open(picture(shape=(2, 3, 4, 6, 7))).shape == (2, 3, 4, 6, 7)
    assert tilegrad.open(picture(shape=(6, 7))).shape == (1, 1, 6, 7)
    turned = tilegrad.open(array, axes="xyz", dtype=torch.uint8)
    assert torch.equal(turned.read(), torch.from_numpy(array).permute(2, 1, 0)[None, None])
    for wrong, match in (("xy", "are not the 3"), ("xyt", "axis 't' has 7"), ("xxy", "axis 'x'"), ("ncx", "axis|no h")):
        with pytest.raises(InputError, match=match):
            tilegrad.open(array, axes=wrong)
    with pytest.raises(InputError, match="which axis is which"):
        tilegrad.open(array)


def test_volumes(tmp_path: Path) -> None:
    array = picture(shape=(2, 9, 20, 16), dtype="int16")
    tifffile.imwrite(tmp_path / "v.tif", array, ome=True, metadata={"axes": "CZYX"}, compression="zlib")
    made = zarr.create_array(tmp_path / "v.zarr", shape=array.shape, chunks=(1, 4, 7, 5), dtype="i2")
    made[:] = array
    whole = torch.from_numpy(array)[None]
    for path, axes in (("v.tif", None), ("v.zarr", "czyx")):
        source = tilegrad.open(tmp_path / path, axes=axes, dtype=torch.int16)
        assert torch.equal(source.read(), whole)
        assert torch.equal(source[:, 1:, 3:7, 5:11, 2:].flip(2, 4).read(), whole[:, 1:, 3:7, 5:11, 2:].flip(2, 4))


def test_what_is_not_possible() -> None:
    source = tilegrad.open(as_tensor(picture()), scale=1 / 255)
    for wrong, match in (
        (lambda: source[0], "slices without steps"),
        (lambda: source[..., ::2], "slices without steps"),
        (lambda: source[..., 5:5], "is empty"),
        (lambda: source[0:1, 0:1, 0:1, 0:1, 0:1], "5 indices"),
        (lambda: source.flip(7), "no dimension 7"),
        (lambda: source.rot90(1, (0, 1)), "cannot be turned"),
        (lambda: source * torch.ones(2, 1, 1), "is not one colour"),
        (lambda: source * torch.ones(3, 1, 1, dtype=torch.float64), "of another type"),
        (lambda: source * "red", "colours are numbers"),
        (lambda: source.requires_grad_(), "has no gradient"),
    ):
        with pytest.raises(InputError, match=match):
            wrong()


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FORMATS["tiff in tiles"](tmp_path, picture())
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(InputError, match=r"pip install 'tilegrad\[images\]'"):
        tilegrad.open(path)


def test_every_format_is_found() -> None:
    assert {"array", "nifti", "npy", "slide", "tiff", "zarr"} <= set(formats())
