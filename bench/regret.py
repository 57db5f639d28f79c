"""How much slower a chosen plan is than the best one: many plans are measured, and at each budget the one that
`tilegrad.tile(net, budget=…)` takes is held against the fastest of those that fit.

    python bench/regret.py                          six networks on the CPU, float32, 256²
    python bench/regret.py --device cuda --json bench/results/h200_regret.json
    python bench/regret.py --nets unet --plans 12 --size 128

Regret is time(chosen) / time(best that fits) - 1. A plan fits by what it was measured to need: tensor bytes on a CPU,
bytes allocated on a GPU, workspaces of kernels included. Budgets are shares of what plain PyTorch needs beyond
parameters, their gradients and the image. Beside it: predicted against measured, for all plans. Times are the least of
some steps, the plans in turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from measure import WARM, Memory, clean, seconds, step, write
from nets import prepared, side
from plans import Plan, Subject
from tilegrad.errors import BudgetError

SIX = "vgg16,unet,resnet50_frozen,resnet50_train,convnext_depth,mobilenet_frozen"
NEAR = 0.2


@dataclass
class Measured:
    """A plan, predicted and measured."""

    words: str
    predicted_s: float
    predicted_bytes: int
    seconds: float = float("inf")
    bytes: int = 0
    reserved: int | None = None  # by the allocator of a GPU


@dataclass(frozen=True)
class Choice:
    """What one budget gave."""

    share: float
    budget: int
    chosen: str | None  # None: nothing fits, says the planner
    best: str | None  # of those measured; None: none fits
    regret: float | None
    need: float | None  # of the budget, what was chosen


@dataclass(frozen=True)
class Row:
    """A network."""

    net: str
    size: int
    choices: list[Choice]
    figures: dict[str, float | None]
    plans: list[Measured]  # plain PyTorch first


def figures(plain: Measured, *plans: Measured) -> dict[str, float | None]:
    """Predicted against measured: medians, shares and extremes over all plans."""
    times = [p.predicted_s / p.seconds for p in plans]
    scaled = [ratio * plain.seconds / plain.predicted_s for ratio in times]
    reserved = [p.reserved / p.predicted_bytes for p in plans if p.reserved is not None]
    return {
        "time": statistics.median(times),  # predicted / measured
        "near": sum(abs(ratio - 1) <= NEAR for ratio in times) / len(times),
        "near_scaled": sum(abs(ratio - 1) <= NEAR for ratio in scaled) / len(scaled),  # both as times of plain's
        "bytes": max(abs(p.predicted_bytes / p.bytes - 1) for p in plans),
        "reserved": max(reserved, default=None),  # / predicted
    }


def compare(name: str, net: nn.Module, image: Tensor, args: argparse.Namespace) -> Row:
    subject = Subject(net, image)
    plain = Measured("plain", subject.plain.seconds, subject.plain.bytes)
    measure(subject, subject.plain, plain, 1)
    grads = sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)
    fixed = Memory(net, image).outside + grads
    shares = [float(share) for share in args.shares.split(",")]
    budgets = [int(fixed + share * (plain.bytes - fixed)) for share in shares]
    chosen: list[Plan | None] = []
    for budget in budgets:
        try:
            chosen.append(subject.chosen(budget))
        except BudgetError as error:
            print(f"{name}: {error.what}", flush=True)
            chosen.append(None)
    taken = {plan for plan in chosen if plan is not None}
    pool = dict.fromkeys([*taken, *subject.plans(budgets, args.plans - len(taken))])
    measured = {plan: Measured(plan.words, plan.seconds, plan.bytes) for plan in pool}
    for _ in range(args.visits):
        for plan, row in {subject.plain: plain, **measured}.items():
            measure(subject, plan, row, args.steps)
    rows = [plain, *measured.values()]
    picked = [None if plan is None else measured[plan] for plan in chosen]
    choices = [_choice(rows, *each) for each in zip(shares, budgets, picked, strict=True)]
    return Row(name, image.shape[-1], choices, figures(*rows), rows)


def measure(subject: Subject, plan: Plan, row: Measured, steps: int) -> None:
    """Time and memory; what is recorded for a plan on a GPU is gone behind it."""
    image, once = subject.image, partial(_once, subject, subject.runs(plan))
    with Memory(subject.net, image) as memory:
        for _ in range(WARM[image.device.type]):
            once()
    row.bytes, row.reserved = memory.allocated, memory.reserved
    row.seconds = min(row.seconds, *(seconds(once, image.device) for _ in range(steps)))
    del once
    clean()


def _once(subject: Subject, run: Callable[[Tensor], Tensor]) -> None:
    subject.net.zero_grad(set_to_none=True)
    step(run, subject.image)


def _choice(rows: Sequence[Measured], share: float, budget: int, chosen: Measured | None) -> Choice:
    best = min((row for row in rows if row.bytes <= budget), key=lambda row: row.seconds, default=None)
    regret = chosen.seconds / best.seconds - 1 if chosen is not None and best is not None else None
    need = chosen.bytes / budget if chosen is not None else None
    names = None if chosen is None else chosen.words, None if best is None else best.words
    return Choice(share, budget, *names, regret, need)


def show(row: Row) -> None:
    for choice in row.choices:
        regret = "      -" if choice.regret is None else f"{choice.regret:+7.1%}"
        need = "" if choice.need is None else f"  {choice.need:.3f} of the budget"
        print(f"{row.net:16} {row.size:5}  {choice.share:4.0%} {regret}{need}  {choice.chosen}; best: {choice.best}")
    words = ", ".join(f"{name} {value:.3f}" for name, value in row.figures.items() if value is not None)
    print(f"{row.net:16} {row.size:5}  {len(row.plans)} plans, predicted against measured: {words}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", default=SIX)
    parser.add_argument("--plans", type=int, default=40, help="that are measured for a network")
    parser.add_argument("--shares", default="0.15,0.25,0.4,0.55,0.7,0.85", help="budgets")
    parser.add_argument("--size", type=int, help="side of the image (default: 256, on a GPU 4096)")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--visits", type=int, default=1, help="of each plan, in turns")
    parser.add_argument("--steps", type=int, default=3, help="timed in a visit")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for name in args.nets.split(","):
        size = args.size or (side(name, args.device) if torch.device(args.device).type == "cuda" else 256)
        rows.append(compare(name, *prepared(name, size, args.device, args.width), args))
        show(rows[-1])
        write(args.json, rows, args.device)


if __name__ == "__main__":
    main()
