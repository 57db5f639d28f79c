"""A kernel: one way to run several nodes at once. A file in this folder; nothing needs it.

Rule K1  A kernel gives what its nodes give one after another, and the same gradients: tests compare the two.
Rule K2  Its nodes are a chain: each reads what the one before makes as its first input, on the same box, and nobody
         else reads that.
Rule K3  It also runs on tensors without data, in as many bytes: that is how plans are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..ops import Call, Op, Place, find
from ..region import Box

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})


class Kernel:
    """`chain`: for each of its nodes the operators that it may be."""

    chain: ClassVar[tuple[frozenset[str], ...]]
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    dtypes: ClassVar[frozenset[str]] = frozenset({"float32", "float64", "bfloat16", "float16"})
    holes: ClassVar[bool] = False  # does it work in blocks of sizes of its own, which leave holes in a heap?

    def accepts(self, calls: Sequence[Call]) -> bool:
        """Can it run these very nodes?"""
        return True

    def run(self, calls: Sequence[Call], tiles: Sequence[Sequence[Tensor]], place: Place | None) -> Tensor:
        """The box of the last node's output. `tiles`: for each node what it reads, but for what the one before makes;
        `place`: of the first node's box, or None where all of it is made from whole inputs."""
        raise NotImplementedError


def op_of(call: Call) -> Op:
    """A node's operator, looked up once."""
    if "op" not in call.memo:
        call.memo["op"] = find(call.node)
    found: Op = call.memo["op"]
    return found


def first_result(call: Call, tiles: Sequence[Tensor], place: Place | None, device: torch.device) -> Tensor:
    """What the first node makes by itself."""
    op = op_of(call)
    return op.run_whole(call, tiles, 0, device) if place is None else op.run(call, tiles, place)


def whole_place(call: Call, device: torch.device) -> Place:
    """Of a node that makes everything."""
    full = Box.full(call.out.shape)
    reads = op_of(call).needs(call, full)
    assert reads is not None
    return Place(full, reads, 0, device)
