"""Gradients under autocast, on, off and on again: ours and plain's distance from a step in double precision.

python bench/autocast.py --device cuda
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.models import convnext_tiny, resnet18, unet


def step(run: Any, owner: nn.Module, x: Tensor, low: bool) -> tuple[torch.dtype, Tensor]:
    owner.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=low):
        y = run(x)
    y.double().square().mean().backward()
    return y.dtype, torch.cat([p.grad.flatten().double() for p in owner.parameters() if p.grad is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    networks: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "resnet18": (resnet18, 3),
        "convnext_tiny": (convnext_tiny, 3),
        "unet": (lambda: unet(depth=3, width=0.25), 1),
    }
    for name, (make, channels) in networks.items():
        torch.manual_seed(0)
        plain = make().to(args.device).train()
        ours, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
        tiled = tilegrad.tile(ours, tile=args.size // 4)
        x = torch.randn(1, channels, args.size, args.size, device=args.device)
        for low in (True, False, True):
            _, reference = step(exact, exact, x.double(), False)
            kind, theirs = step(plain, plain, x, low)
            own, found = step(tiled, ours, x, low)
            assert own == kind, (own, kind)
            gaps = [float((g - reference).norm() / reference.norm()) for g in (found, theirs)]
            print(
                f"{name:14s} {'bfloat16' if low else 'float32':9s} ours {gaps[0]:.2e}   plain {gaps[1]:.2e}", flush=True
            )


if __name__ == "__main__":
    main()
