"""A disk that fills up is an error with figures, not the end of the process; and nothing stays behind.

Each kind has a process of its own: with a limit on the size of files, or on a file system of a few megabytes that only
this process sees.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tilegrad.errors import RunError
from tilegrad.execution.field import Field
from tilegrad.execution.shelf import Shelf
from tilegrad.execution.stores import disk
from tilegrad.execution.stores.disk import LONG, DiskStore
from tilegrad.region import Box
from tilegrad.schedule import Storage
from tilegrad.testing import PeakBytes

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.RLIM_INFINITY))
"""

SHELF = """
import torch
from tilegrad.errors import RunError
from tilegrad.execution.shelf import Shelf
from tilegrad.schedule import Storage

shelf, kept = Shelf(Storage.DISK), 0
try:
    for kept in range(100):
        shelf.put(kept, torch.full((50_000,), kept, dtype=torch.float32))
except RunError as error:
    print(error)
print("kept", kept, "bytes", shelf.bytes)
assert all(bool((shelf.get(k, last=True) == k).all()) for k in range(kept))
assert shelf.bytes == 0
del shelf
print("NEXT")
"""

LARGER = """
import os, subprocess
subprocess.run(["mount", "-o", "remount,size=2m", os.environ["TMPDIR"]], check=True)
"""

STEP = """
import gc, os
import torch
from torch import nn
import tilegrad
from tilegrad.errors import RunError
from tilegrad.testing import integer_module, integer_tensor

def make_net():
    return integer_module(nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 3, 3, padding=1)))

def open_files():
    folder = "/proc/self/fd/"
    return [os.readlink(folder + fd) for fd in os.listdir(folder) if os.path.islink(folder + fd)]

x, net, plain = integer_tensor((1, 2, 96, 96)), make_net(), make_net()
for p in net.parameters():
    p.grad = torch.full_like(p, 7)
before = {name: t.clone() for name, t in net.state_dict().items()}
tiled, at = tilegrad.tile(net, tile=16, halos="disk"), "forward"
try:
    loss = tiled(x).sum()
    at = "backward"
    loss.backward()
    at = "end"
except RunError as error:
    print(error)
    assert isinstance(error, RuntimeError)
print("stopped in", at)
loss = None
gc.collect()
assert not any("(deleted)" in link for link in open_files())
assert not any(name.startswith("tilegrad") for name in os.listdir(os.environ["TMPDIR"]))
assert at == "backward" or all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
assert all(bool((p.grad == 7).all()) for p in net.parameters()), "a gradient is half-written"
net.zero_grad()
net.load_state_dict(before)
tilegrad.tile(net, tile=16, halos="device")(x).sum().backward()
plain(x).sum().backward()
for a, b in zip(plain.parameters(), net.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)
print("works again")
"""


@pytest.fixture(autouse=True)
def no_idle_files() -> None:
    DiskStore.let_go()


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """What a shelf says, and then a step, where files may not be large; and their folder."""
    folder = tmp_path_factory.mktemp("limited")
    limits = (LIMITED.replace("LARGEST_FILE", str(size)) for size in (1_000_000, 300_000))
    return *_said([sys.executable, "-c", next(limits) + SHELF + next(limits) + STEP], folder), folder


@pytest.fixture(scope="module")
def on_small_disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same under a mount that nobody else sees, and that goes with the process. The step has twice the room."""
    folder = tmp_path_factory.mktemp("small")
    mount = f'mount -t tmpfs -o size=1m tilegrad-test "{folder}" && exec "$@"'
    program = SHELF + LARGER + STEP
    command = [shutil.which("unshare") or "unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", program]
    return _said(command, folder)


def _said(command: list[str], folder: Path) -> tuple[str, str]:
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    shelf, _, step = done.stdout.partition("NEXT\n")
    return shelf, step


def can_mount() -> bool:
    if sys.platform != "linux" or not shutil.which("unshare"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=4k", "tilegrad-test", folder]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts as Linux has them")
mounts = pytest.mark.skipif(not can_mount(), reason="may not mount a file system here")


@linux
def test_a_limit_on_files(limited: tuple[str, str, Path]) -> None:
    said, _, folder = limited
    assert "no place on disk for 200704 bytes more (196KiB), where halos and values wait: File too large" in said
    assert " are free" in said and f"at   {folder}" in said and "try  TMPDIR=" in said
    assert "kept 4 bytes 800000" in said  # four times 49 pages are below the limit, five are not


@mounts
def test_a_small_disk(on_small_disk: tuple[str, str]) -> None:
    said, _ = on_small_disk
    assert "No space left on device; " in said and "KiB are free" in said
    assert "kept 5 bytes 1000000" in said  # all that fits, also where as much again does not


@linux
def test_a_step_under_a_limit(limited: tuple[str, str, Path]) -> None:
    _, said, _ = limited
    assert "File too large" in said and said.endswith("stopped in forward\nworks again\n")


@mounts
def test_a_step_on_a_small_disk(on_small_disk: tuple[str, str]) -> None:
    """Its halos fit, the gradients of what it made do not."""
    _, said = on_small_disk
    assert "No space left on device" in said and said.endswith("stopped in backward\nworks again\n")


def test_no_folder_for_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(RunError, match="no place on disk for a new file, where halos and values wait: No such file"):
        Shelf(Storage.DISK).put("x", torch.zeros(3))


@pytest.mark.parametrize("blocks", [True, False])
def test_room_is_taken_in_steps(blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many small tensors asks the disk seldom; where blocks cannot be taken, zeros are written."""
    if not blocks:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    asked, take = [], disk.take_room

    def count(file: object, start: int, end: int) -> int:
        asked.append(end - start)
        return take(file, start, end)  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "take_room", count)
    shelf = Shelf(Storage.DISK)
    for k in range(300):
        shelf.put(k, torch.full((1000,), float(k)))
    assert len(asked) < 12 and sum(asked) < 2 * 300 * 4096
    assert all(bool((shelf.get(k, last=True) == k).all()) for k in range(300))
    assert isinstance(shelf.store, DiskStore) and shelf.store._file is not None
    used = os.fstat(shelf.store._file.blocks.file.fileno())
    assert used.st_size == sum(asked) and (not hasattr(used, "st_blocks") or used.st_blocks * 512 >= sum(asked))


def test_a_whole_value_begins_as_zero_and_takes_its_own_room() -> None:
    whole = Field(Box.full((1, 2, 64, 64)), Storage.DISK)
    whole.add(Box.full((1, 2, 32, 64)), torch.ones(1, 2, 32, 64))
    assert float(whole.read(Box.full((1, 2, 64, 64))).sum()) == 2 * 32 * 64
    assert isinstance(whole._slot, disk._Mapped) and whole._slot.file.blocks.reserved == 2 * 64 * 64 * 4


def test_files_serve_again_and_go_with_the_model() -> None:
    """A step's values lie where those of the step before lay; what is asked for as zeros is zero all the same."""
    shape, device = (3, 40, 50), torch.device("cpu")

    def reserve(*, zeros: bool = False) -> disk._Mapped:
        slot = DiskStore().reserve(shape, torch.float32, device, torch.contiguous_format, zeros=zeros)
        assert isinstance(slot, disk._Mapped)
        return slot

    slot = reserve()
    first = slot.file.blocks
    slot.write(None, torch.ones(shape))
    other = reserve()
    assert other.file.blocks is not first
    del slot
    slot = reserve(zeros=True)
    assert slot.file.blocks is first and not slot.open().any()
    del slot
    DiskStore.let_go()
    assert first.file.closed


@pytest.mark.skipif(sys.platform == "win32", reason="children are made anew there")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_has_files_of_its_own() -> None:
    """Also of those that were in use: it would write into what its parent waits for."""
    idle, used = Shelf(Storage.DISK), Shelf(Storage.DISK)
    for shelf in (idle, used):
        shelf.put("x", torch.ones(3))
    del idle, shelf
    with disk._idle.lock:  # as another thread may have it
        pid = os.fork()
    if pid == 0:
        del used
        os._exit(len(disk._idle.files))
    assert os.waitpid(pid, 0)[1] == 0 and len(disk._idle.files) == 1
    assert torch.equal(used.get("x", last=True), torch.ones(3))


def test_other_folders_have_other_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Shelf(Storage.DISK).put("x", torch.zeros(3))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shelf = Shelf(Storage.DISK)
    shelf.put("x", torch.zeros(3))
    assert isinstance(shelf.store, DiskStore) and shelf.store._file is not None
    assert shelf.store._file.blocks.folder == str(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_parts_long_and_short(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system or by mapped pages, which see each other's numbers."""
    luck = random.Random(seed)
    shape = tuple(luck.choice((1, 3, 8)) for _ in range(luck.randint(0, 4)))
    kind, device = luck.choice((torch.float32, torch.float64, torch.bfloat16, torch.int64)), torch.device("cpu")
    slot = DiskStore().reserve(shape, kind, device, torch.contiguous_format, zeros=True)
    wanted = torch.zeros(shape, dtype=kind)
    for number in range(30):
        monkeypatch.setattr(disk, "LONG", luck.choice((1, 16, LONG)))
        lows = [luck.randrange(n) for n in shape]
        part = tuple(slice(lo, luck.randint(lo + 1, n)) for lo, n in zip(lows, shape, strict=True))
        where = None if part == tuple(slice(0, n) for n in shape) else part
        tile = torch.full(wanted[part].shape, number, dtype=luck.choice((kind, torch.float32)))
        if tile.dim() == 4 and luck.random() < 0.5:
            tile = tile.contiguous(memory_format=torch.channels_last)
        if luck.random() < 0.5:
            slot.write(where, tile)
            wanted[part] = tile.to(kind)
        else:
            slot.add(where, tile.to(kind))
            wanted[part] += tile.to(kind)
        found = slot.read(where, device)
        assert torch.equal(found, wanted[part]) and found.dtype == kind
        assert torch.equal(slot.open(), wanted)


def test_what_is_laid_out_anew_takes_little_room() -> None:
    """A part of a tile, and what is added to a file: predictions count neither."""
    slot = DiskStore().reserve((4, 512, 2048), torch.float32, torch.device("cpu"), torch.contiguous_format, zeros=True)
    tile, where = torch.randn(4, 300, 2048), (slice(0, 4), slice(50, 250), slice(0, 2048))
    with PeakBytes() as peak:
        slot.write(where, tile[:, 100:])
        slot.add(where, tile[:, 100:])
    assert 0 < peak.bytes <= 2 * disk.ROOM
    assert torch.equal(slot.read(where, torch.device("cpu")), 2 * tile[:, 100:])


def test_what_the_system_stops_in_the_middle_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(how: object) -> Any:
        return lambda file, pieces, place: how(file, [pieces[0][: max(1, len(pieces[0]) // 3)]], place)  # type: ignore[operator]

    monkeypatch.setattr(os, "preadv", some(os.preadv))
    monkeypatch.setattr(os, "pwritev", some(os.pwritev))
    slot, tensor = (
        DiskStore().reserve((3, 9, 4000), torch.float32, torch.device("cpu"), torch.contiguous_format, zeros=True),
        torch.randn(2, 9, 4000),
    )
    slot.write((slice(1, 3), slice(0, 9), slice(0, 4000)), tensor)
    assert torch.equal(slot.read(None, torch.device("cpu"))[1:], tensor) and not slot.open()[0].any()
