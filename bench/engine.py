"""What the engine costs: a plan that keeps everything against plain PyTorch, and the dial from few kept tiles to all.

    python bench/engine.py                     both, on the CPU
    python bench/engine.py --device cuda       both, on a GPU
    python bench/engine.py --only dial --nets unet --size 256

Times are ratios to plain PyTorch of the same run, the two in turns; memory is peak tensor bytes, all included. On a GPU
the allocator's peak, workspaces of kernels included, stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import NETWORKS, example_shape
from tilegrad.testing import PeakBytes

# The dial turns activations, not weights: a quarter of the width on a CPU, and a classifier of averages.
DIALS = {"cpu": {"vgg16": 512, "unet": 512}, "cuda": {"vgg16": 2048, "unet": 1024}}
SIZES = {"cpu": {"vgg16": 160, "resnet18": 320, "unet": 160}, "cuda": {"vgg16": 2048, "resnet18": 4096, "unet": 1024}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("keep", "dial"), help="one of the two (default: both)")
    parser.add_argument("--nets", default="vgg16,resnet18,unet")
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--shares", default="0.15,0.3,0.5,0.7,0.9", help="budgets of the dial, of plain's peak")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    kind = torch.device(args.device).type
    for name in args.nets.split(","):
        if args.only != "dial":
            keep(name, *load(name, args.size or SIZES[kind][name], args.device), args.rounds)
        if args.only != "keep" and name in DIALS[kind]:
            options = {"width": 0.25 if kind == "cpu" else 1.0} | ({"head": "pool"} if name == "vgg16" else {})
            net, image = load(name, args.size or DIALS[kind][name], args.device, **options)
            dial(name, net, image, args.rounds, [float(share) for share in args.shares.split(",")])


def load(name: str, size: int, device: str, **options: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = NETWORKS[name](**options).to(device).train()
    return net, torch.randn(example_shape(name, size), device=device)


def step(net: nn.Module, image: Tensor) -> None:
    out = net(image)
    out.backward(torch.ones_like(out))


def in_turns(runs: Sequence[Callable[[], None]], rounds: int, device: torch.device) -> list[float]:
    """The median seconds of each."""
    spent: list[list[float]] = [[] for _ in runs]
    for at in range(rounds + 1):
        for run, seconds in zip(runs, spent, strict=True):
            _wait(device)
            begin = time.perf_counter()
            run()
            _wait(device)
            if at:  # the first is for warming up
                seconds.append(time.perf_counter() - begin)
    return [statistics.median(seconds) for seconds in spent]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(net: nn.Module, image: Tensor, *, storages: bool = True) -> int:
    net.zero_grad(set_to_none=True)
    outside = sum(t.numel() * t.element_size() for t in (*net.parameters(), *net.buffers(), image))
    with PeakBytes(image.device, storages=storages) as peak:
        step(net, image)
    return peak.bytes + outside


def keep(name: str, net: nn.Module, image: Tensor, rounds: int) -> None:
    plain_bytes = peak_bytes(net, image)
    kept = tilegrad.tile(net, planner="keep")
    found = peak_bytes(kept, image)
    plain_s, kept_s = in_turns([lambda: step(net, image), lambda: step(kept, image)], rounds, image.device)
    print(
        f"keep   {name:10} {image.shape[-1]:5}  {kept_s / plain_s:5.3f} x plain ({plain_s * 1e3:8.1f} ms), "
        f"{found / plain_bytes:5.3f} of its memory",
        flush=True,
    )


def dial(name: str, net: nn.Module, image: Tensor, rounds: int, shares: Sequence[float]) -> None:
    plain_bytes = peak_bytes(net, image)
    for share in shares:
        budget = int(share * plain_bytes)
        try:
            tiled = tilegrad.tile(net, budget=budget)
            begin = time.perf_counter()
            plan = tiled.plan_for(image)
            planned_s = time.perf_counter() - begin
        except tilegrad.errors.BudgetError as error:
            print(f"dial   {name:10} {image.shape[-1]:5}  {share:4.0%}  {error.what}", flush=True)
            continue
        found = peak_bytes(tiled, image)
        allocated = f" ({peak_bytes(tiled, image, storages=False) / budget:5.3f} allocated)" if image.is_cuda else ""
        plain_s, tiled_s = in_turns([lambda: step(net, image), lambda: step(tiled, image)], rounds, image.device)
        chosen = plan.planning.chosen if plan.planning is not None else None
        print(
            f"dial   {name:10} {image.shape[-1]:5}  {share:4.0%}  {tiled_s / plain_s:5.3f} x plain, peak "
            f"{found / budget:5.3f} of the budget{allocated}, planned in {planned_s:4.1f} s: "
            f"{chosen.planner + ', ' + chosen.detail if chosen else 'plain'}; {len(plan.schedule.kept)} kept",
            flush=True,
        )


if __name__ == "__main__":
    main()
