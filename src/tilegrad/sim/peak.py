"""Peak tensor bytes: every storage that is born and dies inside a block, counted, not guessed.

On CUDA the allocator's own counter is used; elsewhere a dispatch mode sees every operator's results (autograd's
included) and a weak reference to each storage says when it is gone. Memory inside a kernel (workspaces) is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..execution.heap import is_tight
from ..torch_private import TorchDispatchMode
from .blanks import run_blank
from .process import inside


class PeakBytes:
    """`with PeakBytes() as peak: …` then `peak.bytes`: the most that was alive at once beyond what was alive before.

    device: "cuda" counts allocations of that device, workspaces included, unless `storages` are asked for; anything
    else counts storages on that kind of device.
    """

    def __init__(self, device: str | torch.device = "cpu", *, storages: bool = False):
        self.device = torch.device(device)
        self.bytes = 0
        self._mode = _Counter(self.device.type) if self.device.type != "cuda" or storages else None
        self._before = 0

    @property
    def now(self) -> int:
        """Of what was born inside the block, the bytes that are alive."""
        return self._mode.now if self._mode is not None else torch.cuda.memory_allocated(self.device) - self._before

    @property
    def highest(self) -> int:
        """The most so far."""
        assert self._mode is not None
        return self._mode.peak

    @highest.setter
    def highest(self, count: int) -> None:
        assert self._mode is not None
        self._mode.peak = count

    def __enter__(self) -> PeakBytes:
        if self._mode is None:
            torch.cuda.synchronize(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        if self._mode is None:
            torch.cuda.synchronize(self.device)
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self._before
        else:
            self._mode.__exit__(*error)  # type: ignore[no-untyped-call]
            self.bytes = self._mode.peak


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kind: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.now = self.peak = 0
        self.alive: dict[int, int] = {}
        self.foresees = kind == "meta" and is_tight()  # what a process will hold: kernels' own memory too

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors(args):
            self._known(tensor)
        for tensor in _tensors(kwargs.values()):
            self._known(tensor)
        result = run_blank(func, args, kwargs) if self.kind == "meta" else func(*args, **kwargs)
        for tensor in _tensors((result,)):
            self._meet(tensor)
        if self.foresees:
            self.peak = max(self.peak, self.now + inside(func, args, result))
        return result

    def _known(self, tensor: Tensor) -> None:
        """An argument that we have not seen born was there before the block."""
        key = tensor.untyped_storage()._cdata
        if key not in self.alive:
            self._watch(tensor, key, 0)

    def _meet(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.alive and storage.device.type == self.kind:  # fakes are "meta" inside
            self._watch(tensor, storage._cdata, storage.nbytes())

    def _watch(self, tensor: Tensor, key: int, size: int) -> None:
        self.alive[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(tensor.untyped_storage(), self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        if self.alive.get(key) == size:
            del self.alive[key]
            self.now -= size


def _tensors(items: Iterable[Any]) -> Iterator[Tensor]:
    """Those among an operator's arguments or results, which are at most lists of them."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)
