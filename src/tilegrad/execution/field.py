"""A value, or a region of it, that islands write, read, or add to, box by box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..ops.channels import layout_of
from ..region import Box, Interval
from .stores import Near, Part, Slot, make_store


class Field:
    """`region`: the box of the value that is here, in the value's own coordinates."""

    def __init__(self, region: Box, store: str):
        self.region, self.store = region, store
        self.device: torch.device | None = None
        self._slot: Slot | None = None
        self._lent = False  # does somebody else read the same memory?
        self._blank: list[Box] = []  # where nothing was added so far

    def write(self, box: Box, tile: Tensor) -> None:
        if self._slot is None:
            if self._takes(tile):
                self._adopt(tile)  # the only tile: nothing to copy
                return
            self._allocate(tile)
        self._put(box, tile)

    def add(self, box: Box, tile: Tensor, *, shared: bool = False) -> None:
        """Add a tile to what is there, which begins as zero. `shared`: the tile's memory is someone else's too."""
        if self._slot is None:
            if self._takes(tile):
                self._adopt(tile)
                self._lent = shared
                return
            self._allocate(tile)
            self._blank = [self.region]
        elif self._lent:
            here = self._open()
            if box == self.region:
                self._adopt(here + tile)
                return
            self._adopt(here.clone())
        new = [part for blank in self._blank if not (part := blank.meet(box)).empty]
        for part in new:  # the first that comes is written, not added to zeros
            self._put(part, tile if part == box else tile[part.within(box).slices])
        for part in _without([box], new):
            self._add(part, tile if part == box else tile[part.within(box).slices])
        self._blank = _without(self._blank, new)

    def read(self, box: Box) -> Tensor:
        """A box on the value's device; a view where it lies there already."""
        assert self._slot is not None and self.device is not None
        for blank in self._blank:
            self._part(blank).zero_()
        self._blank = []
        return self._slot.read(self._where(box), self.device)

    def part(self) -> None:
        """From now on another tensor of the same memory: the one that was read is its reader's alone."""
        if isinstance(self._slot, Near):
            self._slot = Near(self._slot.tensor.detach())

    @property
    def written(self) -> bool:
        return self._slot is not None

    def _takes(self, tile: Tensor) -> bool:
        return tuple(tile.shape) == self.region.shape and self.store == "device"

    def _adopt(self, tensor: Tensor) -> None:
        self.device, self._slot, self._lent = tensor.device, Near(tensor), False

    def _allocate(self, tile: Tensor) -> None:
        self.device, room = tile.device, (self.region.shape, tile.dtype, tile.device, layout_of(tile))
        self._slot = make_store(self.store).reserve(*room, zeros=False)

    def _open(self) -> Tensor:
        assert self._slot is not None
        return self._slot.open()

    def _put(self, box: Box, tile: Tensor) -> None:
        assert self._slot is not None
        self._slot.write(self._where(box), tile)

    def _add(self, box: Box, tile: Tensor) -> None:
        assert self._slot is not None
        self._slot.add(self._where(box), tile)

    def _part(self, box: Box) -> Tensor:
        here, where = self._open(), self._where(box)
        return here if where is None else here[where]

    def _where(self, box: Box) -> Part:
        return None if box == self.region else box.within(self.region).slices


def _without(boxes: Iterable[Box], gone: Iterable[Box]) -> list[Box]:
    """What is left of boxes, in boxes."""
    found = list(boxes)
    for hole in gone:
        found = [part for box in found for part in _around(box, hole)]
    return found


def _around(box: Box, hole: Box) -> Iterator[Box]:
    """A box without another, in boxes: dimension by dimension what lies before and behind the other."""
    hole = box.meet(hole)
    if hole.empty:
        yield box
        return
    for d, (side, inner) in enumerate(zip(box, hole, strict=True)):
        for lo, hi in ((side.lo, inner.lo), (inner.hi, side.hi)):
            if lo < hi:
                yield Box((*hole[:d], Interval(lo, hi), *box[d + 1 :]))
