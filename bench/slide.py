"""A training step on a slide that lies on disk, in a fixed amount of memory, on the CPU or a GPU.

    python bench/slide.py                                       16,384², resnet18, batch norm frozen
    python bench/slide.py --size 8192 --norm train --budget 2GiB --halos disk
    python bench/slide.py --size 4096 --budget 700MiB --check 512
    python bench/slide.py --size 32768 --budget 20GiB --device cuda

The slide is drawn once: a tiled, deflated TIFF of bytes. A step is forward and backward. Memory is the largest
anonymous resident size of the process (Linux): Python, torch and the plan in it, the file's pages not. Reading is what
threads spend in it, mostly while the step goes on. `--check N`: gradients on a crop of N² against plain, in float64.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from torch import nn

import tilegrad
from measure import write
from tilegrad import models
from tilegrad.images.opened import Opened
from tilegrad.images.tiff import TiffReader
from tilegrad.units import format_bytes

TILE = 512


@dataclass(frozen=True)
class Row:
    """What one step gave."""

    size: int
    norm: str
    budget: str
    halos: str
    step_s: float
    planning_s: float
    read_s: float
    anonymous_bytes: int
    card_bytes: int | None
    crop: int | None
    off: float | None  # of the gradients on the crop


def draw_slide(path: Path, size: int) -> None:
    """Spots of all sizes: something that compresses about as tissue does."""

    def tiles() -> Iterator[np.ndarray[Any, Any]]:
        for top in range(0, size, TILE):
            for left in range(0, size, TILE):
                rows, columns = (np.arange(start, start + TILE, dtype=np.float32) for start in (top, left))
                waves = [np.outer(np.sin(rows / p), np.cos(columns / (p + 2))) for p in (3, 19, 131)]
                colours = np.stack([180 + 60 * waves[0] * waves[2], 130 + 90 * waves[1], 170 + 70 * waves[2]], -1)
                yield colours.clip(0, 255).astype(np.uint8)

    about: dict[str, Any] = {"photometric": "rgb", "tile": (TILE, TILE), "compression": "zlib", "bigtiff": True}
    about["maxworkers"] = os.cpu_count()
    tifffile.imwrite(path, tiles(), shape=(size, size, 3), dtype=np.uint8, **about)


class Watch:
    """The most anonymous memory of this process, and the seconds that threads read."""

    def __init__(self) -> None:
        self.most = 0
        self.read_s = 0.0
        self._end = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> Watch:
        self._read, self._decode = Opened.read, TiffReader._decode
        setattr(Opened, "read", self._timed(self._read))  # noqa: B010 - mypy would not have it
        setattr(TiffReader, "_decode", self._timed(self._decode))  # noqa: B010 - by threads of its own
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        setattr(Opened, "read", self._read)  # noqa: B010
        setattr(TiffReader, "_decode", self._decode)  # noqa: B010
        self._end.set()
        self._thread.join()

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begin = time.thread_time()
            found = work(*args)
            with self._lock:
                self.read_s += time.thread_time() - begin
            return found

        return timed

    def _look(self) -> None:
        while not self._end.wait(0.02):
            with open("/proc/self/status") as file:
                here = next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
            self.most = max(self.most, here)


def make_net(norm: str, width: float) -> nn.Module:
    torch.manual_seed(0)
    net = models.resnet18(width=width)
    net.train(norm == "train")
    return net


def check(path: Path, norm: str, width: float, size: int) -> float:
    """How far gradients on a crop are from plain's, relative to their largest entry."""
    source = tilegrad.open(path, dtype=torch.float64, scale=1 / 255)
    net, crop = make_net(norm, width).double(), source[..., :size, :size]
    found = []
    for run in (net, tilegrad.tile(net, tile=size // 4)):
        net.zero_grad(set_to_none=True)
        run(crop if run is not net else crop.read()).square().sum().backward()
        found.append([p.grad for p in net.parameters() if p.grad is not None])
    pairs = zip(*found, strict=True)
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16384)
    parser.add_argument("--width", type=float, default=1.0, help="of the network")
    parser.add_argument("--norm", choices=("frozen", "train"), default="frozen")
    parser.add_argument("--budget", default="1400MiB", help="for tensors")
    parser.add_argument("--halos", choices=("auto", "device", "host", "disk"), default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--check", type=int, help="compare gradients on a crop of this size with plain's")
    parser.add_argument("--slide", type=Path, help="another image (default: one is drawn in the temporary folder)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    os.environ.setdefault("TILEGRAD_MALLOC", "exact")  # the process is as large as what is alive
    torch.set_num_threads(args.threads)
    path = args.slide or Path(tempfile.gettempdir()) / f"tilegrad-slide-{args.size}.tif"
    if not path.exists():
        draw_slide(path, args.size)
    source = tilegrad.open(path, scale=1 / 255, mean=(0.7, 0.5, 0.7), std=(0.2, 0.2, 0.2))
    net = make_net(args.norm, args.width).to(args.device)
    tiled = tilegrad.tile(net, budget=args.budget, halos=args.halos)
    with Watch() as watch:
        begin = time.perf_counter()
        tiled.plan_for(source)
        planned = time.perf_counter()
        loss = tiled(source).square().sum()
        loss.backward()
        seconds = time.perf_counter() - planned
    print(tiled.plan)
    card = torch.cuda.max_memory_allocated() if args.device == "cuda" else None
    off = check(path, args.norm, args.width, args.check) if args.check else None
    size, figures = source.shape[-1], (seconds, planned - begin, watch.read_s, watch.most, card, args.check, off)
    row = Row(size, args.norm, args.budget, args.halos, *figures)
    stored = int(np.prod(source.shape)) * source.stored.itemsize
    print(f"resnet18, batch norm {args.norm}, on {size}² ({format_bytes(stored)} of bytes)")
    print_row(row)
    write(args.json, [row], args.device)


def print_row(row: Row) -> None:
    print(f"time        {row.step_s:.1f} s a step, {row.planning_s:.1f} s planned before")
    print(f"reading     {row.read_s:.1f} s, {row.read_s / row.step_s:.1%} of the step")
    print(f"memory      {format_bytes(row.anonymous_bytes)} anonymous at most")
    if row.card_bytes is not None:
        print(f"GPU         {format_bytes(row.card_bytes)} allocated at most")
    if row.crop is not None:
        print(f"gradients   on a crop of {row.crop}² off by {row.off:.1e}")


if __name__ == "__main__":
    main()
