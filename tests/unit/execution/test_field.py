"""A gradient that is gathered box by box: what comes first is written, what comes later added, the rest is zero."""

from __future__ import annotations

import random

import pytest
import torch

from tilegrad.execution.field import Field
from tilegrad.region import Box
from tilegrad.torch_private import TorchDispatchMode


@pytest.mark.parametrize("store", ["device", "disk"])
@pytest.mark.parametrize("seed", range(40))
def test_any_boxes_add_up(seed: int, store: str) -> None:
    rng = random.Random(seed)
    region = Box([(3, 5), (0, 4), (2, 13)])
    field, wanted = Field(region, store), torch.zeros(region.shape)
    for at in range(rng.randint(1, 7)):
        sides = [sorted(rng.choices(range(side.lo, side.hi + 1), k=2)) for side in region]
        box = Box((lo, hi) for lo, hi in sides) if rng.random() < 0.9 else region
        tile = torch.randint(1, 9, box.shape, generator=torch.Generator().manual_seed(at)).float()
        wanted[box.within(region).slices] += tile
        field.add(box, tile, shared=rng.random() < 0.5)
        if rng.random() < 0.2:
            assert torch.equal(field.read(region), wanted)
    assert torch.equal(field.read(region), wanted)


class _Touched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def test_tiles_that_cover_all_are_written_only() -> None:
    region = Box([(0, 1), (0, 8), (0, 8)])
    field = Field(region, "device")
    with _Touched() as touched:
        for top in (4, 0):
            for left in (4, 0):
                field.add(Box([(0, 1), (top, top + 4), (left, left + 4)]), torch.ones(1, 4, 4))
        field.read(region)
    assert touched.names.count("copy_") == 4
    assert not {"zero_", "fill_", "add_"} & set(touched.names)
