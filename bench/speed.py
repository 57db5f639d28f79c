"""Time and memory of a training step in a budget, against plain PyTorch, on the networks people ask about.

    python bench/speed.py                              on the CPU, float32
    python bench/speed.py --device cuda                on a GPU, bfloat16, channels_last
    python bench/speed.py --nets resnet50_train --size 2048 --shares 0.6,0.25 --json results.json

Times are ratios to eager plain PyTorch of the same run, the two in turns. Memory is what a step allocates at most, all
included, as a share of plain's; on a GPU by the allocator, workspaces of kernels included, and beside it what the
allocator reserved for it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import tilegrad
from engine import in_turns, step
from tilegrad import models
from tilegrad.testing import PeakBytes


def frozen(net: nn.Module) -> nn.Module:
    """Normalisation by running statistics."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], int, int, str]] = {  # factory, side on a GPU and a CPU, budgets
    "vgg16": (lambda: models.vgg16(head="pool"), 4096, 512, "0.15,0.5"),
    "unet": (lambda: models.unet(padding="same"), 4096, 512, "0.15,0.3"),
    "resnet50_frozen": (lambda: frozen(models.resnet50()), 4096, 512, "0.15,0.5"),
    "resnet50_train": (models.resnet50, 4096, 512, "0.6,0.25"),
    "convnext": (models.convnext_tiny, 4096, 512, "0.15,0.5"),
    "resnet18_train": (models.resnet18, 4096, 1024, "0.6,0.3"),
    "mobilenet_frozen": (lambda: frozen(models.mobilenet_v2()), 4096, 1024, "0.3"),
    "wavenet": (models.wavenet1d, 262144, 16384, "0.3"),
}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--shares", help="budgets, as shares of plain's peak (default: by network)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.nets.split(","):
        factory, large, small, shares = NETS[name]
        size = args.size or (large if torch.device(args.device).type == "cuda" else small)
        torch.manual_seed(0)
        net, image = prepared(factory(), name, size, args.device)
        for share in (args.shares or shares).split(","):
            found = measure(name, net, image, float(share), args.rounds)
            if found is not None:
                rows.append(found)
                print_row(found)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def prepared(net: nn.Module, name: str, size: int, device: str) -> tuple[nn.Module, Tensor]:
    if name == "wavenet":
        shape: tuple[int, ...] = (1, 1, size)
    else:
        shape = (1, 1 if name == "unet" else 3, size, size)
    image = torch.randn(shape)
    if torch.device(device).type != "cuda":
        return net, image
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return net.to(device, torch.bfloat16, memory_format=layout), image.to(device, torch.bfloat16, memory_format=layout)


def peaks(net: nn.Module, image: Tensor) -> tuple[int, int | None]:
    """Of a step: allocated, what was there included, and reserved beyond what was allocated before."""
    net.zero_grad(set_to_none=True)
    outside = sum(t.numel() * t.element_size() for t in (*net.parameters(), *net.buffers(), image))
    if image.is_cuda:
        torch.cuda.empty_cache()
    with PeakBytes(image.device) as peak:
        before = torch.cuda.memory_allocated() if image.is_cuda else 0
        step(net, image)
        reserved = torch.cuda.memory_reserved() - before + outside if image.is_cuda else None
    return peak.bytes + outside, reserved


def measure(name: str, net: nn.Module, image: Tensor, share: float, rounds: int) -> Row | None:
    step(net, image)  # what is only made once
    plain_bytes, _ = peaks(net, image)
    budget = int(share * plain_bytes)
    begin = time.perf_counter()
    try:
        tiled = tilegrad.tile(net, budget=budget)
        plan = tiled.plan_for(image)
    except tilegrad.errors.BudgetError as error:
        print(f"{name:16} {image.shape[-1]:6}  {share:4.0%}  {error.what}", flush=True)
        return None
    planned_s = time.perf_counter() - begin
    step(tiled, image)
    peak, reserved = peaks(tiled, image)
    plain_s, tiled_s = in_turns([lambda: step(net, image), lambda: step(tiled, image)], rounds, image.device)
    chosen = plan.planning.chosen if plan.planning is not None else None
    words = f"{chosen.planner}, {chosen.detail}; {len(plan.schedule.kept)} kept" if chosen is not None else "plain"
    return Row(
        name, image.shape[-1], share, plain_s, tiled_s / plain_s, plain_bytes, peak / plain_bytes, peak / budget,
        None if reserved is None else reserved / budget, planned_s, words,
    )  # fmt: skip


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
