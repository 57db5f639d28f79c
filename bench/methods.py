"""A training step in different ways: plain, compiled, checkpoints, saved tensors on the host, tilegrad in some budgets.

    python bench/methods.py                                         five networks on the CPU, float32
    python bench/methods.py --device cuda --json bench/results/h200_methods.json
    python bench/methods.py --nets unet --ways plain,checkpoint,tilegrad --shares 0.3

All ways of a network run in turns; times are ratios to eager plain PyTorch. Memory is what a step allocates at most,
all included, and on a GPU beside it what the allocator reserves, both as shares of what plain allocates. On a CPU saved
tensors already are where `save_on_cpu` puts them, and bytes of a compiled step are those of an eager one: operators are
counted there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import tilegrad
from measure import Memory, clean, in_turns, peaks, step, write
from nets import FIVE, prepared, side
from ways import WAYS


@dataclass(frozen=True)
class Row:
    """One way to train one network."""

    net: str
    size: int
    way: str
    seconds: float | None = None
    ratio: float | None = None  # to plain's time
    bytes: int | None = None  # allocated
    peak: float | None = None  # of plain's
    reserved: float | None = None  # of what plain allocates
    error: str | None = None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default=FIVE)
    parser.add_argument("--ways", default=",".join([*WAYS, "tilegrad"]), help="plain comes first in any case")
    parser.add_argument("--shares", default="0.5,0.25,0.15", help="tilegrad's budgets, of plain's peak")
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for name in args.nets.split(","):
        net, image = prepared(name, side(name, args.device, args.size), args.device, args.width)
        rows += measure(name, net, image, args)
        write(args.json, rows, args.device)


def measure(name: str, net: nn.Module, image: Tensor, args: argparse.Namespace) -> list[Row]:
    """What each way needs, one after the other; then the time of all that ran."""
    memory: dict[str, Memory] = {}
    failed: dict[str, str] = {}
    ways = {"plain": net}
    for way in dict.fromkeys(["plain", *args.ways.split(",")]):
        asked = {way: way} if way != "tilegrad" else {f"tilegrad {float(s):.0%}": s for s in args.shares.split(",")}
        for words, share in asked.items():
            try:
                made = WAYS[way](net) if way != "tilegrad" else _tiled(net, float(share) * memory["plain"].allocated)
                step(made, image)  # what is only made once
                memory[words], ways[words] = peaks(made, image), made
            except (torch.OutOfMemoryError, tilegrad.errors.BudgetError) as error:
                failed[words] = str(error).splitlines()[0]
                clean()
    spent = in_turns([partial(step, made, image) for made in ways.values()], args.rounds, image.device)
    plain_s, plain_bytes = spent[0], memory["plain"].allocated
    rows = [Row(name, image.shape[-1], way, error=error) for way, error in failed.items()]
    for took, (way, found) in zip(spent, memory.items(), strict=True):
        reserved = None if found.reserved is None else found.reserved / plain_bytes
        figures = took, took / plain_s, found.allocated, found.allocated / plain_bytes, reserved
        rows.append(Row(name, image.shape[-1], way, *figures))
    rows.sort(key=lambda row: [*memory, *failed].index(row.way))
    for row in rows:
        show(row)
    return rows


def _tiled(net: nn.Module, budget: float) -> nn.Module:
    return tilegrad.tile(net, budget=int(budget))


def show(row: Row) -> None:
    if row.error is not None:
        print(f"{row.net:16} {row.size:6}  {row.way:14} {row.error}", flush=True)
        return
    reserved = "" if row.reserved is None else f", {row.reserved:6.1%} reserved"
    print(f"{row.net:16} {row.size:6}  {row.way:14} {row.ratio:6.3f} x plain, {row.peak:6.1%} of its memory{reserved}")


if __name__ == "__main__":
    main()
