"""Arithmetic on images whose channels have numbers of their own (statistics, scales), in few passes.

Numbers are broadcast: [1 or samples, channels, 1, …]. They are single where images are of half precision; then torch's
kernels of batch norm, which take both, do what else were casts and temporary images.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import torch
from torch import Tensor

LOW = (torch.float16, torch.bfloat16)


def affine(
    x: Tensor, scale: Tensor, shift: Tensor | None = None, mean: Tensor | None = None, onto: Tensor | None = None
) -> Tensor:
    """`(x - mean) * scale + shift + onto`, where whatever is None is zero."""
    if x.dtype in LOW or (x.is_cuda and mean is not None):
        found = _by_kernel(x, scale, shift, mean)
        return found if onto is None else found.add_(onto)
    if mean is not None:
        shift = -mean * scale if shift is None else torch.addcmul(shift, mean, scale, value=-1)
    if onto is not None:
        found = torch.addcmul(onto, x, scale)
        return found if shift is None else found.add_(shift)
    if shift is None:
        return x * scale
    if x.is_cuda or layout_of(x) != torch.contiguous_format:
        return torch.addcmul(shift, x, scale)
    if x.is_contiguous():
        return _by_kernel(x, scale, shift, None)
    return (x * scale).add_(shift)  # for a CPU this is faster than a copy in one piece, or one number for a whole row


def sums(x: Tensor, mean: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of `grad` and of `grad * (x - mean)` per sample (or over all) and channel."""
    rows = _rows(x, mean)
    at, one, laid = rows.spread(mean), constant(1.0, rows.count, mean), (rows.lay(grad), rows.lay(x))
    if x.is_meta or not x.numel():  # torch's rule for tensors without data makes an image that the kernel does not
        return rows.gather(torch.zeros_like(one)), rows.gather(torch.zeros_like(one))
    if x.is_cuda:
        total, along, *_ = torch.batch_norm_backward_reduce(*laid, at, one, None, True, False, False)
        return rows.gather(total), rows.gather(along)
    backward = torch.ops.aten.native_batch_norm_backward
    of = backward(*laid, one, at, one, at, one, False, 0.0, [False, True, True])
    return rows.gather(of[2]), rows.gather(of[1])


def _by_kernel(x: Tensor, scale: Tensor, shift: Tensor | None, mean: Tensor | None) -> Tensor:
    if not x.numel() or scale.shape[2:].numel() != 1:
        found = (x if mean is None else x - mean) * scale
        return (found if shift is None else found + shift).to(x.dtype)
    rows = _rows(x, scale)
    one = constant(1.0, rows.count, scale)
    at = constant(0.0, rows.count, scale) if mean is None else rows.spread(mean)
    by = None if shift is None else rows.spread(shift)
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=rows.layout)
    laid = rows.lay(x), rows.spread(scale), by, at, one
    # into a tensor that is no view of another, so that an activation may be made where it lies
    if x.is_cuda:
        torch.ops.aten.batch_norm_elemt.out(*laid, 0.0, out=rows.lay(found))
    elif not x.is_meta:
        out = {"out": rows.lay(found), "save_mean": scale.new_empty(0), "save_invstd": scale.new_empty(0)}
        torch.ops.aten.native_batch_norm.out(*laid, False, 0.0, 0.0, **out)
    return found.contiguous(memory_format=layout_of(x))


class _Rows:
    """An image as rows with one number each, for kernels that want every row in one piece of memory: its channels as
    they lie, or those of each sample, which a GPU, that has one worker for each, gets in parts."""

    def __init__(self, shape: tuple[int, ...], layout: torch.memory_format, each: bool, cuda: bool):
        """`each`: samples have numbers of their own."""
        samples, channels, length = shape[0], shape[1], prod(shape[2:])
        self.rank, self.layout = len(shape), layout
        self.counts, self.shape = (1, channels, 1), shape
        if each or (len(shape) > 2 and self.layout == torch.contiguous_format):
            parts = max(1, length // _part(length)) if cuda else 1
            self.layout = torch.contiguous_format
            self.counts, self.shape = (samples, channels, parts), (1, samples * channels * parts, length // parts)
        self.count = prod(self.counts)

    def lay(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self.layout).view(self.shape)

    def spread(self, numbers: Tensor) -> Tensor:
        """Each row's number, in memory of its own: kernels do not ask for strides."""
        if numbers.numel() == self.count:
            return numbers.reshape(-1)
        return numbers.reshape(*numbers.shape[:2], 1).expand(self.counts).reshape(-1).contiguous()

    def gather(self, found: Tensor) -> Tensor:
        """Sums of rows as sums of channels."""
        found = found if self.counts[2] == 1 else found.view(self.counts).sum(2)
        return found.view(*self.counts[:2], *[1] * (self.rank - 2))


_rows_of = lru_cache(4096)(_Rows)


def _rows(x: Tensor, numbers: Tensor) -> _Rows:
    return _rows_of(x.shape, layout_of(x), numbers.shape[0] == x.shape[0] != 1, x.is_cuda)


def constant(value: float, count: int, like: Tensor) -> Tensor:
    """The same number many times. Kernels of a GPU read them again and again: there they are made once, and stay, since
    a recorded step may read them as long as it lives."""
    if not like.is_cuda:
        return like.new_full((count,), value)
    size = 1 << max(12, (count - 1).bit_length())
    key = value, size, like.dtype, like.device
    found = _CONSTANTS.get(key)
    if found is None:
        found = like.new_full((size,), value)
        if not torch.cuda.is_current_stream_capturing():  # what is made while recording is there in replays only
            _CONSTANTS[key] = found
    return found[:count]


_CONSTANTS: dict[tuple[float, int, torch.dtype, torch.device], Tensor] = {}


@cache
def _part(length: int) -> int:
    """A divisor that is large enough to be worth a worker, and small enough for many of them."""
    return next((n for n in (*range(4096, 65537), *range(4095, 255, -1)) if length % n == 0), max(1, length))


def layout_of(tensor: Tensor) -> torch.memory_format:
    """channels_last survives. Strides tell it even for a tile of one pixel, which lies in memory like any other, and
    for one channel: cuDNN goes by them."""
    if tensor.dim() in (4, 5) and tensor.stride(1) == 1 and _is_last(tensor):
        return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def _is_last(tensor: Tensor) -> bool:
    channels = tensor.shape[1]
    return channels <= tensor.stride(-1) if channels > 1 else tensor.stride(-1) == 1 < tensor[0].numel()
