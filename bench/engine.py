"""What the engine costs: a plan that keeps everything against plain PyTorch.

    python bench/engine.py                     on the CPU
    python bench/engine.py --device cuda       on a GPU

Times are ratios to plain PyTorch of the same run, the two in turns; memory is peak tensor bytes, all included.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import tilegrad
from measure import in_turns, peaks, step
from tilegrad.models import NETWORKS, example_shape

SIZES = {"cpu": {"vgg16": 160, "resnet18": 320, "unet": 160}, "cuda": {"vgg16": 2048, "resnet18": 4096, "unet": 1024}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default="vgg16,resnet18,unet")
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sizes = SIZES[torch.device(args.device).type]
    for name in args.nets.split(","):
        torch.manual_seed(0)
        net = NETWORKS[name]().to(args.device).train()
        keep(name, net, torch.randn(example_shape(name, args.size or sizes[name]), device=args.device), args.rounds)


def keep(name: str, net: nn.Module, image: Tensor, rounds: int) -> None:
    plain_bytes = peaks(net, image, storages=True).allocated
    kept = tilegrad.tile(net, planner="keep")
    found = peaks(kept, image, storages=True).allocated
    plain_s, kept_s = in_turns([lambda: step(net, image), lambda: step(kept, image)], rounds, image.device)
    print(
        f"keep   {name:10} {image.shape[-1]:5}  {kept_s / plain_s:5.3f} x plain ({plain_s * 1e3:8.1f} ms), "
        f"{found / plain_bytes:5.3f} of its memory",
        flush=True,
    )


if __name__ == "__main__":
    main()
