"""A rank's own box of an array, how to cut and gather them, and how they are used like tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh

from ..bounds.mesh import NAMES, Coords, Mesh, check_fits
from ..errors import InputError
from ..execution.messages import pack, unpack
from ..images import ImageSource
from ..region import Box, Interval, cuts_of_count
from ..torch_private import pytree
from .group import Group
from .join import device_of, group_of, mesh_of, rank_in
from .stamp import stamp_of

Cuts = Mapping[str, Sequence[int]]

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg abs pos "
    "invert and rand or ror xor rxor lt le gt ge eq ne getitem setitem bool float int index len iter"
)


@dataclass(frozen=True, eq=False)
class Part:
    """The box `box` of an array of shape `shape`, which lies on the mesh. Functions and methods of torch mean the whole
    array: `F.cross_entropy(part, part_of_mask)` is one number, the same on every rank, whose gradient is that of one
    process. All ranks call them together. What lies on the mesh again is a `Part`, all else a tensor.

    dims: which dimension is cut along which axis of the mesh.
    """

    _local: Tensor
    box: Box
    shape: tuple[int, ...]
    dims: Mapping[str, int]
    mesh: Mesh = field(repr=False)
    device_mesh: DeviceMesh = field(repr=False)
    stamp: Tensor | str = field(default="", repr=False)  # of what it was cut from: the same on all ranks
    made: bool = field(default=False, repr=False)  # by a module, and not by the caller

    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy leaves `array * part` to us

    @property
    def local(self) -> Tensor:
        """This rank's box, to look at. What a network made gives no gradient through it: a mean over one box is not the
        whole's. A leaf is itself."""
        return self._local if self._local.is_leaf else _NoLoss.apply(self._local)  # type: ignore[no-untyped-call]

    def to_local(self) -> Tensor:
        """This rank's box, with gradients: those of all ranks' own losses add up, so that a loss is the rank's share of
        the whole one."""
        return self._local

    @classmethod
    def from_local(cls, local: Tensor, mesh: DeviceMesh, *, dims: Mapping[str, int] | None = None) -> Part:
        """A part from the box that every rank has already. All ranks call this together."""
        group, ours = group_of(mesh), mesh_of(mesh)
        said = [tuple(json.loads(text)) for text in group.tell("the parts", json.dumps(tuple(local.shape)))]
        shapes = dict(zip(ours.coords(), said, strict=True))
        first = shapes[(0,) * len(ours.axes)]
        places, whole, cuts = _dims(first, ours, dims), list(first), dict[str, Sequence[int]]()
        alike = len({len(shape) for shape in said}) == 1
        for axis, dim in places.items() if alike else ():
            row = [tuple(k if a == axis else 0 for a in ours.axes) for k in range(ours.size(axis))]
            cuts[axis] = (0, *accumulate(shapes[coords][dim] for coords in row))
            whole[dim] = cuts[axis][-1]
        cut_mesh = _with_cuts(ours, places, tuple(whole), {a: m for a, m in cuts.items() if not _even(m)})
        if not alike or any(box_of(cut_mesh, c, whole, places).shape != shape for c, shape in shapes.items()):
            each = ", ".join(f"rank {ours.rank(c)} has {shape}" for c, shape in shapes.items())
            raise InputError("the boxes of the ranks do not fit together", where=each, hint="one size along a cut")
        box = box_of(cut_mesh, ours.coords_of(group.rank), whole, places)
        return cls(local.to(group.device), box, tuple(whole), places, cut_mesh, mesh)

    def to_dtensor(self) -> Any:
        """The same as torch's `DTensor`, which shares memory and gradients."""
        from torch.distributed.tensor import DTensor

        found = placements(self.mesh, self.shape, self.dims)
        if found is None:
            raise InputError("a part that was cut by hand is no DTensor", hint="part(x, mesh) without cuts=")
        size = torch.empty(self.shape, device="meta")
        mine, mesh = self._local.contiguous(), self.device_mesh
        return DTensor.from_local(mine, mesh, found, run_check=False, shape=size.shape, stride=size.stride())

    def whole(self) -> Tensor:
        """All of it, on every rank. For tests and small arrays: no rank need ever hold this."""
        return gather(self._local.detach(), self.shape, self.dims, self.mesh, group_of(self.device_mesh))

    def __repr__(self) -> str:
        return f"Part({self.box} of {'x'.join(map(str, self.shape))}, {self.dtype})"

    # -- like a tensor -------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        return self._local.dtype

    @property
    def device(self) -> torch.device:
        return self._local.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        return self._local.requires_grad

    @property
    def grad(self) -> Part | None:
        grad = self._local.grad
        return None if grad is None else replace(self, _local=grad, stamp="", made=True)

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def numel(self) -> int:
        return prod(self.shape)

    def requires_grad_(self, wanted: bool = True) -> Part:
        self._local.requires_grad_(wanted)
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _call(func, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        """The methods of tensors."""
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"a Part has no '{name}'; what it has is in .local, and .whole() gathers it")
        return partial(_call, method, self)


def _taken_apart(item: Part) -> tuple[list[Any], Any]:
    return [item._local], {f.name: getattr(item, f.name) for f in fields(item) if f.name != "_local"}


# DDP (static_graph=True) looks for tensors in what a module returns, and learns from them that backward is due.
pytree.register_pytree_node(Part, _taken_apart, lambda local, rest: Part(*local, **rest))


def _call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of torch, of whole arrays."""
    from .functions import run_function  # which needs parts

    return run_function(func, args, kwargs)


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Part, *others: Any) -> Any:
        return _call(getattr(Tensor, name), self, *others)

    return method


for _name in _OPERATORS.split():
    setattr(Part, f"__{_name}__", _operator(f"__{_name}__"))


class _NoLoss(Function):
    """A tensor as it is, whose gradient nobody can mean."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise InputError(
            "a loss of part.local is a loss of this rank's box, and not of the whole",
            hint="loss(part, part_of_target), or part.to_local() for this rank's share of a sum",
        )


def placements(mesh: Mesh, shape: Sequence[int], dims: Mapping[str, int]) -> list[Any] | None:
    """How torch's DTensor calls these cuts; None where it has no name for them."""
    from torch.distributed.tensor import Replicate, Shard

    for axis, dim in dims.items():
        if mesh.cuts(axis, shape[dim]) != cuts_of_count(shape[dim], mesh.size(axis)):
            return None
    return [Shard(dims[axis]) if axis in dims else Replicate() for axis in mesh.axes]


def _even(marks: Sequence[int]) -> bool:
    return tuple(marks) == cuts_of_count(marks[-1], len(marks) - 1)


def part(x: Any, mesh: DeviceMesh, *, dims: Mapping[str, int] | None = None, cuts: Cuts | None = None) -> Part:
    """This rank's own box of an array: a tensor, an image of `tilegrad.open`, or anything that has a shape and can be
    sliced (a memory-mapped file, a zarr array), of which only the box is read, and three elements of what is no file.

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
    return Part(_read(x, box, device_of(mesh)), box, tuple(map(int, x.shape)), places, cut_mesh, mesh, stamp_of(x))


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
        found = {NAMES.get(axis, axis): dim % len(shape) for axis, dim in given.items()}
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
        axis = NAMES.get(name, name)
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
