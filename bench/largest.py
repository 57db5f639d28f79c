"""The largest square image that each way can train in so much memory: batch 1, bfloat16.

    python bench/largest.py --device cuda --json bench/results/h200_largest.json
    python bench/largest.py --net unet --memory 8,24                       predicted, nothing is run

On a GPU the process may hold so much and no more, and a size counts when a step of it runs; sizes are multiples of 512,
searched from what is predicted, with a bound on trials: what is found does run, a little more might. Elsewhere, a size
counts when it is predicted to fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import tilegrad
from measure import clean, step, wait, write
from nets import NETS, checkpointed, prepared
from tilegrad.sim.measure import host_bytes
from tilegrad.sim.plain import plain_bytes
from ways import Elsewhere, Under, on_cpu

STEP = 512
ROOM = 0.92  # of the memory: tilegrad's budget, since an allocator reserves a little more than is allocated
HOST = 0.8  # of the host's memory: what may wait there
TILED = "tilegrad"
WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda net: net,
    "checkpoint": checkpointed,
    "save_on_cpu": lambda net: on_cpu(net, pinned=False),  # pinned memory is rounded up to powers of two
}


@dataclass(frozen=True)
class Row:
    """One way in so much memory."""

    net: str
    way: str
    memory: float  # in GiB
    side: int  # of the largest image; 0: none
    bound: bool  # is it the largest that was asked for?
    trials: int
    measured: bool


@dataclass
class Trials:
    """Asks whether a size fits, at most so often."""

    fits: Callable[[int], bool]
    left: int
    done: int = 0

    def __call__(self, size: int) -> bool:
        self.left, self.done = self.left - 1, self.done + 1
        return self.fits(size)


def largest(trials: Trials, low: int, guess: int, most: int) -> int:
    """The largest size found: steps of an eighth from the guess, then halves. `low` is known to fit."""
    high, size = most + STEP, _rounded(guess)  # high: not known to fit, or not asked for
    while trials.left and high - low > STEP:
        size = min(max(size, low + STEP), high - STEP)
        if trials(size):
            low = size
            size = _rounded(1.125 * size) if high > most else _rounded((low + high) / 2)
        else:
            high = size
            size = max(_rounded(0.875 * size), _rounded((low + high) / 2))
    return low


def _rounded(size: float) -> int:
    return int(size // STEP * STEP)


def predicted(name: str, way: str, size: int, width: float) -> tuple[int, int]:
    """Bytes on the device, and bytes that wait on the host."""
    net, image = prepared(name, size, "meta", width)
    outside = sum(t.numel() * t.element_size() for t in (*net.parameters(), *net.buffers(), image))
    held = Elsewhere()
    made = Under(net, lambda: held) if way == "save_on_cpu" else WAYS[way](net)
    return plain_bytes(made, (image,), {}, train=True) + outside, held.bytes


def plans(name: str, size: int, memory: float, width: float) -> bool:
    net, image = prepared(name, size, "meta", width)
    try:
        tilegrad.tile(net, budget=int(ROOM * memory), halos="device").plan_for(image)
    except tilegrad.errors.BudgetError:
        return False
    return True


def trains(name: str, way: str, size: int, memory: float, args: argparse.Namespace) -> bool:
    """Does a step run while the process may hold no more than this?"""
    total = torch.cuda.get_device_properties(args.device).total_memory
    if way == "save_on_cpu" and predicted(name, way, size, args.width)[1] > HOST * (host_bytes() or 0):
        print(f"  {way} {size}: more than the host holds", flush=True)
        return False
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
    try:
        net, image = prepared(name, size, args.device, args.width)
        made = tilegrad.tile(net, budget=int(ROOM * memory)) if way == TILED else WAYS[way](net)
        step(made, image)
        wait(image.device)
        words = "runs"
    except (RuntimeError, tilegrad.errors.BudgetError) as error:  # which an allocator's errors are, too
        words = str(error).splitlines()[0]
    net = image = made = None  # type: ignore[assignment]
    clean()
    print(f"  {way} {size}: {words}", flush=True)
    return words == "runs"


def guess(name: str, way: str, memory: float, width: float) -> float:
    """From two sizes: what is needed grows with the number of pixels."""
    small, large = (predicted(name, way, size, width)[0] for size in (STEP, 2 * STEP))
    slope = (large - small) / (3 * STEP**2)
    return float(max(0.0, (memory - small) / slope + STEP**2) ** 0.5)


def search(way: str, args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    measured = torch.device(args.device).type == "cuda"
    low, start = 0, 0.0
    for gib in sorted(float(each) for each in args.memory.split(",")):
        memory = gib * 2**30
        if way != TILED:
            start = guess(args.net, way, memory, args.width)
        else:  # more than the others, and for more memory more than for less
            start = 2 * guess(args.net, "checkpoint", memory, args.width) if not low else 1.25 * low

        def fits(size: int, memory: float = memory) -> bool:
            if measured:
                return trains(args.net, way, size, memory, args)
            if way == TILED:
                return plans(args.net, size, memory, args.width)
            return predicted(args.net, way, size, args.width)[0] <= memory

        trials = Trials(fits, args.trials)
        low = largest(trials, low, int(start), args.most)
        rows.append(Row(args.net, way, gib, low, low == args.most, trials.done, measured))
        print(f"{args.net:16} {way:12} {gib:5g} GiB  {low:6}{'+' if low == args.most else ''}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cuda: sizes are tried, not predicted")
    parser.add_argument("--net", default="vgg16", choices=NETS)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--memory", default="8,16,24,40,80,140", help="in GiB")
    parser.add_argument("--ways", default=",".join([*WAYS, TILED]))
    parser.add_argument("--most", type=int, default=16384, help="the largest side to try, a multiple of 512")
    parser.add_argument("--trials", type=int, default=4, help="at most, for each way in so much memory")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for way in args.ways.split(","):
        rows += search(way, args)
        write(args.json, rows, args.device)


if __name__ == "__main__":
    main()
