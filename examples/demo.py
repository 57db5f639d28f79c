"""The main job in small: train a residual network on an image whose activations do not fit.

1. The geometry: what three ways to tile cost.
2. The plan: a budget that is a small part of what plain PyTorch needs, and the tiles that fit it.
3. Training: a few steps on a 3 x 4096 x 4096 image inside the budget, predicted and measured.
4. Proof: on a crop, every gradient is plain PyTorch's.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.bounds import MODES, tile_graph
from tilegrad.models import resnet18
from tilegrad.report.tiles import largest_working_set, work
from tilegrad.testing import PeakBytes
from tilegrad.units import format_bytes, parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a residual network on an image that does not fit.")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--budget", default="400MiB")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--width", type=float, default=0.25)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = resnet18(classes=2, width=args.width)
    show_geometry(net, args.size)
    train(net, args.size, args.budget, args.steps)
    prove(net)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\npeak RSS of this whole process: {format_bytes(peak)}")


def show_geometry(net: nn.Module, size: int) -> None:
    print(f"1. Geometry of resnet18 on 1x3x{size}x{size}, 8x8 tiles")
    graph = tilegrad.capture(net.eval(), (1, 3, size, size))
    plain = sum(graph.type(n.outputs[0]).bytes for n in graph.nodes)
    print(f"   {'mode':<10}{'work against untiled':>22}{'largest working set':>22}   of {format_bytes(plain)}")
    for mode in reversed(MODES):
        tiling = tile_graph(graph, mode, {"h": 8, "w": 8})
        print(f"   {mode:<10}{work(tiling):>22.2f}{format_bytes(largest_working_set(tiling)):>22}")


def train(net: nn.Module, size: int, budget: str, steps: int) -> None:
    print(f"\n2. A plan for {budget}")
    image, label = synthetic(size)
    net.train()
    plain = tilegrad.tile(net, mode="none").plan_for(image).schedule.predicted["total_bytes"]
    tiled = tilegrad.tile(net, budget=budget, halos="disk")
    plan = tiled.plan_for(image)
    lines = str(plan).splitlines()
    shown = [*lines[:6], f"  … {len(lines) - 12} more phases …", *lines[-6:]] if len(lines) > 14 else lines
    print("\n".join(f"   {line}" for line in shown))
    given = sum(t.numel() * t.element_size() for t in (image, *net.parameters(), *net.buffers()))
    print(f"\n3. Training inside {budget}; plain PyTorch would need {format_bytes(plain)} (predicted)")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        with PeakBytes() as peak:
            loss = nn.functional.cross_entropy(tiled(image), label)
            loss.backward()
        optimizer.step()
        measured = peak.bytes + given
        inside = "inside" if measured <= parse_bytes(budget) else "OVER"
        print(
            f"   step {step}: loss {loss.item():.6f}, {time.perf_counter() - begin:.1f} s, peak tensor bytes "
            f"{format_bytes(measured)} measured ({inside} the budget), "
            f"{format_bytes(plan.schedule.predicted['total_bytes'])} predicted"
        )


def synthetic(size: int) -> tuple[Tensor, Tensor]:
    """Noise with a few faint discs: something a network can learn to see."""
    image = torch.randn(1, 3, size, size)
    radius = size // 20
    offset = torch.arange(-radius, radius)
    disc = (offset[:, None] ** 2 + offset[None, :] ** 2 < radius**2).float()
    for k in range(1, 6):
        at = slice(size * k // 6 - radius, size * k // 6 + radius)
        image[0, k % 3, at, at] += 2 * disc
    return image, torch.tensor([1])


def prove(net: nn.Module) -> None:
    print("\n4. The same gradients: one training step on a 256x256 crop in double precision, plain against tiled")
    crop = synthetic(256)[0].double()
    for mode in MODES:
        found = tilegrad.verify(net.double(), crop, tile=96, mode=mode)
        print(f"   {mode:<8} {found}")
        if not found.ok:
            raise SystemExit("gradients differ")


if __name__ == "__main__":
    main()
