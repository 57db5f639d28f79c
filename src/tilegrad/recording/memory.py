"""The memory of a recording: which storages live, from which tick to which, and what each is for.

A storage is met as an argument (then it was there before) or as a result (then it was born). A weak reference says when
it is gone, so a recording keeps nothing alive. `PeakBytes` counts by the same rule; tests hold the two together.

What is noted is whole numbers in arrays, not objects: objects would cost more time than all of the rest, in memory and
in passes of the garbage collector.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable
from threading import Lock
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..profile import BlockKind

ALIVE = -1  # the stop of a block that is still there
NOWHERE = -1  # stands for the block of every storage without memory
NO_STORAGE = -2  # of sparse and other tensors that have none
NO_MAKER = -1
_META = -1

_NUMBERS = frozenset((int, float, bool))
_SCALARS = _NUMBERS | {type(None), torch.dtype, torch.device, torch.layout}  # told apart faster than by isinstance

KINDS = tuple(BlockKind)
INPUT, WEIGHT, ACTIVATION, GRADIENT, UNKNOWN = map(
    KINDS.index,
    (BlockKind.INPUT, BlockKind.WEIGHT, BlockKind.ACTIVATION, BlockKind.GRADIENT, BlockKind.UNKNOWN),
)

Birth = tuple[int, int, int]  # tick, place in KINDS, number of the operator
Uses = tuple[int, ...]  # block, place in `Ledger.shapes` and bytes of one tensor after the other


class RawBlock(NamedTuple):
    bytes: int
    start: int
    kind: int  # place in KINDS
    address: int  # 0 where there is none
    device: int  # place in `Ledger.devices`
    maker: int  # number of the operator, or NO_MAKER


_WIDTH = len(RawBlock._fields)


class _Watch(weakref.ref[torch.UntypedStorage]):
    __slots__ = ("block", "key")
    block: int
    key: int


class Ledger:
    """All blocks met so far, and the clock of their ticks."""

    def __init__(self) -> None:
        self.clock = array("q", [perf_counter_ns()])
        self.stops = array("q")
        self.devices: dict[str, int] = {}
        self.kinds: dict[int, int] = {}  # told later
        self.names: dict[int, str] = {}
        self.owners: dict[int, str] = {}  # the path of the module whose parameter or buffer it is
        self.shapes: dict[tuple[int, ...], int] = {(): 0}
        self._alive: dict[int, _Watch] = {}  # by storage
        self.dead: list[_Watch] = []  # and not buried: a weak reference calls a list's append faster than any function
        self._blocks = array("q")  # the numbers of one RawBlock after the other
        self._device_places: dict[torch.device, int] = {}
        self._lock = Lock()  # several CUDA devices have several threads of backward

    def bury(self, tick: int) -> None:
        """Those that died since are not there in this tick."""
        with self._lock:
            while self.dead:
                watch = self.dead.pop()
                self.stops[watch.block] = tick
                del self._alive[watch.key]

    def tick(self) -> int:
        self.clock.append(perf_counter_ns())
        return len(self.clock) - 1

    def uses(self, items: Iterable[object], birth: Birth) -> list[int]:
        """Note tensors among arguments or results, which are tensors, lists of them, or neither."""
        alive, shapes = self._alive, self.shapes  # `bury` first: else a new storage is taken for a dead one
        found: list[int] = []
        for item in items:
            if type(item) in _SCALARS:
                continue
            if isinstance(item, Tensor):
                try:
                    storage = item.untyped_storage()
                    watch = alive.get(storage._cdata)
                    block = self._add(item, storage, birth) if watch is None else watch.block
                    if block == NOWHERE:
                        found += (NOWHERE, 0, 0)
                        continue
                    shape = shapes.get(item.shape)
                    if shape is None:
                        shape = shapes.setdefault(tuple(item.shape), len(shapes))
                    found += (block, shape, item.nbytes)
                except RuntimeError:
                    found += self._odd(item)
            elif isinstance(item, (list, tuple)) and item and type(item[0]) not in _NUMBERS:
                found += self.uses(item, birth)
        return found

    def block(self, at: int) -> RawBlock:
        return RawBlock._make(self._blocks[at * _WIDTH : (at + 1) * _WIDTH])

    def know(self, tensor: Tensor, kind: int, name: str = "", owner: str | None = None) -> None:
        """Somebody tells what a tensor is. A name that is given once stays."""
        self.bury(len(self.clock))
        block = self.uses((tensor,), (0, kind, NO_MAKER))[0]
        if block < 0:
            return
        if kind == WEIGHT or self.block(block).maker == NO_MAKER:
            self.kinds[block] = kind
        if name:
            self.names.setdefault(block, name)
        if owner is not None:
            self.owners.setdefault(block, owner)

    def owner_of(self, tensor: Tensor) -> str:
        block = self.uses((tensor,), (0, UNKNOWN, NO_MAKER))[0]
        return self.owners.get(block, "")

    def close(self) -> None:
        """Watch no longer."""
        self.bury(self.tick())
        self._alive.clear()

    def _add(self, tensor: Tensor, storage: torch.UntypedStorage, birth: Birth) -> int:
        device = self._device_places.get(storage.device)
        if device is None:
            device = self.devices.setdefault(str(storage.device), len(self.devices))
            self._device_places[storage.device] = device = _META if storage.device.type == "meta" else device
        if device == _META:  # fake tensors too
            return NOWHERE
        size, address = storage.nbytes(), storage.data_ptr()
        if size and not address:
            return NO_STORAGE  # a tensor that only wraps others
        start, kind, maker = birth
        if maker == NO_MAKER and isinstance(tensor, nn.Parameter):
            kind = WEIGHT
        watch = _Watch(storage, self.dead.append)
        watch.key = storage._cdata
        with self._lock:
            watch.block = len(self.stops)
            self._blocks.extend((size, start, kind, address, device, maker))
            self.stops.append(ALIVE)
        self._alive[watch.key] = watch
        return watch.block

    def _odd(self, tensor: Tensor) -> tuple[int, int, int]:
        """A tensor that has no storage (sparse), none with memory (wrappers), or no shape (nested)."""
        try:
            watch = self._alive.get(tensor.untyped_storage()._cdata)
            shape = () if tensor.is_nested else tuple(tensor.shape)
        except RuntimeError:
            watch, shape = None, tuple(tensor.shape)
        at = self.shapes.setdefault(shape, len(self.shapes))
        return (NO_STORAGE, at, 0) if watch is None else (watch.block, at, self.block(watch.block).bytes)
