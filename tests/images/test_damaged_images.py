"""Files that are not what they say: one clear error that names the file, and no memory for what is not there."""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
import torch
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import FORMATS, picture
from torch import nn

import tilegrad
from tilegrad.errors import FormatError, InputError, TilegradError

FILES = {
    kind: make
    for kind, make in FORMATS.items()
    if kind.startswith(("tiff", "ome-tiff", "slide", "npy", "nifti"))
}  # fmt: skip


def open_and_read(path: Any) -> None:
    source = tilegrad.open(path, dtype=torch.float32, scale=1)
    if np.prod(source.shape, dtype=object) < 1 << 24:
        source.read()
    else:
        source[..., :8, :8].read()


@pytest.mark.parametrize("kind", FILES)
def test_truncated_at_any_byte(kind: str, tmp_path: Path) -> None:
    path = FILES[kind](tmp_path, picture())
    whole = path.read_bytes()
    for share in (0.0, 0.02, 0.3, 0.7, 0.97):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(FormatError, match=path.name):
            open_and_read(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_that_lie(data: st.DataObject, tmp_path: Path) -> None:
    """Any bytes of a header changed: it reads, or it is refused by name. It does not take the machine's memory."""
    kind = data.draw(st.sampled_from(sorted(set(FILES) - {"slide"})))
    path = FILES[kind](tmp_path, picture())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(content), 400) - 4))
        content[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        open_and_read(path)
    except TilegradError as error:
        assert path.name in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10  # KiB


def big_tiff(path: Path) -> None:
    """A tile of 2^15 x 2^15, of which some bytes are there."""
    tifffile.imwrite(path, picture(), photometric="rgb", tile=(16, 16), compression="zlib")
    content = bytearray(path.read_bytes())
    for tag in (256, 257, 322, 323):  # width, length, tile width, tile length
        at = content.find(struct.pack("<H", tag), 8)
        content[at + 2 : at + 12] = struct.pack("<HII", 4, 1, 1 << 15)
    path.write_bytes(content)


def big_npy(path: Path) -> None:
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 3, 3)})
        file.write(bytes(100))


def big_zarr(path: Path) -> None:
    zarr.create_array(path, shape=(64, 64, 3), chunks=(32, 32, 3), dtype="u1")[:] = 1
    about = json.loads((path / "zarr.json").read_text())
    about["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 20, 1 << 20, 3]
    about["shape"] = [1 << 20, 1 << 20, 3]
    (path / "zarr.json").write_text(json.dumps(about))


def big_nifti(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), path)
    content = bytearray(path.read_bytes())
    content[42:48] = struct.pack("<3h", 32767, 32767, 32767)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "make"), [("x.tif", big_tiff), ("x.npy", big_npy), ("x.zarr", big_zarr), ("x.nii", big_nifti)]
)
def test_sizes_that_lie(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / name
    make(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=name):
        tilegrad.open(path, dtype=torch.float32, scale=1)[..., -8:, -8:].read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_chunk_that_is_broken(tmp_path: Path) -> None:
    """Only the boxes that need it fail, and a tiled module says which file it was."""
    path = FORMATS["zarr 3"](tmp_path, picture())
    chunk = sorted((path / "c").rglob("0"))[-1]
    chunk.write_bytes(b"no chunk")
    source = tilegrad.open(path, scale=1 / 255)
    with pytest.raises(FormatError, match=r"picture\.zarr"):
        source.read()
    with pytest.raises(FormatError, match=r"picture\.zarr"):
        tilegrad.tile(nn.Conv2d(3, 2, 3), tile=16)(source)


def test_what_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "words.tif").write_text("these are no pixels")
    (tmp_path / "words.txt").write_text("these are no pixels")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "none.npy", np.zeros((0, 4, 3)))
    np.save(tmp_path / "object.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    zarr.open_group(tmp_path / "group.zarr", mode="w").create_array("inner", shape=(4, 4), dtype="u1")
    for name, match in (
        ("missing.tif", "there is no such file"),
        ("words.tif", "cannot be read"),
        ("words.txt", "of no format that is known"),
        ("empty.npy", "the file is empty"),
        ("several.npz", "of no format that is known"),
        ("text.npy", "no numbers that torch has"),
        ("none.npy", "it is empty"),
        ("object.npy", "cannot be read"),
        ("group.zarr", "its arrays: inner"),
        (".", "of no format that is known"),
    ):
        with pytest.raises(FormatError, match=rf"(?s){match}.*{tmp_path.name}"):
            tilegrad.open(tmp_path / name)
    with pytest.raises(InputError):
        tilegrad.open(3)
