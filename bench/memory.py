"""Five networks in a budget, on one core: bytes of a training step, predicted and measured, its time, its gradients.

python bench/memory.py --json bench/results/cpu_memory.json       some minutes; the table of the README
python bench/memory.py --nets unet                                one of them
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tilegrad
from measure import in_turns, write
from tilegrad.models import SegmentationLoss, mobilenet_v2, resnet18, unet, vgg16, wavenet1d
from tilegrad.testing import PeakBytes


@dataclass(frozen=True)
class Task:
    words: str
    make: Callable[[float], nn.Module]  # of a share of its width
    shape: tuple[int, ...]
    options: dict[str, Any]
    mask: bool = False


@dataclass(frozen=True)
class Row:
    net: str
    words: str
    input: str
    options: str
    plain_bytes: int
    predicted_bytes: int
    measured_bytes: int
    ratio: float  # of the time of a step
    error: float  # the largest difference of a gradient in float64, relative to its largest entry


def _vgg(width: float) -> nn.Module:
    trunk = vgg16(width=width, head=None)
    channels = next(layer.out_channels for layer in reversed(list(trunk.modules())) if isinstance(layer, nn.Conv2d))
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))


PHOTO, DISK = (1, 3, 1024, 1024), {"halos": "disk"}
TASKS = {
    "unet": Task("U-Net, depth 3, width 1/8, loss inside", lambda w: SegmentationLoss(unet(depth=3, width=w / 8)),
                 (1, 1, 1024, 1024), {"budget": "128MiB"}, mask=True),
    "vgg16": Task("VGG-16, width 1/4", lambda w: _vgg(w / 4), PHOTO, {"budget": "96MiB"}),
    "mobilenet_v2": Task("MobileNet v2, width 1/4, eval", lambda w: mobilenet_v2(width=w / 4).eval(), PHOTO,
                         {"budget": "96MiB", **DISK}),
    "resnet18": Task("ResNet-18, width 1/4, batch norm in training", lambda w: resnet18(width=w / 4), PHOTO,
                     {"budget": "48MiB", **DISK}),
    "wavenet1d": Task("WaveNet, 1-D, width 1/4", lambda w: wavenet1d(width=w / 4), (1, 1, 16384), {"tile": 2048}),
}  # fmt: skip


def inputs_of(task: Task, size: int | None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    shape = (*task.shape[:2], *(size or n for n in task.shape[2:]))
    image = torch.randn(shape, dtype=dtype)
    return (image, torch.randint(2, (1, *shape[2:]))) if task.mask else (image,)


def planned_bytes(task: Task, model: nn.Module, inputs: Sequence[Tensor], options: dict[str, Any]) -> int:
    return int(tilegrad.tile(model, **options).plan_for(*inputs).schedule.predicted["total_bytes"])


def measure(name: str, args: argparse.Namespace) -> Row:
    task = TASKS[name]
    torch.manual_seed(0)
    model, inputs = task.make(args.width), inputs_of(task, args.size)
    options = task.options if args.tile is None else {"tile": args.tile}
    tiled = tilegrad.tile(copy.deepcopy(model), **options)
    given = sum(t.nbytes for t in (*inputs, *model.parameters(), *model.buffers()))
    runs, peaks = (model, tiled), list[int]()
    for run in runs:
        with PeakBytes() as peak:  # what the step allocates, beyond what was there before
            run(*inputs).mean().backward()
        peaks.append(peak.bytes + given)

    def step(run: nn.Module) -> None:
        run.zero_grad(set_to_none=True)
        run(*inputs).mean().backward()

    plain_s, tiled_s = in_turns([lambda: step(model), lambda: step(tiled)], args.rounds, torch.device("cpu"))
    wide, side = inputs_of(task, args.size, torch.float64), task.options.get("tile") or inputs[0].shape[-1] // 4
    found = tilegrad.verify(copy.deepcopy(model).double(), *wide, tile=args.tile or side)
    worst = max(d.max_relative for d in found.differences if "gradient" in d.name)
    words = ", ".join(f"{key} {value}" for key, value in options.items())
    sizes = "×".join(map(str, inputs[0].shape))
    predicted = planned_bytes(task, model, inputs, options)
    return Row(name, task.words, sizes, words, peaks[0], predicted, peaks[1], tiled_s / plain_s, worst)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(TASKS))
    parser.add_argument("--width", type=float, default=1.0, help="of the widths named")
    parser.add_argument("--size", type=int, help="side of the image, or length")
    parser.add_argument("--tile", type=int, help="tiles of a size instead of a budget")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in args.nets.split(","):
        rows.append(row := measure(name, args))
        sizes = [f"{count / 2**20:.1f}" for count in (row.plain_bytes, row.predicted_bytes, row.measured_bytes)]
        print(f"{row.words:46} plain {sizes[0]:>6} MiB, tiled {sizes[1]:>6} predicted {sizes[2]:>6} measured, "
              f"{row.ratio:.2f} x, {row.error:.0e}", flush=True)  # fmt: skip
        write(args.json, rows, "cpu")


if __name__ == "__main__":
    main()
