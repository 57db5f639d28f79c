"""Which kernels a training step on a GPU spends its time in: plain, and in a budget.

    python bench/kernels.py --nets resnet50_frozen --shares 0.15
    python bench/kernels.py --nets unet,convnext_depth --shares 0.15 --most 40

Times are of kernels alone (`torch.profiler`); what a step takes besides is the host's.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import tilegrad
from measure import WARM, clean, peaks, step
from nets import NETS, prepared, side

NAME = 150  # letters of a kernel's name: templates are long


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--shares", default="0.15", help="budgets, as shares of plain's peak")
    parser.add_argument("--most", type=int, default=20, help="kernels that are shown")
    args = parser.parse_args(argv)
    for name in args.nets.split(","):
        net, image = prepared(name, side(name, args.device, args.size), args.device, args.width)
        step(net, image)  # what is only made once
        plain_bytes = peaks(net, image).allocated
        show(f"{name}, plain", net, image, args.most)
        for share in args.shares.split(","):
            tiled = tilegrad.tile(net, budget=int(float(share) * plain_bytes))
            for _ in range(1 + WARM[image.device.type]):  # looked at, planned again, recorded
                step(tiled, image)
            print(tiled.plan)
            show(f"{name}, {float(share):.0%}", tiled, image, args.most)


def show(words: str, net: Callable[[Tensor], Tensor], image: Tensor, most: int) -> None:
    clean()
    on = ProfilerActivity.CUDA if image.is_cuda else ProfilerActivity.CPU
    with profile(activities=[on]) as found:
        step(net, image)
    spent, calls = Counter[str](), Counter[str]()
    for event in found.events() or ():
        name = event.name[:NAME]
        spent[name] += event.device_time if image.is_cuda else event.self_cpu_time_total
        calls[name] += 1
    print(f"{words}: {spent.total() / 1e3:.1f} ms in {calls.total()} kernels")
    for name, taken in spent.most_common(most):
        print(f"  {taken / 1e3:9.2f} ms {calls[name]:7}  {name}", flush=True)


if __name__ == "__main__":
    main()
