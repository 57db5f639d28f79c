"""What patches cannot learn: two small marks at far-apart places of a slide, and whether they are alike.

    python bench/far.py                       # minutes on two cores
    python bench/far.py --size 2048 --budget 200MiB

The same network, the same number of updates, the same slides: trained on whole slides in a memory budget, and on
patches with the label of their slide. Patches are chosen kindly: each has a mark in it. The slides are those of
examples/slides.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from slides import CLASSES, Slide

import tilegrad
from measure import write
from tilegrad.testing import PeakBytes
from tilegrad.units import format_bytes

PATCH = 96


@dataclass(frozen=True)
class Row:
    """What one way learned. `right`: of new slides. `peak_bytes`: of a step's tensors, by their storages."""

    way: str
    size: int
    updates: int
    seconds: float
    peak_bytes: int
    new_slides: int
    right: float


def make_net(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 32),
        nn.ReLU(),
        nn.Linear(32, len(CLASSES)),
    )


class Slides:
    """Slides in memory, as bytes."""

    def __init__(self, size: int, count: int, first: int):
        self.slides = [Slide(size, first + k) for k in range(count)]
        self.pixels = torch.from_numpy(np.stack([slide.pixels() for slide in self.slides])).movedim(-1, 1)
        self.labels = torch.tensor([CLASSES.index(slide.label) for slide in self.slides])

    def whole(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        return _light(self.pixels[list(chosen)]), self.labels[list(chosen)]

    def patches(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Two of each slide, one around each mark."""
        found = [self._around(k, mark.row, mark.column) for k in chosen for mark in self.slides[k].marks]
        return _light(torch.stack(found)), self.labels[list(chosen)].repeat_interleave(2)

    def _around(self, k: int, row: int, column: int) -> Tensor:
        size = self.pixels.shape[-1]
        top, left = (min(max(0, at - PATCH // 2), size - PATCH) for at in (row, column))
        return self.pixels[k, :, top : top + PATCH, left : left + PATCH]


def _light(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 - 0.7


Take = Callable[[Sequence[int]], tuple[Tensor, Tensor]]


def train(run: nn.Module, take: Take, count: int, args: argparse.Namespace) -> None:
    draw = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.Adam(run.parameters(), lr=args.lr)
    for step in range(args.updates):
        images, labels = take(torch.randint(count, (args.batch,), generator=draw).tolist())
        flips = [dim for dim in (-1, -2) if torch.rand((), generator=draw) < 0.5]
        optimizer.zero_grad()
        loss = F.cross_entropy(run(images.flip(flips)), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        if args.verbose and step % 20 == 19:
            print(f"  update {step + 1}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def accuracy(run: nn.Module, slides: Slides, *, patches: bool) -> float:
    """Of slides; where there are patches, by the mean of what is said of them."""
    right = 0
    for k in range(len(slides.slides)):
        images, _ = (slides.patches if patches else slides.whole)([k])
        said = run(images).softmax(1).mean(0).argmax()
        right += int(said == slides.labels[k])
    return right / len(slides.slides)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Whole slides against patches.")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--budget", default="80MiB")
    parser.add_argument("--slides", type=int, default=128)
    parser.add_argument("--test", type=int, default=60, help="new slides")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    learn, test = Slides(args.size, args.slides, 0), Slides(args.size, args.test, 100_000)
    rows = []
    for way in ("whole", "patches"):
        torch.manual_seed(args.seed)
        net = make_net()
        run, take = (tilegrad.tile(net, budget=args.budget), learn.whole) if way == "whole" else (net, learn.patches)
        images, labels = take(range(args.batch))
        with PeakBytes() as peak:
            torch.autograd.backward(F.cross_entropy(run(images), labels))
        began = time.perf_counter()
        train(run, take, args.slides, args)
        seconds = time.perf_counter() - began
        right = accuracy(run, test, patches=way == "patches")
        rows.append(Row(way, args.size, args.updates, seconds, peak.bytes, args.test, right))
        print(
            f"{way:<8} {args.updates} updates of {format_bytes(peak.bytes)}, {seconds:.0f} s: {right:.0%} "
            f"of {args.test} new slides are right",
            flush=True,
        )
    write(args.json, rows, "cpu")


if __name__ == "__main__":
    main()
