"""A training step on an image that plain PyTorch cannot hold: seconds, memory, and the plan. bfloat16 on a GPU.

    python bench/huge.py --net vgg16 --size 32768 --budget 13GiB --device cuda --image host
    python bench/huge.py --net unet --size 16384 --budget 15GiB --device cuda --loss inside
    python bench/huge.py --net resnet18_train --size 2048 --budget 500MiB
    python bench/huge.py --net vgg16 --size 16384 --device cuda --tile h=384

`--image host`: the image lies in the host's memory and comes tile by tile. `--loss inside`: the module ends in the mean
cross-entropy with a mask of the image's size, so that no output is ever whole. Times are the median of some steps once
the plan stays, and the first step's; memory is what a step allocates and holds at most, model and image included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tilegrad
from measure import seconds, step, write
from nets import NETS, prepared
from speed import settled, tile_of
from tilegrad.units import parse_bytes


@dataclass(frozen=True)
class Row:
    net: str
    size: int
    budget: int
    image: str
    loss: str
    planned_s: float
    first_s: float
    seconds: float
    allocated: int
    reserved: int | None
    plan: str


class WithLoss(nn.Module):
    mask: Tensor

    def __init__(self, net: nn.Module, mask: Tensor):
        super().__init__()
        self.net = net
        self.register_buffer("mask", mask)

    def forward(self, image: Tensor) -> Tensor:
        return F.cross_entropy(self.net(image), self.mask)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--net", default="vgg16", choices=NETS)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--budget", default="1GiB")
    parser.add_argument("--tile", help="tiles of a size instead of a budget: h=256 or h=256,w=512")
    parser.add_argument("--halos", default="auto", help="where they are kept: device, host, disk")
    parser.add_argument("--image", choices=["device", "host"], default="device")
    parser.add_argument("--loss", choices=["outside", "inside"], default="outside")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    row = measure(args)
    held = f", {row.reserved / 2**30:.2f} GiB held" if row.reserved is not None else ""
    gib = 2**30
    print(
        f"{row.net} {row.size}²: {row.seconds:.2f} s a step ({row.first_s:.2f} s the first, planned in "
        f"{row.planned_s:.1f} s before) in {row.allocated / gib:.2f} GiB{held}, of a budget of {row.budget / gib:.2f} "
        f"GiB: {row.plan}"
    )
    write(args.json, [row], args.device)


def measure(args: argparse.Namespace) -> Row:
    net, image = prepared(args.net, args.size, args.device, args.width)
    if args.loss == "inside":
        net = WithLoss(net, torch.randint(0, 2, (1, args.size, args.size), device=args.device))
    if args.image == "host":
        image = image.cpu()
    device, budget = torch.device(args.device), parse_bytes(args.budget)
    begin = time.perf_counter()
    tile = tile_of(args.tile)
    given = {"budget": budget} if tile is None else {"tile": tile}
    tiled = tilegrad.tile(net, **given, halos=args.halos)
    tiled.plan_for(image)
    planned_s = time.perf_counter() - begin
    first_s = seconds(lambda: step(tiled, image), device)
    memory, plan = settled(tiled, image)
    spent = statistics.median(seconds(lambda: step(tiled, image), device) for _ in range(args.rounds))
    chosen = plan.planning.chosen if plan.planning is not None else None
    words = f"{chosen.planner}, {chosen.detail}" if chosen is not None else f"{tile or 'plain'}"
    return Row(
        args.net, args.size, budget, args.image, args.loss, planned_s, first_s, spent,
        memory.allocated, memory.reserved, words,
    )  # fmt: skip


if __name__ == "__main__":
    main()
