"""A map of a whole slide by a U-Net, read and written box by box: time, memory, and on crops what plain gives.

    python bench/maps.py --size 4096 --check 12
    python bench/maps.py --size 16384 --budget 500MiB

`--check N`: float64 and whole-numbered weights, so that sums are exact in any order; corners, borders, a seam of tiles
and N random places are compared, to the bit, with what the untiled model gives on them and all that they see. Memory is
the largest anonymous resident size of the process (Linux): Python, torch and the plan in it, the files' pages not.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tilegrad
from slide import Watch, draw_slide
from tilegrad import models
from tilegrad.units import format_bytes

SEEN = 192  # more than a pixel of the map sees to each side, in steps of all strides together
PATCH = 128


def make_net(width: float, exact: bool) -> nn.Module:
    torch.manual_seed(0)
    net = models.unet(in_channels=3, width=width).eval()
    if exact:
        net.double()
        for parameter in net.parameters():
            parameter.data = _few_ones(parameter.shape)
    return net


def _few_ones(shape: torch.Size) -> torch.Tensor:
    """About three entries of -1 or 1 in each kernel, the others 0: numbers stay small through all layers."""
    entries = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    return torch.randint(-1, 2, shape).double() * (torch.rand(shape) < 3 / entries)


def places(size: int, seam: int, count: int) -> Iterator[tuple[int, int]]:
    """Corners, borders, seams, and anywhere: in steps of all strides together."""
    last, draw = (size - PATCH) // 16 * 16, np.random.default_rng(0)
    over, half = min(last, max(0, seam - PATCH // 2) // 16 * 16), last // 32 * 16
    fixed = [(0, 0), (last, last), (0, half), (half, 0), (over, over)]
    anywhere = (tuple(16 * int(n) for n in draw.integers(0, last // 16, 2)) for _ in range(count))
    yield from (*fixed, *anywhere)  # type: ignore[misc]


def differs(net: nn.Module, source: tilegrad.ImageSource, found: tilegrad.ImageSource, top: int, left: int) -> bool:
    size = source.shape[-1]
    spans = [(max(0, at - SEEN), min(size, at + PATCH + SEEN)) for at in (top, left)]
    with torch.no_grad():
        seen = net(source[..., slice(*spans[0]), slice(*spans[1])].read())
    down, right = top - spans[0][0], left - spans[1][0]
    assert seen.unique().numel() > 100, "the map says nothing here"
    mine = found[..., top : top + PATCH, left : left + PATCH].read()
    return not torch.equal(mine, seen[..., down : down + PATCH, right : right + PATCH])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--width", type=float, default=0.125, help="of the network")
    parser.add_argument("--budget", default="500MiB", help="for tensors")
    parser.add_argument("--check", type=int, default=0, help="compare this many places with plain, in float64")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(words)
    if not args.check:
        os.environ.setdefault("TILEGRAD_MALLOC", "exact")  # the process is as large as what is alive
    torch.set_num_threads(args.threads)
    path = Path(tempfile.gettempdir()) / f"tilegrad-slide-{args.size}.tif"
    if not path.exists():
        draw_slide(path, args.size)
    dtype = torch.float64 if args.check else torch.float32
    source = tilegrad.open(path, dtype=dtype, scale=1 if args.check else 1 / 255)
    net = make_net(args.width, bool(args.check))
    tiled = tilegrad.tile(net, budget=args.budget)
    with tempfile.TemporaryDirectory() as folder, Watch() as watch:
        begin = time.perf_counter()
        tilegrad.predict(tiled, source, Path(folder) / "map.zarr")
        seconds, most = time.perf_counter() - begin, watch.most
        print(tiled.plan)
        print(
            f"U-Net, width {args.width}, {dtype}, on {args.size}²: {seconds:.1f} s, "
            f"{format_bytes(most)} anonymous at most"
        )
        if args.check:
            found = tilegrad.open(Path(folder) / "map.zarr", dtype=dtype, axes="ncyx")
            seam = args.size // tiled.plan.schedule.phases[0].grid[0]
            wrong = [at for at in places(args.size, seam, args.check) if differs(net, source, found, *at)]
            print(f"{5 + args.check} places of {PATCH}², {len(wrong)} of them differ from plain's: {wrong}")
            raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
