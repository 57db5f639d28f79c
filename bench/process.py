"""Growth of the process, page faults and CPU seconds of a training step on the CPU, plain and tiled, by allocator.

    python bench/process.py                                         all networks, with glibc as it is
    python bench/process.py --malloc ,exact,keep,reuse --nets readme    the settings of TILEGRAD_MALLOC
    python bench/process.py --ways plain,tiled --preload ,/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4
    python bench/process.py --ways plain --layout channels_last --json results.json

Each line is a process of its own (Linux). What TILEGRAD_MALLOC says is for tiles and glibc alone. Growth: the largest
resident size in any of the steps, beyond that before the first, plus the parameters, buffers and inputs that were there
by then. What libraries load and planning takes is not in it. Faults and seconds: of the last step.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from measure import write
from tilegrad import models
from tilegrad.execution.heap import NO_FENCES

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], dict[str, Any]]
MIB = 2**20
KEYS = ("nets", "preload", "ways", "malloc")


@dataclass(frozen=True)
class Row:
    """What one process gave. Predicted: of tensors, and of the process where TILEGRAD_MALLOC has a say."""

    net: str
    way: str
    allocator: str
    malloc: str
    growth_bytes: int
    faults: int
    cpu_s: float
    budget: str | None
    predicted_bytes: int | None
    predicted_process_bytes: int | None


def averaged(net: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))


NETS: dict[str, Case] = {
    "readme": (
        lambda: models.SegmentationLoss(models.unet(depth=3, width=0.125)),
        lambda: (torch.randn(1, 1, 1024, 1024), torch.randint(2, (1, 1024, 1024))),
        {"budget": "128MiB"},
    ),
    "resnet34": (models.resnet34, lambda: (torch.randn(1, 3, 1500, 1800),), {"budget": "1GiB"}),
    "vgg16": (
        lambda: averaged(models.vgg16(width=0.25, head=None), 128),
        lambda: (torch.randn(1, 3, 1024, 1024),),
        {"tile": 256},
    ),
    "unet": (lambda: models.unet(padding="same"), lambda: (torch.randn(1, 1, 512, 512),), {"budget": "600MiB"}),
    "small": (  # for tests
        lambda: averaged(models.vgg16(width=0.125, head=None), 64),
        lambda: (torch.randn(1, 3, 768, 768),),
        {"budget": "96MiB"},
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="readme,resnet34,vgg16,unet", help=f"of {', '.join(NETS)}")
    parser.add_argument("--malloc", default="", help="values of TILEGRAD_MALLOC (default: unset)")
    parser.add_argument("--preload", default="", help="libraries to load first, such as libtcmalloc_minimal.so.4")
    parser.add_argument("--ways", default="tiled", help="of plain, tiled")
    parser.add_argument("--budget", help="instead of the network's own")
    parser.add_argument("--layout", default="contiguous_format", choices=("contiguous_format", "channels_last"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help="measure in this process, and print JSON")
    args = parser.parse_args(argv)
    if args.here:
        print(json.dumps(measure(args)))
        return
    rows = []
    for name, library, way, malloc in product(*(getattr(args, key).split(",") for key in KEYS)):
        if malloc and (library or way == "plain"):
            continue
        words = [f"--{key}={getattr(args, key)}" for key in ("layout", "steps", "threads")]
        words += [f"--budget={args.budget}"] if args.budget else []
        found = spawn([f"--nets={name}", f"--ways={way}", *words], library, malloc)
        rows.append(Row(name, way, os.path.basename(library) or "glibc", malloc, **found))
        print_row(rows[-1])
    write(args.json, rows, "cpu")


def spawn(words: Sequence[str], library: str, malloc: str) -> dict[str, Any]:
    """Measure in a new process."""
    environment = {**os.environ, "LD_PRELOAD": library, "TILEGRAD_MALLOC": malloc}
    if malloc == "reuse":
        environment["GLIBC_TUNABLES"] = NO_FENCES
    command = [sys.executable, __file__, "--here", *words]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(found.stderr)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warm_up()
    factory, make_inputs, options = NETS[args.nets]
    layout = getattr(torch, args.layout)
    net = factory().to(memory_format=layout)  # type: ignore[call-overload]
    inputs = [t.to(memory_format=layout) if t.dim() == 4 else t for t in make_inputs()]
    outside = sum(t.nbytes for t in (*inputs, *net.parameters(), *net.buffers()))
    run, predicted = net, {}
    if args.ways == "tiled":
        run = tilegrad.tile(net, **({"budget": args.budget} if args.budget else options))
        predicted = run.plan_for(*inputs).schedule.predicted
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)  # else a step would use what planning freed, and seem to grow less
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the largest size starts anew
    for _ in range(args.steps):
        run.zero_grad(set_to_none=True)
        faults, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        run(*inputs).mean().backward()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        seconds = time.process_time() - seconds
    growth = resident("VmHWM") - before + outside
    budget = (args.budget or options.get("budget")) if args.ways == "tiled" else None
    tensors, process = (predicted.get(key) for key in ("total_bytes", "process_bytes"))
    figures = {"growth_bytes": growth, "faults": faults, "cpu_s": seconds, "budget": budget}
    return figures | {"predicted_bytes": tensors, "predicted_process_bytes": process}


def warm_up() -> None:
    """Load all that is loaded once."""
    net, image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(1, 3, 40, 40)
    for run in (net, tilegrad.tile(net, tile=16)):
        run(image).mean().backward()


def resident(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def print_row(row: Row) -> None:
    said = "" if row.predicted_bytes is None else f", predicted {row.predicted_bytes / MIB:.0f} tensors"
    said += f" {row.predicted_process_bytes / MIB:.0f} process" if row.predicted_process_bytes else ""
    print(
        f"{row.net:9} {row.way} {row.allocator:24} {row.malloc or '-':6} growth {row.growth_bytes / MIB:5.0f} MiB"
        f"{f' of {row.budget}' if row.budget else ''}{said}; {row.faults:8d} faults, {row.cpu_s:6.2f} s CPU",
        flush=True,
    )


if __name__ == "__main__":
    main()
