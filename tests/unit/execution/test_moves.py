"""Tensors that move away come back as they lay: each memory once, views with their own strides."""

from __future__ import annotations

import pytest
import torch

from tilegrad.execution.moves import Mover
from tilegrad.execution.saved import memory_of

CPU = torch.device("cpu")


def test_views_come_back_in_one_memory() -> None:
    whole = torch.randn(2, 3, 4, 5)
    tensors = {"whole": whole, "part": whole[:, 1:, ::2], "turned": whole.permute(0, 2, 3, 1)}
    mover = Mover(CPU)
    mover.offload("whole", tensors)
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    whole.zero_()
    found = mover.fetch("whole")
    for name, tensor in found.items():
        assert torch.equal(tensor, wanted[name]) and tensor.stride() == tensors[name].stride()
    assert len({memory_of(tensor) for tensor in found.values()}) == 1
    found["turned"].add_(1)
    assert torch.equal(found["whole"], wanted["whole"] + 1)


def test_several_memories_under_one_name() -> None:
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = {"0": last, "1": torch.arange(6), "2": torch.randn(3)[1:].expand(4, 2), "3": torch.zeros(0, 2)}
    mover = Mover(CPU)
    mover.offload("node.saved", tensors)
    found = mover.fetch("node.saved")
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and found[name].stride() == tensor.stride()


def test_what_is_back_is_not_away() -> None:
    mover = Mover(CPU)
    mover.offload("x", {"x": torch.ones(3)})
    mover.fetch("x")
    mover.wait("x")
    with pytest.raises(KeyError):
        mover.fetch("x")
    mover.offload("x", {"x": torch.zeros(3)})
    assert torch.equal(mover.fetch("x")["x"], torch.zeros(3))


def test_without_data() -> None:
    mover = Mover(torch.device("meta"))
    whole = torch.empty(4, 5, device="meta")
    mover.offload("x", {"x": whole, "y": whole.t()})
    found = mover.fetch("x")
    assert found["y"].shape == (5, 4) and memory_of(found["x"]) == memory_of(found["y"])
