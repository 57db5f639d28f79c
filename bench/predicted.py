"""Predicted against measured peaks: all reference networks at three budgets, the replayed U-Net plain and at four.

python bench/predicted.py                       all, as a table for the docs
python bench/predicted.py --only resnet18,replay --out results.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilegrad
from tilegrad.errors import BudgetError
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import Effort, Problem, Slack, TrainingStep, plan_step
from tilegrad.sim.machine import find_machine
from tilegrad.testing import PeakBytes
from tilegrad.units import format_bytes

SIZES = {"unet3d": 108, "wavenet1d": 32_000, "unet_valid": 316}
WIDTHS: dict[str, dict[str, Any]] = {"unet_valid": {"base": 32}}
SHARES = (0.8, 0.6, 0.4)  # of the way from the largest working set to plain
DUMP = Path(__file__).parent.parent / "tests" / "data" / "unet_chainer.txt"


@dataclass(frozen=True)
class Row:
    """One step under one budget."""

    network: str
    budget_bytes: int
    plan: str
    predicted_bytes: int
    measured_bytes: int
    plain_s: float
    step_s: float

    @property
    def ratio(self) -> float:
        return self.measured_bytes / self.predicted_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", help="networks, and 'replay' (default: all)")
    parser.add_argument("--width", type=float, default=0.5, help="of the reference networks")
    parser.add_argument("--size", type=int, default=320, help="of their images")
    parser.add_argument("--image", type=int, default=572, help="of the replayed U-Net")
    parser.add_argument("--batch", type=int, default=1, help="of the replayed U-Net")
    parser.add_argument("--device", default="cpu", help="of the replayed U-Net")
    parser.add_argument("--out", help="write all figures as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    names = args.only.split(",") if args.only else [*NETWORKS, "replay"]
    rows: list[Row] = []
    print("| network | budget | plan | predicted | measured | ratio | time / plain |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for row in _replay(args) if name == "replay" else _network(name, args):
            rows.append(row)
            over = "" if row.measured_bytes <= row.budget_bytes else " OVER"
            budget, predicted, measured = map(format_bytes, (row.budget_bytes, row.predicted_bytes, row.measured_bytes))
            times = f"{row.ratio:.3f} | {row.step_s / row.plain_s:.2f}"
            print(f"| {row.network} | {budget} | {row.plan} | {predicted} | {measured}{over} | {times} |", flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(0.95 <= r.ratio <= 1.05 and r.measured_bytes <= r.budget_bytes for r in rows) else 1


def _network(name: str, args: argparse.Namespace) -> Iterator[Row]:
    net = NETWORKS[name](**WIDTHS.get(name, {"width": args.width})).train()
    x = torch.randn(example_shape(name, SIZES.get(name, args.size)))
    plain_plan = tilegrad.tile(net, mode="none")
    plain = plain_plan.plan_for(x).schedule.predicted["total_bytes"]
    measured, plain_s = _measure(plain_plan, x)
    yield Row(name, int(max(plain, measured)), "plain", int(plain), measured, plain_s, plain_s)
    least = _least(net, x)
    for share in SHARES:
        budget = int(least + share * (plain - least))
        tiled = tilegrad.tile(net, budget=budget)
        plan = tiled.plan_for(x)
        measured, step_s = _measure(tiled, x)
        predicted = int(plan.schedule.predicted["total_bytes"])
        yield Row(name, budget, plan.schedule.mode, predicted, measured, plain_s, step_s)


def _least(net: nn.Module, x: torch.Tensor) -> int:
    """The smallest budget that the planner of whole nodes knows a plan for."""
    try:
        tilegrad.tile(net, budget=1, planner="recompute").plan_for(x)
    except BudgetError as error:
        return int(str(error).split("(")[1].split(" bytes")[0])
    raise AssertionError("a step in one byte")


def _measure(net: nn.Module, x: torch.Tensor) -> tuple[int, float]:
    """Peak tensor bytes of a step with everything counted, and its seconds."""
    net.zero_grad(set_to_none=True)
    begun = time.perf_counter()
    with PeakBytes() as peak:
        out = net(x)
        out.backward(torch.ones_like(out))  # a gradient with memory of its own, as a loss gives
    seconds = time.perf_counter() - begun
    given = sum(t.numel() * t.element_size() for t in (x, *net.parameters(), *net.buffers()))
    return peak.bytes + given, seconds


def _replay(args: argparse.Namespace) -> Iterator[Row]:
    net = tilegrad.replay(tilegrad.load(DUMP), batch=args.batch, image=args.image, device=args.device)
    exact = args.device == "cpu"  # CUDA sums in another order every time
    steps = TrainingStep(net.graph, find_machine("v100"), Effort(nodes=20), hosted=not exact)
    plain = net.plain()
    plain_s = _seconds(net.plain)
    peak = steps.keep.peak_bytes
    budgets = [peak + 4096, *(int(share * peak) for share in (0.85, 0.75, 0.65, 0.55))]
    for budget in budgets:
        chosen = plan_step(Problem(budget, steps), slack=Slack(0.01, net.outside_bytes)).chosen
        found = net.run(chosen.schedule)
        seconds = _seconds(lambda: net.run(chosen.schedule))
        for name, grad in plain.grads.items():
            if not (torch.equal if exact else torch.allclose)(found.grads[name], grad):
                raise AssertionError(f"the gradient of {name} differs under {chosen.planner}")
        yield Row(
            f"replay {args.batch}x{args.image}²",
            budget,
            chosen.planner,
            chosen.peak_bytes,
            found.peak_bytes,
            plain_s,
            seconds,
        )


def _seconds(step: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


if __name__ == "__main__":
    raise SystemExit(main())
