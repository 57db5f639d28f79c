"""Blocks: never two owners, never lost, and back when everybody is done."""

from __future__ import annotations

import errno
import gc
import os
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tilegrad.distributed.shared_memory import PAGE, SEGMENT, SharedBlock, SharedMemory, mapped
from tilegrad.errors import RunError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has memory without a name")


def span(block: SharedBlock) -> tuple[int, int]:
    return block.data.data_ptr(), block.data.data_ptr() + block.room


def free(memory: SharedMemory) -> int:
    return sum(block.free for block in memory.blocks)


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 100_000, 1 << 20, SEGMENT + 1])
def test_a_block_has_room(size: int) -> None:
    memory = SharedMemory()
    block = memory.take(size)
    assert block.data.numel() == block.room >= size
    assert block.room <= max(PAGE, size * 1.25 + PAGE) and block.room % PAGE == 0
    assert memory.nbytes == block.room


def test_others_see_it() -> None:
    memory = SharedMemory()
    block = memory.take(10)
    theirs = mapped(memory.files[block.segment])[block.offset : block.offset + 10]
    block.data[:10] = torch.arange(10, dtype=torch.uint8)
    assert theirs.tolist() == list(range(10)) and theirs.data_ptr() != block.data.data_ptr()
    memory.close()
    block.data[0] = 7  # what is mapped stays
    assert theirs[0] == 7


def test_a_block_comes_back_when_all_have_read_it() -> None:
    memory = SharedMemory()
    block = memory.take(100)
    block.readers.update("ab")
    assert memory.take(100) is not block
    memory.has_read(block.number, "a")
    memory.has_read(block.number, "a")  # which says nothing about b
    memory.has_read(block.number, "c")
    assert free(memory) == 0
    memory.has_read(block.number, "b")
    memory.has_read(block.number, "b")
    assert free(memory) == 1 and memory.take(101) is block and memory.take(100) is not block


@pytest.mark.parametrize("first", ["readers", "tensor"])
def test_a_block_that_was_lent_comes_back_when_nobody_holds_it(first: str) -> None:
    memory = SharedMemory()
    tensor = memory.lend(1000)
    assert tensor.shape == (1000,) and tensor.dtype == torch.uint8
    block = memory.lent(tensor)
    assert block is not None
    block.readers.add("a")
    assert memory.lent(tensor) is None  # who still reads it must not see it change
    view = tensor.view(torch.float32)[10:20]
    if first == "readers":
        memory.has_read(block.number, "a")
        assert memory.lent(tensor) is block
    del tensor
    gc.collect()
    assert free(memory) == 0  # the view
    del view
    gc.collect()
    if first == "tensor":
        assert free(memory) == 0
        memory.has_read(block.number, "a")
    assert free(memory) == 1 and memory.take(1000) is block


def test_only_what_begins_at_a_block_was_lent() -> None:
    memory = SharedMemory()
    tensor = memory.lend(80).view(torch.float64)
    assert memory.lent(tensor) is not None and memory.lent(tensor[:3]) is not None
    assert memory.lent(tensor[1:]) is None and memory.lent(tensor[::2]) is None
    assert memory.lent(torch.zeros(80, dtype=torch.uint8)) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_byte_has_two_owners(seed: int) -> None:
    """A random life: what was written into a block is still there when it is given back."""
    luck, memory = random.Random(seed), SharedMemory()
    taken = list[tuple[SharedBlock, int]]()
    lent = list[tuple[Tensor, int]]()
    for mark in range(1, 600):
        size, what = luck.choice([10, 5_000, 70_000, 300_000]), luck.random()
        if what < 0.3:
            block = memory.take(size)
            block.readers.update(luck.sample("abc", luck.randint(1, 3)))
            block.data[:size] = mark % 251
            taken.append((block, mark % 251))
        elif what < 0.5:
            lent.append((memory.lend(size).fill_(mark % 251), mark % 251))
        elif what < 0.75 and taken:
            block, said = taken.pop(luck.randrange(len(taken)))
            assert (block.data[0], block.data[9]) == (said, said)
            for reader in list(block.readers):
                memory.has_read(block.number, reader)
        elif lent:
            tensor, said = lent.pop(luck.randrange(len(lent)))
            assert bool((tensor == said).all())
            del tensor
        owned = sorted([span(block) for block, _ in taken] + [(t.data_ptr(), t.data_ptr() + t.nbytes) for t, _ in lent])
        assert all(hi <= lo for (_, hi), (lo, _) in pairwise(owned))
    taken.clear()
    count = len(memory.blocks)
    lent.clear()
    assert len(memory.blocks) == count and len({block.number for block in memory.blocks}) == count


def test_the_same_sizes_take_no_more() -> None:
    memory = SharedMemory()
    for _ in range(100):
        held = [memory.lend(size) for size in (100_000, 3_000_000, 70_000)]
        block = memory.take(50_000)
        block.readers.add("a")
        memory.has_read(block.number, "a")
        del held
    assert len(memory.blocks) == 4 and memory.nbytes < 3_500_000


def test_many_blocks_need_few_files() -> None:
    """And no more memory than they have room for."""
    memory, before = SharedMemory(), len(os.listdir("/proc/self/fd"))
    held = [memory.lend(5 << 20) for _ in range(40)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 and memory.nbytes == sum(t.nbytes for t in held)
    taken = sum(os.stat(f"/proc/self/fd/{file}").st_blocks * 512 for file in memory.files)
    assert taken == memory.nbytes


def test_what_is_little_larger_serves_too() -> None:
    memory = SharedMemory()
    for size in (1_000_000, 800_000, 700_000, 1_000_000):
        assert memory.lend(size).numel() == size
    assert len(memory.blocks) == 1
    memory.lend(600_000)  # which would waste much of it
    memory.lend(1_100_000)
    assert len(memory.blocks) == 3


def test_no_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    memory = SharedMemory()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none_left)
        with pytest.raises(RunError, match=r"no memory can be shared .*: Too many open files\n  try  .*ulimit -n"):
            memory.take(1)
    assert memory.take(1).room == PAGE


def test_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(file: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    memory = SharedMemory()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", nothing_left)
        with pytest.raises(RunError, match=r"no memory is left .*: 10.0MiB more\n  try  "):
            memory.take(9 << 20)
    assert memory.nbytes == 0 and memory.take(10).room == memory.nbytes == PAGE
