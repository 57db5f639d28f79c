"""How the C library hands out memory while a pass runs on the CPU: `TILEGRAD_MALLOC`, for glibc.

torch asks for aligned blocks. glibc takes a larger one and cuts the rest off. Its cache of small pieces (tcache) holds
on to such rests, so that the hole of a tile is too small for the next tile of the same size: the heap grows to twice of
what is alive. A program that is started without that cache has no such fences (`NO_FENCES`), and `reuse` is then what
is done where nothing is asked for.

exact  Blocks are mapped one by one and go back when they are freed: the process is as large as what is alive. Every
       page of every block is new, and the system fills it with zeros.
keep   Everything comes from one heap, and nothing goes back, between steps neither: after a few steps there are no page
       faults any more, and the heap is as large as it ever was.
reuse  Blocks of 1 MiB and more are mapped one by one, and the memory of smaller ones serves the next tile. What is left
       over goes back at the end of a pass. Without fences the process is little larger than what is alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache
from threading import Lock

import torch

from ..errors import InputError

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of glibc's mallopt: blocks from here on are mapped; what is kept at the top
MOST = (1 << 31) - 1
MODES = {"exact": (256 << 10, 128 << 10), "keep": (MOST, MOST), "reuse": (1 << 20, MOST)}
HOLES = 14  # blocks of the largest size that is reused: as measured, up to 22 where tiles are small
NO_FENCES = "glibc.malloc.tcache_count=0"  # in GLIBC_TUNABLES, which glibc reads when a program starts
SETTLED = (32 << 20, 64 << 20)  # where glibc's own rule ends once a block of 32 MiB was freed; mallopt switches it off
_lock = Lock()
_inside = 0  # passes that run


def asked_for() -> str | None:
    """What `TILEGRAD_MALLOC` says, or what suits the way the program was started; None where the C library is another,
    or does as it likes."""
    mode = os.environ.get("TILEGRAD_MALLOC", "").strip().lower()
    if not mode and NO_FENCES in os.environ.get("GLIBC_TUNABLES", "").split(":"):
        mode = "reuse"
    if mode and mode not in MODES:
        raise InputError(f"TILEGRAD_MALLOC={mode}", hint=f"{' or '.join(MODES)}, or leave it unset")
    return mode if mode and _library() is not None else None


def is_tight() -> bool:
    """Is a process about as large as what is alive in it, so that a budget can be the process's?"""
    return asked_for() in ("exact", "reuse")


def hole_bytes() -> int:
    """By how much a process may be larger than what is alive."""
    return HOLES * MODES["reuse"][0] if asked_for() == "reuse" else 0


@contextlib.contextmanager
def served(device: torch.device) -> Iterator[None]:
    """Memory as it is asked for, as long as a pass runs."""
    mode = asked_for() if device.type == "cpu" else None
    if mode is None:
        yield
        return
    _enter(mode)
    try:
        yield
    finally:
        _leave(mode)


def _enter(mode: str) -> None:
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set(MODES[mode])


def _leave(mode: str) -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside and mode != "keep":
            _set(SETTLED)
        if not _inside and mode == "reuse" and (library := _library()) is not None:
            library.malloc_trim(0)


def _set(thresholds: tuple[int, int]) -> None:
    library = _library()
    assert library is not None
    for name, size in zip((MMAP_THRESHOLD, TRIM_THRESHOLD), thresholds, strict=True):
        library.mallopt(name, size)


@cache
def _library() -> ctypes.CDLL | None:
    """glibc, if it is the one that allocates: not where another allocator was loaded before it."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    others = ("tc_malloc", "mallctl", "mi_malloc")  # tcmalloc, jemalloc, mimalloc
    glibc = hasattr(library, "gnu_get_libc_version") and not any(hasattr(library, name) for name in others)
    return library if glibc else None
