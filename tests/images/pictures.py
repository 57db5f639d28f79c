"""The same picture in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import tifffile
import torch
import zarr
from torch import Tensor, nn

HEIGHT, WIDTH = 61, 47


def picture(seed: int = 0, shape: tuple[int, ...] = (HEIGHT, WIDTH, 3), dtype: str = "uint8") -> np.ndarray[Any, Any]:
    """Rows, columns, channels."""
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """As a model has it."""
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).permute(2, 0, 1)[None].contiguous()


def _tiff(planar: bool = False, **about: Any) -> Callable[[Path, np.ndarray[Any, Any]], Path]:
    def write(folder: Path, array: np.ndarray[Any, Any]) -> Path:
        path = folder / "picture.tif"
        data = np.ascontiguousarray(array.transpose(2, 0, 1)) if planar else array
        if array.dtype.kind == "f":
            about.pop("predictor", None)  # which then needs another library
        tifffile.imwrite(path, data, **{"photometric": "rgb", **about})
        return path

    return write


def _zarr(version: int, chunks: tuple[int, ...]) -> Callable[[Path, np.ndarray[Any, Any]], Path]:
    def write(folder: Path, array: np.ndarray[Any, Any]) -> Path:
        made = zarr.create_array(
            folder / "picture.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype, zarr_format=version
        )
        made[:] = array
        return folder / "picture.zarr"

    return write


def _ome_zarr(version: int) -> Callable[[Path, np.ndarray[Any, Any]], Path]:
    def write(folder: Path, array: np.ndarray[Any, Any]) -> Path:
        group = zarr.open_group(folder / "picture.zarr", mode="w", zarr_format=version)
        data = array.transpose(2, 0, 1)[None, :, None]  # time, channels, depth
        for level, step in enumerate((1, 2)):
            part = data[..., ::step, ::step]
            group.create_array(str(level), shape=part.shape, chunks=(1, 1, 1, 13, 20), dtype=data.dtype)[:] = part
        scales = [{"axes": [{"name": name} for name in "tczyx"], "datasets": [{"path": "0"}, {"path": "1"}]}]
        group.attrs.update({"multiscales": scales} if version == 2 else {"ome": {"multiscales": scales}})
        return folder / "picture.zarr"

    return write


def _pyramid(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    path = folder / "picture.tif"
    with tifffile.TiffWriter(path) as file:
        about: dict[str, Any] = {"tile": (16, 16), "photometric": "rgb", "compression": "zlib"}
        file.write(array, subifds=1, **about)
        file.write(array[::2, ::2], subfiletype=1, **about)
    return path


def _slide(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    """A plain pyramid, which OpenSlide takes."""
    path = folder / "picture.svs"
    with tifffile.TiffWriter(path) as file:
        for at, level in enumerate((array, array[::2, ::2])):
            about: dict[str, Any] = {"tile": (16, 16), "photometric": "rgb", "compression": "zlib"}
            file.write(level, subfiletype=at, metadata=None, **about)
    return path


def _npy(folder: Path, array: np.ndarray[Any, Any]) -> Path:
    np.save(folder / "picture.npy", array)
    return folder / "picture.npy"


def _memmap(folder: Path, array: np.ndarray[Any, Any]) -> Any:
    made = np.memmap(folder / "picture.raw", array.dtype, "w+", 32, array.shape)
    made[:] = array
    made.flush()
    return np.memmap(folder / "picture.raw", array.dtype, "r", 32, array.shape)


def _nifti(folder: Path, array: np.ndarray[Any, Any], name: str = "picture.nii") -> Path:
    data = array.transpose(1, 0, 2)[:, :, None]  # x, y, z, channels
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), folder / name)
    return folder / name


class Slices:
    """What h5py has, and no more."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, box: Any) -> Any:
        return self.array[box]


FORMATS: dict[str, Callable[[Path, np.ndarray[Any, Any]], Any]] = {
    "tiff in strips": _tiff(rowsperstrip=7),
    "tiff in strips, deflated": _tiff(rowsperstrip=7, compression="zlib", predictor=2),
    "tiff in tiles": _tiff(tile=(32, 16)),
    "tiff in tiles, deflated": _tiff(tile=(16, 32), compression="zlib"),
    "tiff, planar": _tiff(planar=True, planarconfig="separate"),
    "tiff, planar, in tiles": _tiff(planar=True, planarconfig="separate", tile=(16, 16), compression="zlib"),
    "tiff, planar, in strips": _tiff(planar=True, planarconfig="separate", rowsperstrip=5, compression="zlib"),
    "tiff, big": _tiff(bigtiff=True, tile=(16, 16)),
    "tiff, big-endian": _tiff(byteorder=">"),
    "tiff, big-endian, in tiles": _tiff(byteorder=">", tile=(16, 16), compression="zlib"),
    "ome-tiff": _tiff(planar=True, ome=True, photometric="minisblack", metadata={"axes": "CYX"}),
    "ome-tiff in tiles": _tiff(
        planar=True, ome=True, photometric="minisblack", metadata={"axes": "CYX"}, tile=(16, 16), compression="zlib"
    ),
    "tiff, pyramid": _pyramid,
    "zarr 2": _zarr(2, (13, 20, 2)),
    "zarr 3": _zarr(3, (64, 7, 3)),
    "ome-zarr 0.4": _ome_zarr(2),
    "ome-zarr 0.5": _ome_zarr(3),
    "slide": _slide,
    "npy": _npy,
    "memory map": _memmap,
    "nifti": _nifti,
    "nifti, packed": lambda folder, array: _nifti(folder, array, "picture.nii.gz"),
    "tensor": lambda folder, array: torch.from_numpy(array),
    "array": lambda folder, array: array,
    "anything that slices": lambda folder, array: Slices(array),
}
WITH_LEVELS = ("tiff, pyramid", "ome-zarr 0.4", "ome-zarr 0.5", "slide")


def whole_numbers(module: nn.Module) -> nn.Module:
    """In whole numbers the order of sums does not matter."""
    torch.manual_seed(0)
    module.double()
    for parameter in module.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).double()
    return module


def small_net(channels: int = 3) -> nn.Module:
    return whole_numbers(
        nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU()
        )
    )
