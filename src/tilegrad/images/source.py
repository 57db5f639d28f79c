"""An image of which boxes are read: to a tiled module what a tensor is, and never in memory as a whole.

Rule I1  Slices, flips, turns and colour change what will be read, and read nothing.
Rule I2  Whatever is stored is read as it is, and cast and coloured behind that, box by box, on the device: each number
         by the same operations, in the same order, as if the whole were a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..region import Box, Interval
from .opened import Opened

COLOURS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mul": Tensor.mul_,
    "add": Tensor.add_,
    "sub": Tensor.sub_,
    "div": Tensor.div_,
}
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32)
Colour = tuple[str, Tensor | float]


@dataclass(frozen=True)
class ImageSide:
    """One dimension: which axis of what is stored it is (None: none, it has one entry), and which part of it."""

    axis: int | None
    part: Interval
    flipped: bool = False

    def stored(self, wanted: Interval) -> Interval:
        """Where the entries that are wanted lie."""
        if self.flipped:
            return Interval(self.part.hi - wanted.hi, self.part.hi - wanted.lo)
        return wanted.shift(self.part.lo)

    def cut(self, wanted: Interval) -> ImageSide:
        return replace(self, part=self.stored(wanted))


@dataclass(frozen=True)
class Picture:
    """A file or array, the part of it that is looked at, and its colours."""

    opened: Opened
    sides: tuple[ImageSide, ...]
    colours: tuple[Colour, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(side.part.size for side in self.sides)

    def cut(self, box: Box) -> Picture:
        sides = tuple(side.cut(part) for side, part in zip(self.sides, box, strict=True))
        return replace(self, sides=sides, colours=tuple((name, _cut(by, box)) for name, by in self.colours))

    def flip(self, dims: Sequence[int]) -> Picture:
        sides = [replace(s, flipped=not s.flipped) if d in dims else s for d, s in enumerate(self.sides)]
        flipped = ((name, by.flip(tuple(dims)) if isinstance(by, Tensor) else by) for name, by in self.colours)
        return replace(self, sides=tuple(sides), colours=tuple(flipped))

    def swap(self, one: int, other: int) -> Picture:
        sides = list(self.sides)
        sides[one], sides[other] = sides[other], sides[one]
        swapped = ((name, by.transpose(one, other) if isinstance(by, Tensor) else by) for name, by in self.colours)
        return replace(self, sides=tuple(sides), colours=tuple(swapped))

    def read(self, box: Box, pinned: bool = False) -> Tensor:
        """A box as it is stored, in memory of its own."""
        found, flipped = self._laid(box), tuple(d for d, side in enumerate(self.sides) if side.flipped)
        made = self._room(found, box, torch.device("cpu"), pinned)
        if isinstance(found, Tensor):
            return made.copy_(found.flip(flipped) if flipped else found)
        made.numpy()[...] = np.flip(found, flipped)
        return made

    def room(self, box: Box, device: torch.device) -> Tensor:
        """Room for a box as it is stored."""
        return self._room(self._laid(box) if self.opened.is_tensor else None, box, device)

    def _room(self, like: Any, box: Box, device: torch.device, pinned: bool = False) -> Tensor:
        if isinstance(like, Tensor):  # laid out as it is
            return torch.empty_like(like, device=device, pin_memory=pinned, requires_grad=False)
        return torch.empty(box.shape, dtype=self.opened.dtype, device=device, pin_memory=pinned)

    def _laid(self, box: Box) -> np.ndarray[Any, Any] | Tensor:
        """A box as it is stored, its axes in our order; nothing is flipped yet."""
        parts = [side.stored(part) for side, part in zip(self.sides, box, strict=True)]
        place = {side.axis: part for side, part in zip(self.sides, parts, strict=True) if side.axis is not None}
        rank = len(self.opened.shape)
        found = self.opened.read(tuple(slice(*place.get(axis, Interval(0, 1))) for axis in range(rank)))
        order = [side.axis for side in self.sides if side.axis is not None]
        order += [axis for axis in range(rank) if axis not in order]
        turned = found.permute(order) if isinstance(found, Tensor) else found.transpose(order)
        return turned.reshape(box.shape)

    def coloured(self, tile: Tensor, box: Box, dtype: torch.dtype) -> Tensor:
        """A box that was read, on any device; its memory is ours."""
        tile = tile.to(dtype)
        for name, by in self.colours:
            by = _cut(by, box).to(tile.device, non_blocking=True) if isinstance(by, Tensor) else by
            tile = COLOURS[name](tile, by)
        return tile


@dataclass(frozen=True, eq=False)
class ImageSource:
    """One image or several of equal shape, on disk or in any array. Made by `tilegrad.open`.

    shape: (1, channels, height, width), or (1, channels, depth, height, width) for volumes; as many as there are images
    where they are several. dtype: what is read has it; `stored` has what the file has.
    """

    parts: tuple[Picture, ...]  # one behind the other along the first dimension
    dtype: torch.dtype

    device = torch.device("cpu")
    requires_grad = False

    @property
    def shape(self) -> torch.Size:
        first = self.parts[0].shape
        return torch.Size((sum(part.shape[0] for part in self.parts), *first[1:]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def stored(self) -> torch.dtype:
        return self.parts[0].opened.dtype

    @property
    def name(self) -> str:
        """What it was opened from."""
        return ", ".join(dict.fromkeys(part.opened.name for part in self.parts))

    @property
    def levels(self) -> list[tuple[int, ...]]:
        """The shape of the whole image at each level that is stored, the largest first."""
        axes = [side.axis for side in self.parts[0].sides]
        return [tuple(1 if at is None else n[at] for at in axes) for n in self.parts[0].opened.levels]

    def __repr__(self) -> str:
        return f"ImageSource({self.name!r}, {tuple(self.shape)}, {self.dtype}, stored as {self.stored})"

    def __len__(self) -> int:
        return int(self.shape[0])

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> ImageSource:
        """A box of it, which is a source itself: `source[..., 100:200, 50:90]`."""
        return self._cut(Box(self._interval(d, part) for d, part in enumerate(self._expanded(index))))

    def flip(self, *dims: int | Sequence[int]) -> ImageSource:
        """As `Tensor.flip`."""
        wanted = [self._dim(d) for dim in dims for d in ([dim] if isinstance(dim, int) else dim)]
        parts = [part.flip(wanted) for part in self.parts]
        return replace(self, parts=tuple(parts[::-1] if 0 in wanted else parts))

    def rot90(self, k: int = 1, dims: Sequence[int] = (-2, -1)) -> ImageSource:
        """As `Tensor.rot90`, in the plane of rows and columns where no other is named."""
        one, other = (self._dim(d) for d in dims)
        if one == other or 0 in (one, other):
            raise InputError(f"an image cannot be turned in the plane {tuple(dims)}", where=self.name, hint="(-2, -1)")
        turned = self if k % 4 in (0, 3) else self.flip(other) if k % 4 == 1 else self.flip(one, other)
        if k % 2:
            turned = replace(turned, parts=tuple(part.swap(one, other) for part in turned.parts))
        return turned.flip(other) if k % 4 == 3 else turned

    def _cut(self, box: Box) -> ImageSource:
        found = [part.cut(inside) for part, _, inside in self._across(box)]
        if not found or box.empty:
            raise InputError(f"{box} of {self.name} is empty", hint=f"a part of {tuple(self.shape)}")
        return replace(self, parts=tuple(found))

    def _across(self, box: Box) -> list[tuple[Picture, Interval, Box]]:
        """The pictures that hold a part of a box: where in the box, and which box of theirs."""
        found, start = [], 0
        for part in self.parts:
            here = Interval(start, start + part.shape[0])
            mine = here.meet(box[0])
            if not mine.empty:
                found.append((part, mine.shift(-box[0].lo), Box((mine.shift(-start), *box[1:]))))
            start = here.hi
        return found

    def _dim(self, dim: int) -> int:
        if not -self.ndim <= dim < self.ndim:
            raise InputError(f"there is no dimension {dim} in {tuple(self.shape)}", where=self.name)
        return dim % self.ndim

    def _expanded(self, index: Any) -> list[Any]:
        """One entry for each dimension."""
        given = list(index) if isinstance(index, tuple) else [index]
        if any(part is ... for part in given):
            at = next(k for k, part in enumerate(given) if part is ...)
            given[at : at + 1] = [slice(None)] * (self.ndim - len(given) + 1)
        given += [slice(None)] * (self.ndim - len(given))
        if len(given) != self.ndim:
            raise InputError(f"{len(given)} indices for {tuple(self.shape)}", where=self.name)
        return given

    def _interval(self, dim: int, part: Any) -> Interval:
        if not isinstance(part, slice) or part.step not in (None, 1):
            hint = "source[..., 3:4], or source.read()[...] for the tensor"
            raise InputError(f"an image is cut by slices without steps, not by {part!r}", where=self.name, hint=hint)
        lo, hi, _ = part.indices(self.shape[dim])
        return Interval(lo, max(lo, hi))

    # -- colour --------------------------------------------------------------------------------------------------------

    def __mul__(self, by: Any) -> ImageSource:
        return self._coloured("mul", by)

    def __add__(self, by: Any) -> ImageSource:
        return self._coloured("add", by)

    def __sub__(self, by: Any) -> ImageSource:
        return self._coloured("sub", by)

    def __truediv__(self, by: Any) -> ImageSource:
        return self._coloured("div", by)

    __rmul__, __radd__ = __mul__, __add__

    def normalize(self, mean: Any, std: Any) -> ImageSource:
        """`(source - mean) / std`, a number each or one for every channel."""
        return (self - self.per_channel(mean)) / self.per_channel(std)

    def per_channel(self, by: Any) -> Any:
        """A number, or a tensor that has one for each channel."""
        if isinstance(by, int | float):
            return float(by)
        found = torch.as_tensor(by, dtype=self.dtype)
        return found.reshape(-1, *[1] * (self.ndim - 2)) if found.ndim else float(found)

    def _coloured(self, name: str, by: Any) -> ImageSource:
        if isinstance(by, Tensor):
            by = by.detach().reshape((1,) * (self.ndim - by.ndim) + tuple(by.shape)) if by.ndim else by.item()
        if not isinstance(by, Tensor | int | float):
            raise InputError(f"colours are numbers or tensors, not a {type(by).__name__}", where=self.name)
        if isinstance(by, Tensor):
            sizes = [n for d, n in enumerate(by.shape) if d != 1]
            if by.ndim != self.ndim or set(sizes) != {1} or by.shape[1] not in (1, self.shape[1]):
                what = f"a tensor of {tuple(by.shape)} is not one colour for each of {self.shape[1]} channels"
                hint = f"a shape of {(self.shape[1], *[1] * (self.ndim - 2))}"
                raise InputError(what, where=self.name, hint=hint)
        if torch.result_type(torch.empty((1,) * self.ndim, dtype=self.dtype), by) != self.dtype:
            what = f"{self.dtype} with colours of {getattr(by, 'dtype', type(by).__name__)} would be of another type"
            raise InputError(what, where=self.name, hint="tilegrad.open(…, dtype=torch.float64)")
        colour = name, by
        return replace(self, parts=tuple(replace(part, colours=(*part.colours, colour)) for part in self.parts))

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, box: Box | None = None) -> Tensor:
        """A box as a tensor; all of it by default, of which a tile is never more than a part."""
        return self.finish(box := box or Box.full(self.shape), self.stored_tiles(box))

    def stored_tiles(self, box: Box, pinned: bool = False) -> list[Tensor]:
        """A box as it is stored, of each picture that holds a part of it. Any thread may ask."""
        self.check_scaled()
        return [part.read(inside, pinned) for part, _, inside in self._across(box)]

    def rooms(self, box: Box, device: torch.device) -> list[Tensor]:
        """Room for that on a device."""
        return [part.room(inside, device) for part, _, inside in self._across(box)]

    def finish(self, box: Box, tiles: Sequence[Tensor]) -> Tensor:
        """A box, given what is stored of it, on the device where that lies; its memory is taken over."""
        across = self._across(box)
        found = [p.coloured(tile, inside, self.dtype) for (p, _, inside), tile in zip(across, tiles, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def check_scaled(self) -> None:
        """Numbers that stand for brightness, in a model that knows no bytes."""
        for part in self.parts:
            if self.dtype.is_floating_point and part.opened.dtype in UNSIGNED and not part.colours:
                stored = str(part.opened.dtype).removeprefix("torch.")
                most = 2 ** (8 * part.opened.dtype.itemsize) - 1
                raise InputError(
                    f"{stored} as {self.dtype}, and no scale says what is white".replace("torch.", ""),
                    where=part.opened.name,
                    hint=f"tilegrad.open({part.opened.name!r}, scale=1/{most}), or scale=1 for 0 to {most} as they are",
                )

    def requires_grad_(self, wanted: bool = True) -> ImageSource:
        if wanted:
            what = "an image that lies elsewhere has no gradient"
            raise InputError(what, where=self.name, hint="source.read().requires_grad_()")
        return self

    def to(self, device: torch.device) -> Tensor:
        return self.read().to(device)


def batch(sources: Sequence[ImageSource]) -> ImageSource:
    """Several images of equal shape and type, one behind the other, as one: a `collate_fn` for a `DataLoader`."""
    sources = list(sources)
    if not sources:
        raise InputError("a batch of no images")
    first = sources[0]
    for each in sources:
        if each.shape[1:] != first.shape[1:] or each.dtype != first.dtype:
            what = f"{tuple(each.shape)} {each.dtype} beside {tuple(first.shape)} {first.dtype}".replace("torch.", "")
            raise InputError(f"{what} in a batch", where=each.name, hint="images of equal shape: source[..., :h, :w]")
    return replace(first, parts=tuple(part for each in sources for part in each.parts))


def of_array(item: Any) -> ImageSource:
    """An array as it is, whatever its dimensions mean: its boxes are read when they are needed."""
    opened = Opened(item)
    sides = tuple(ImageSide(axis, Interval(0, n)) for axis, n in enumerate(opened.shape))
    return ImageSource((Picture(opened, sides),), opened.dtype)


def _cut(by: Any, box: Box) -> Any:
    """A colour for a box of channels."""
    return by[:, box[1].lo : box[1].hi] if isinstance(by, Tensor) and by.shape[1] > 1 else by
