"""A rank's own box of an array, and how to cut and gather them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..bounds.mesh import Coords, Mesh, check_fits
from ..errors import InputError
from ..execution.ranks import pack, unpack
from ..images import ImageSource
from ..region import Box, Interval
from .group import Group
from .join import device_of, group_of, mesh_of, rank_in

Cuts = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Part:
    """`local` is the box `box` of an array of shape `shape`; autograd flows through `local`.

    dims: which dimension is cut along which axis of the mesh.
    """

    local: Tensor
    box: Box
    shape: tuple[int, ...]
    dims: Mapping[str, int]
    mesh: Mesh = field(repr=False)
    device_mesh: DeviceMesh = field(repr=False)

    def whole(self) -> Tensor:
        """All of it, on every rank. For tests and small arrays: no rank need ever hold this."""
        return gather(self.local.detach(), self.shape, self.dims, self.mesh, group_of(self.device_mesh))

    def __repr__(self) -> str:
        return f"Part({self.box} of {'x'.join(map(str, self.shape))}, {self.local.dtype})"


def part(x: Any, mesh: DeviceMesh, *, dims: Mapping[str, int] | None = None, cuts: Cuts | None = None) -> Part:
    """This rank's own box of an array: a tensor, an image of `tilegrad.open`, or anything that has a shape and can be
    sliced (a memory-mapped file, a zarr array), of which only the box is read.

    dims: the dimension of each axis of the mesh. By default an image's: "batch" is the first, "w" the last, "h" the one
    before; arrays of one or two dimensions are cut along "batch" only.
    cuts: where an axis is cut, if not evenly: {"h": (0, 100, 384)}.
    """
    ours = mesh_of(mesh)
    places = _dims(tuple(x.shape), ours, dims)
    cut_mesh = _with_cuts(ours, places, tuple(x.shape), cuts or {})
    for axis, dim in places.items():
        check_fits(cut_mesh, axis, int(x.shape[dim]), "the array")
    box = box_of(cut_mesh, ours.coords_of(rank_in(mesh)), tuple(map(int, x.shape)), places)
    return Part(_read(x, box, device_of(mesh)), box, tuple(map(int, x.shape)), places, cut_mesh, mesh)


def box_of(mesh: Mesh, coords: Coords, shape: Sequence[int], dims: Mapping[str, int]) -> Box:
    sides = [Interval(0, n) for n in shape]
    for axis, dim in dims.items():
        marks, at = mesh.cuts(axis, shape[dim]), mesh.index(coords, axis)
        sides[dim] = Interval(marks[at], marks[at + 1])
    return Box(sides)


def gather(local: Tensor, shape: Sequence[int], dims: Mapping[str, int], mesh: Mesh, group: Group) -> Tensor:
    """The whole array from the boxes of all ranks."""
    found = torch.zeros(tuple(shape), dtype=local.dtype, device=group.device)
    boxes = {mesh.rank(c): box_of(mesh, c, shape, dims) for c in mesh.coords()}
    mine = pack([local])
    sizes = {rank: box.volume * local.element_size() for rank, box in boxes.items() if rank != group.rank}
    others = {rank: [mine] for rank in sizes if mine.numel()}
    comes = group.exchange("a whole array", others, {rank: size for rank, size in sizes.items() if size})
    for rank, box in boxes.items():
        if box.empty:
            continue
        piece = local if rank == group.rank else unpack(comes[rank], [(box.shape, local.dtype)])[0]
        found[box.slices] = piece
    return found


def _dims(shape: tuple[int, ...], mesh: Mesh, given: Mapping[str, int] | None) -> dict[str, int]:
    usual = {"n": 0, "w": len(shape) - 1, "h": len(shape) - 2, "d": len(shape) - 3}
    if given is not None:
        names = {"batch": "n"}
        found = {names.get(axis, axis): dim % len(shape) for axis, dim in given.items()}
        unknown = [axis for axis in found if axis not in mesh.axes]
        missing = [dim for dim in given.values() if not -len(shape) <= dim < len(shape)]
        if unknown or missing or len(set(found.values())) != len(found):
            what = f"the dimensions {dict(given)} do not fit a mesh of {', '.join(mesh.axes)}"
            raise InputError(what, where=f"an array of {len(shape)} dimensions")
        return found
    return {axis: usual[axis] for axis in mesh.axes if usual[axis] >= 0 and (axis == "n" or len(shape) > 2)}


def _with_cuts(mesh: Mesh, dims: Mapping[str, int], shape: tuple[int, ...], cuts: Cuts) -> Mesh:
    if not cuts:
        return mesh
    shares = dict(mesh.shares or {})
    for name, marks in cuts.items():
        axis = {"batch": "n"}.get(name, name)
        length = shape[dims[axis]] if axis in dims else 0
        rising = all(a <= b for a, b in pairwise(marks))
        if axis not in dims or len(marks) != mesh.size(axis) + 1 or not rising or (marks[0], marks[-1]) != (0, length):
            count = mesh.size(axis) if axis in mesh.axes else 0
            hint = f"{count + 1} rising numbers from 0 to {length}" if count else f"axes {', '.join(mesh.axes)}"
            raise InputError(f"axis {name} cannot be cut at {tuple(marks)}", hint=hint)
        shares[axis] = (tuple(map(int, marks)), length)
    return Mesh(mesh.axes, mesh.sizes, mesh.ranks, shares)


def _read(x: Any, box: Box, device: torch.device) -> Tensor:
    if isinstance(x, ImageSource):
        return x.finish(box, [tile.to(device) for tile in x.stored_tiles(box)])
    if isinstance(x, Tensor):
        return x[box.slices].detach().clone().to(device).requires_grad_(x.requires_grad)
    return torch.from_numpy(np.ascontiguousarray(x[box.slices])).to(device)
