"""Measure the machine we run on: arithmetic, memory, link, overhead of an operator, and how much it holds.

Everything to time is a probe: a call, and how many operations or bytes it is worth. All probes take turns, round after
round, so that a disturbance hits them alike; each keeps its best call, and the best shape stands for its kind. So the
figures are what the machine reaches at its best: a ceiling, which small or odd shapes stay below.

A measurement is kept in a file and reused, as long as it is of this hardware and this number of threads.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError, TilegradError
from ..files import cache_folder
from ..progress import Progress, tick
from .cards import card
from .cost import FRESH
from .machine import CPU, NAME_LENGTH, PRESETS, Machine, load_machine, save_machine

SECONDS = 4.0  # of measuring, beyond the first call of every probe
ROUNDS = 3  # at least, however long they take
TURN_S = 0.03  # a probe's turn in a round: beyond a scheduler's time slice, so that some call has all its cores

# (batch, channels, image side) of a 3x3 convolution and side of a matrix product. On a CPU some 10**8 operations per
# thread, a millisecond, since on a busy machine only short calls have all their cores; on a GPU some 10**11.
CONVOLUTIONS = {"cpu": ((1, 64, 56), (1, 256, 14)), "cuda": ((8, 64, 512), (16, 256, 128))}
PRODUCTS = {"cpu": (256, 384), "cuda": (4096, 8192)}
BUFFER_BYTES = (128 * 2**20, 512 * 2**20)  # beyond the caches of a few cores, and of any GPU or large server
SLICES = {"cpu": 16, "cuda": 1}  # of a buffer: what a call copies
DTYPES = {
    "cpu": ("float32", "float64", "bfloat16"),
    "cuda": ("float32", "tfloat32", "float64", "bfloat16", "float16"),
}


@dataclass(frozen=True)
class Recall:
    """The machine we run on, and where that is known from."""

    machine: Machine
    path: Path | None  # the file it is kept in; None where it could not be kept
    measured: bool  # just now; otherwise read from the file
    note: str | None = None  # why it was measured though there is a file, or why it is not kept


@dataclass(frozen=True)
class _Probe:
    """Something to time: `call` does `amount` operations, bytes or operators of `kind`."""

    kind: str
    amount: float
    call: Callable[[], object]
    tf32: bool = False
    alone: bool = False  # in one thread


def this_machine(device: str = "cpu") -> Machine:
    """The machine we run on: as measured before, or measured now and kept."""
    return recall_machine(device).machine


def recall_machine(device: str = "cpu", *, force: bool = False, seconds: float = SECONDS) -> Recall:
    """As `this_machine`, and where it is known from. force: measure even if there is a measurement."""
    where = _checked(device)
    path, note = kept_path(device), None
    if not force and path is not None:
        try:
            machine = load_machine(path)
            if machine.name == _name(where):
                return Recall(_with_sizes(machine, where), path, measured=False)
            note = f"measured again, since the file kept before is of {machine.name}"
        except TilegradError as error:  # a file of ours, not the user's: as good as none
            if not isinstance(error.__cause__, FileNotFoundError):
                note = f"measured again, since the file kept before cannot be used: {error.what}"
    machine = measure_machine(device, seconds=seconds)
    if path is None:
        return Recall(machine, None, measured=True, note="not kept: there is no folder for it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_machine(machine, path)
    except (OSError, InputError) as error:  # a cache that cannot be written costs time, nothing else
        reason = error.what if isinstance(error, InputError) else f"{path.parent}: {error.strerror}"
        return Recall(machine, None, measured=True, note=f"not kept: {reason}")
    return Recall(machine, path, measured=True, note=note)


def device_bytes(device: torch.device) -> int | None:
    """All memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host_bytes() if device.type == "cpu" else None


def known_machine(device: str = "cpu") -> Machine:
    """The measurement that is kept, or figures of its kind: nothing is measured now."""
    path, on_cpu = kept_path(device), torch.device(device).type == "cpu"
    found: Machine | None = None
    if path is not None:
        with contextlib.suppress(TilegradError):  # no file, or one that the next measurement will replace
            found = load_machine(path)
    if on_cpu:
        return found or CPU
    if torch.device(device).type != "cuda":  # a model without data is planned for the largest card of the table
        return PRESETS["h200"]
    return _as_torch_is_set(found or card(torch.cuda.get_device_properties(torch.device(device))))


def _as_torch_is_set(machine: Machine) -> Machine:
    """With float32 as convolutions use it: TF32 is faster and coarser, and torch takes it unless told not to."""
    if torch.backends.cudnn.conv.fp32_precision != "tf32":  # type: ignore[attr-defined]
        return machine
    return replace(machine, flops_per_s=machine.rates.get("tfloat32", machine.flops_per_s))


def kept_path(device: str) -> Path | None:
    """The file a measurement is kept in; None where there is no place for it."""
    folder = cache_folder()
    kind = device.removesuffix(":0")  # "cuda" is its first
    return None if folder is None else folder / f"machine-{kind.replace(':', '-')}.toml"


def measure_machine(device: str = "cpu", *, seconds: float = SECONDS) -> Machine:
    """Measure a device for about `seconds`, with as many threads as torch uses now."""
    where = _checked(device)
    if not 0 < seconds <= 600:
        raise InputError(f"a machine cannot be measured in {seconds} seconds", hint=f"seconds={SECONDS}")
    try:
        with torch.no_grad(), Progress(f"measuring {device}"):
            best = _take_turns(_probes(where), where, seconds)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"too little memory is free on {device} to measure it", hint="end what else uses it, or name a machine file"
        ) from error
    finally:
        if where.type == "cuda":
            torch.cuda.empty_cache()  # the caller's program may need what our buffers took
    machine = Machine(
        name=_name(where),
        flops_per_s=best.pop("float32"),
        bytes_per_s=best.pop("memory"),
        to_host_per_s=best.pop("to host"),
        from_host_per_s=best.pop("from host"),
        device_bytes=None,
        host_bytes=None,
        launch_s=1 / best.pop("operators"),
        kernel_s=PRESETS["h200"].kernel_s if where.type == "cuda" else None,
        fresh_bytes_per_s=best.pop("fresh", None),
        serial_per_s=best.pop("serial", None),
        rates=best,
    )
    return _with_sizes(machine, where)


def _with_sizes(machine: Machine, device: torch.device) -> Machine:
    """With the memory of now: the next container on the same machine may have another limit."""
    held = host_bytes()
    own = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else held
    return replace(machine, device_bytes=own, host_bytes=held)


def _checked(device: str) -> torch.device:
    """The device, if it is here and of a kind that can be measured."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"{device!r} is not a device", hint="cpu or cuda") from error
    if found.type not in DTYPES or (found.type == "cpu" and found.index):
        raise InputError(f"{device!r} cannot be measured", hint="cpu or cuda")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no device {device!r} here", hint="cpu" if not torch.cuda.is_available() else "cuda")
    return found


def _take_turns(probes: Sequence[_Probe], device: torch.device, seconds: float) -> dict[str, float]:
    """The best rate of every kind, in the order the kinds first appear."""
    for probe in probes:
        _time(probe, 1, device)  # loads libraries and picks kernels
    call_s = [_time(probe, 1, device) for probe in probes]
    end = time.perf_counter() + seconds
    done = 0
    while done < ROUNDS or time.perf_counter() < end:
        for k, probe in enumerate(probes):
            call_s[k] = min(call_s[k], _turn(probe, call_s[k], device))
            tick()
        done += 1
    best: dict[str, float] = {}
    for probe, took in zip(probes, call_s, strict=True):
        best[probe.kind] = max(probe.amount / took, best.get(probe.kind, 0.0))
    return best


def _turn(probe: _Probe, call_s: float, device: torch.device) -> float:
    """Seconds of a call. A CPU's calls are timed one by one: another process on a core stops some of them, not all.

    A GPU's are timed together, since it starts on the next while it ends the last.
    """
    count = max(1, round(TURN_S / call_s)) if device.type == "cuda" else 1
    best, end = math.inf, time.perf_counter() + TURN_S
    while best == math.inf or time.perf_counter() < end:
        best = min(best, _time(probe, count, device) / count)
    return best


def _time(probe: _Probe, count: int, device: torch.device) -> float:
    """Seconds for `count` calls, with nothing left in flight before and after."""
    with _tf32(probe.tf32, device), _alone(probe.alone):
        _settle(device)
        begin = time.perf_counter()
        for _ in range(count):
            probe.call()
        _settle(device)
        return max(time.perf_counter() - begin, 1e-9)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """float32 in TF32 units or not, whatever the program has chosen: torch's default differs between operators."""
    if device.type != "cuda":
        yield
        return
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32" if wanted else "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@contextlib.contextmanager
def _alone(wanted: bool) -> Iterator[None]:
    """In one thread, or in as many as before."""
    before = torch.get_num_threads()
    try:
        if wanted and before > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if wanted and before > 1:
            torch.set_num_threads(before)


def _probes(device: torch.device) -> list[_Probe]:
    dense = [probe for name in DTYPES[device.type] for probe in _dense_probes(name, device)]
    more = _cpu_probes(device) if device.type == "cpu" else ()
    return [*dense, *_copy_probes(device), _operators_probe(device), *more]


def _cpu_probes(device: torch.device) -> Iterator[_Probe]:
    """What only a CPU is slow at: blocks that the system hands out anew, and max pools."""
    yield _Probe("fresh", FRESH, lambda: torch.empty(FRESH, dtype=torch.uint8).fill_(1))
    image = _noise((1, 32, 112, 112), torch.float32, device)
    yield _Probe("serial", 9.0 * 32 * 56**2, partial(F.max_pool2d, image, 3, 2, 1))


def _dense_probes(name: str, device: torch.device) -> Iterator[_Probe]:
    """Convolutions, in both layouts where that matters, and matrix products."""
    tf32 = name == "tfloat32"
    dtype = torch.float32 if tf32 else getattr(torch, name)
    layouts = (torch.contiguous_format, torch.channels_last) if device.type == "cuda" else (torch.contiguous_format,)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    for batch, channels, small in CONVOLUTIONS[device.type]:
        side = round(small * threads ** (1 / 2))
        flops = 2.0 * batch * channels**2 * 9 * side**2
        for layout in layouts:
            x = _noise((batch, channels, side, side), dtype, device).to(memory_format=layout)
            w = _noise((channels, channels, 3, 3), dtype, device).to(memory_format=layout)
            yield _Probe(name, flops, partial(F.conv2d, x, w, padding=1), tf32)
    for small in PRODUCTS[device.type]:
        side = round(small * threads ** (1 / 3) / 16) * 16
        a, b = _noise((side, side), dtype, device), _noise((side, side), dtype, device)
        yield _Probe(name, 2.0 * side**3, partial(torch.matmul, a, b), tf32)


def _copy_probes(device: torch.device) -> list[_Probe]:
    """Memory and link. Into memory that is there already: page faults and the allocator are not in it.

    Nothing is done in place: a CPU is faster at that, but most of a network's operators write elsewhere.
    """
    few, many = BUFFER_BYTES
    size = many if device.type == "cuda" or torch.get_num_threads() > 8 else few
    x, y, z = (_ones((size // 4,), device) for _ in range(3))
    # A CPU's host is the device.
    host = _ones((size // 4,), torch.device("cpu")).pin_memory() if device.type == "cuda" else z
    count = SLICES[device.type]
    # One walk for all probes: the next slice is always one that no cache holds any more.
    walk = cycle(list(zip(*(buffer.chunk(count) for buffer in (x, y, z, host)), strict=True)))
    moved = size / count
    return [
        _Probe("memory", 2 * moved, lambda: _copy(*next(walk)[:2])),
        _Probe("memory", 3 * moved, lambda: _add(*next(walk)[:3])),
        _Probe("to host", moved, lambda: _copy(*next(walk)[::3])),
        _Probe("from host", moved, lambda: _copy(*next(walk)[::-3])),
    ]


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _add(x: Tensor, y: Tensor, total: Tensor) -> None:
    torch.add(x, y, out=total)


def _operators_probe(device: torch.device) -> _Probe:
    """A few operators of a network on an image of almost nothing, so that only their overhead is left.

    In one thread: threads add little where cores are free, and thousandths of a second where one is not.
    """
    x, w = _ones((1, 4, 4, 4), device), _ones((4, 4, 3, 3), device)

    def call() -> Tensor:
        return F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)) + x, 2)

    return _Probe("operators", 4.0, call, alone=True)


def _ones(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.ones(shape, dtype=torch.float32, device=device)  # whatever the program's default is


def _noise(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random, since a GPU multiplies zeros faster; from a generator of our own, to leave the program's alone."""
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(0), device=device).to(dtype)


def _name(device: torch.device) -> str:
    """What tells one measured machine from another. On a CPU the number of threads matters as much as the model."""
    if device.type == "cuda":
        return _printable(torch.cuda.get_device_name(device))
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    threads = torch.get_num_threads()
    model_name = model[1] if model else platform.processor() or platform.machine() or "CPU"
    return f"{_printable(model_name)}, {threads} thread{'s' if threads > 1 else ''}"


def _printable(text: str) -> str:
    """One line of at most the length a name may have, with room for the number of threads."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[: NAME_LENGTH - 20] or "unnamed"


def host_bytes(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Memory this process may use: the machine's, or the limit of a control group (a container's) if that is lower."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        found = []
    for file in _limit_files(cgroups, own):
        try:
            text = file.read_text().strip()
        except (OSError, ValueError):
            continue
        if text.isascii() and text.isdigit() and int(text) > 0:  # "max" where there is no limit
            found.append(int(text))
    return min(found, default=None)


def _limit_files(cgroups: Path, own: Path) -> Iterator[Path]:
    """Files that may hold a limit: of our control group and of all above it, in versions 2 and 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    groups = {"": "/", "memory": "/"}  # in a container the root is its own group
    for line in lines:
        _, kinds, group, *_ = [*line.split(":", 2), "", ""]
        if kinds in groups:
            groups[kinds] = group
    for root, group, file in (
        (cgroups, groups[""], "memory.max"),
        (cgroups / "memory", groups["memory"], "memory.limit_in_bytes"),
    ):
        place = root / group.strip("/")
        yield from (folder / file for folder in (place, *place.parents) if folder.is_relative_to(root))
