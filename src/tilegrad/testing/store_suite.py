"""The checks a store must pass, for your own as for ours: a class to inherit from.

from tilegrad.testing import StoreSuite

class TestNvme(StoreSuite):
    store = "nvme"
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..execution.field import Field
from ..execution.shelf import Shelf
from ..execution.stores import make_store
from ..region import Box
from .exact import assert_same_step, integer_module, integer_tensor

KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)


class StoreSuite:
    """`store`: its name. `device`: whose tensors wait there."""

    store: ClassVar[str]
    device: ClassVar[str] = "cpu"

    def _random(self, shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> Tensor:
        return integer_tensor(shape).to(self.device, kind)

    def test_what_is_written_is_read(self) -> None:
        """Rule W1, for every kind of number, for nothing and for a single one."""
        for kind in KINDS:
            for shape in ((2, 3, 5), (1,), (0, 4), ()):
                made = self._random(shape, kind)
                slot = make_store(self.store).reserve(shape, kind, made.device, torch.contiguous_format, zeros=False)
                slot.open().copy_(made)
                assert torch.equal(slot.open().to(self.device), made), (kind, shape)

    def test_parts_are_read_written_and_added_to(self) -> None:
        """Whichever way, all see the same numbers; of tiles that lie otherwise in memory, too."""
        whole = self._random((2, 6, 40, 50))
        slot = make_store(self.store).reserve(
            whole.shape, whole.dtype, whole.device, torch.contiguous_format, zeros=True
        )
        slot.write(None, whole)
        for rows in (slice(0, 40), slice(7, 9), slice(39, 40)):
            for columns in (slice(0, 50), slice(3, 20)):
                part = slice(0, 2), slice(1, 6), rows, columns
                tile = self._random(tuple(whole[part].shape))
                laid = tile.contiguous(memory_format=torch.channels_last)
                slot.write(part, laid)
                slot.add(part, tile)
                whole = whole.clone()
                whole[part] = 2 * tile
                found = slot.read(part, whole.device)
                assert found.device.type == self.device and torch.equal(found, whole[part])
        assert torch.equal(slot.open().to(self.device), whole)

    def test_room_that_was_asked_for_with_zeros(self) -> None:
        slot = make_store(self.store).reserve(
            (3, 4), torch.float32, torch.device(self.device), torch.contiguous_format, zeros=True
        )
        assert not slot.open().any()

    def test_slots_of_a_store_are_apart(self) -> None:
        store, parts = make_store(self.store), [self._random((7, 9)) for _ in range(20)]
        slots = [store.reserve(p.shape, p.dtype, p.device, torch.contiguous_format, zeros=False) for p in parts]
        for slot, part in zip(slots, parts, strict=True):
            slot.open().copy_(part)
        assert all(torch.equal(s.open().to(self.device), p) for s, p in zip(slots, parts, strict=True))

    def test_a_value_box_by_box(self) -> None:
        """Written in tiles, read in others, added to."""
        whole = self._random((2, 6, 8))
        field = Field(Box.full(whole.shape), self.store)
        for row in range(0, 6, 2):
            field.write(Box(((0, 2), (row, row + 2), (0, 8))), whole[:, row : row + 2])
        field.add(Box(((0, 1), (1, 5), (2, 3))), whole[:1, 1:5, 2:3])
        whole = whole.clone()
        whole[:1, 1:5, 2:3] *= 2
        for box in (Box.full(whole.shape), Box(((1, 2), (0, 3), (5, 8)))):
            found = field.read(box)
            assert found.device.type == self.device and torch.equal(found, whole[box.slices])

    def test_halos_are_given_back_once(self) -> None:
        shelf, strip = Shelf(self.store), self._random((2, 3, 1, 8))
        shelf.put("a", strip)
        shelf.put("b", -strip)
        assert torch.equal(shelf.get("a", last=False), strip) and torch.equal(shelf.get("a", last=True), strip)
        assert shelf.take("a") is None
        found = shelf.take("b")
        assert found is not None and torch.equal(found, -strip) and shelf.bytes == 0

    def test_a_step_of_training(self) -> None:
        """Halos and values between phases wait there, and all is as in plain PyTorch."""
        net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
        module = integer_module(net).to(self.device)
        image = integer_tensor((2, 2, 13, 11)).to(self.device)
        assert_same_step(module, [image], tile=4, halos=self.store, exact=False, tolerance=1e-10)
