"""Time and memory of a training step in a budget, against plain PyTorch, on the networks people ask about.

    python bench/speed.py                              on the CPU, float32
    python bench/speed.py --device cuda                on a GPU, bfloat16, channels_last
    python bench/speed.py --nets resnet50_train --size 2048 --shares 0.6,0.25 --json results.json
    python bench/speed.py --device cuda --nets unet --tile h=256

Times are ratios to eager plain PyTorch of the same run, the two in turns. Memory is what a step allocates at most, all
included, as a share of plain's; on a GPU by the allocator, workspaces of kernels included, and beside it what the
allocator holds beyond what it held before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

import tilegrad
from measure import WARM, Memory, idle_bytes, in_turns, peaks, step, write
from nets import NETS, prepared, side

SHARES = {"unet": "0.15,0.3", "resnet50_train": "0.6,0.25", "resnet18_train": "0.6,0.3", "mobilenet_frozen": "0.3"}


@dataclass(frozen=True)
class Row:
    """What one budget gave."""

    net: str
    size: int
    share: float  # of plain's peak: the budget
    plain_s: float
    ratio: float
    plain_bytes: int
    peak: float  # of plain's
    kept: float  # the peak, as a share of the budget
    reserved: float | None  # by the allocator, as a share of the budget
    planned_s: float
    plan: str


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default=",".join(name for name in NETS if name != "convnext_depth"))
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--shares", help="budgets, as shares of plain's peak (default: by network)")
    parser.add_argument("--tile", help="tiles of a size instead of a budget: h=256 or h=256,w=512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for name in args.nets.split(","):
        net, image = prepared(name, side(name, args.device, args.size), args.device, args.width)
        for share in "1" if args.tile else (args.shares or SHARES.get(name, "0.15,0.5")).split(","):
            found = measure(name, net, image, float(share), args.rounds, tile_of(args.tile))
            if found is not None:
                rows.append(found)
                print_row(found)
    write(args.json, rows, args.device)


def tile_of(words: str | None) -> dict[str, int] | None:
    pairs = (pair.partition("=") for pair in words.split(",")) if words else ()
    return {axis: int(size) for axis, _, size in pairs} or None


def measure(
    name: str, net: nn.Module, image: Tensor, share: float, rounds: int, tile: dict[str, int] | None = None
) -> Row | None:
    step(net, image)  # what is only made once
    plain_bytes = peaks(net, image).allocated
    budget, others = int(share * plain_bytes), idle_bytes(image.device)
    begin = time.perf_counter()
    try:
        tiled = tilegrad.tile(net, budget=budget) if tile is None else tilegrad.tile(net, tile=tile)
        plan = tiled.plan_for(image)
    except tilegrad.errors.BudgetError as error:
        print(f"{name:16} {image.shape[-1]:6}  {share:4.0%}  {error.what}", flush=True)
        return None
    planned_s = time.perf_counter() - begin
    step(tiled, image)
    memory, plan = settled(tiled, image)
    plain_s, tiled_s = in_turns([lambda: step(net, image), lambda: step(tiled, image)], rounds, image.device)
    chosen = plan.planning.chosen if plan.planning is not None else None
    words = (
        f"{chosen.planner}, {chosen.detail}; {len(plan.schedule.kept)} kept"
        if chosen is not None
        else f"{tile or 'plain'}"
    )
    return Row(
        name, image.shape[-1], share, plain_s, tiled_s / plain_s, plain_bytes, memory.allocated / plain_bytes,
        memory.allocated / budget, None if memory.reserved is None else (memory.reserved - others) / budget, planned_s,
        words,
    )  # fmt: skip


def settled(tiled: tilegrad.TiledModule, image: Tensor) -> tuple[Memory, tilegrad.Plan]:
    """The most that a step needs, once the plan stays: on a GPU it is made anew after what first steps teach (that step
    still has the old plan's memory), and a recorded step takes its memory when it is recorded."""
    most: Memory | None = None
    plan, steps = tiled.plan, 0
    while steps <= WARM[image.device.type]:
        memory = peaks(tiled, image)
        same = tiled.plan.schedule is plan.schedule
        most, steps = (memory.most(most), steps + 1) if same else (None, 0)
        plan = tiled.plan
    assert most is not None
    return most, plan


def print_row(row: Row) -> None:
    reserved = f" ({row.reserved:.3f} reserved)" if row.reserved is not None else ""
    print(
        f"{row.net:16} {row.size:6}  {row.share:4.0%}  {row.ratio:5.2f} x plain's {row.plain_s * 1e3:8.1f} ms at "
        f"{row.peak:5.1%} of its {row.plain_bytes / 2**30:.2f} GiB; {row.kept:.3f} of the budget{reserved}; planned in "
        f"{row.planned_s:.1f} s: {row.plan}",
        flush=True,
    )


if __name__ == "__main__":
    main()
