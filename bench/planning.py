"""How long planning takes and how near it comes to the best: recompute alone, and all planners of whole nodes.

    python bench/planning.py                        five networks at four budgets
    python bench/planning.py --only resnet50 --size 1024 --shares 0.3,0.9
    python bench/planning.py --profile tests/data/unet_chainer.txt    recompute by search and by heuristic
    python bench/planning.py --modules --size 4096  what `tilegrad.tile(net, budget=…)` takes, all planners
    python bench/planning.py --modules --all        the same for every reference network, 1024² to 16,384², 5 to 90 %

Seconds are CPU time. With --modules each line says whether planning took at most twice as long as the capture and two
seconds. `--json FILE` keeps the figures.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

import tilegrad
from measure import write
from nets import frozen
from tilegrad.errors import BudgetError
from tilegrad.importers import export_module, load
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import Effort, Problem, TrainingStep, plan_step
from tilegrad.planners.recompute import plan_recompute, schedule_reruns
from tilegrad.sim.machine import find_machine
from tilegrad.sim.plain import plain_bytes
from tilegrad.sim.training import training_graph
from tilegrad.units import format_bytes, parse_bytes

NAMES = "resnet50,densenet121,efficientnet_b0,unet,vgg16"
FROZEN = "_frozen"  # behind a name: its norms do not train
ALL = (
    "vgg16,unet,resnet50_frozen,resnet50,convnext_tiny,resnet18,mobilenet_v2,efficientnet_b0,densenet121,deeplab,"
    "wavenet1d"
)
SIZES, SHARES = (1024, 4096, 16384), (0.05, 0.1, 0.3, 0.6, 0.9)
BUDGETS = "6GB,5GB,4GB,3.5GB,3GB,2538992144"
BAR_S = 2.0  # beyond twice the capture


@dataclass(frozen=True)
class Planned:
    """What a user waits for. `ratio`: predicted, of plain's time; none where nothing fits."""

    net: str
    size: int
    share: float
    capture_s: float
    planning_s: float
    passes: bool
    plan: str
    ratio: float | None


@dataclass(frozen=True)
class Rerun:
    """Recompute at a budget. `extra`, `gap`: more time than plain, and how much of it may be too much."""

    net: str
    size: int
    share: float
    extra: float | None
    gap: float | None
    cpu_s: float
    best: str  # of all planners of whole nodes
    best_extra: float | None
    best_s: float


@dataclass(frozen=True)
class Searched:
    """Recompute of an imported step, by the exact search and by the heuristic."""

    budget: int
    found: float
    found_s: float
    quick: float
    quick_s: float


Row = Planned | Rerun | Searched


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=NAMES, help=f"networks (default: {NAMES})")
    parser.add_argument("--size", type=int, default=512, help="of their images")
    parser.add_argument("--shares", default="0.3,0.5,0.7,0.9", help="of plain's peak")
    parser.add_argument("--machine", default="v100", help="that times are predicted for")
    parser.add_argument("--modules", action="store_true", help="plan modules, norms in training, as a user does")
    parser.add_argument("--all", action="store_true", help="every reference network, three sizes, five shares")
    parser.add_argument("--profile", type=Path, help="an imported step instead of networks")
    parser.add_argument("--budgets", default=BUDGETS, help="for it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    rows: list[Row] = []
    for row in measured(args):
        rows.append(row)
        print(said(row), flush=True)
    if args.modules:
        print(f"{sum(row.passes for row in rows if isinstance(row, Planned))} of {len(rows)} pass")
    write(args.json, rows, "cpu")


def measured(args: argparse.Namespace) -> Iterator[Row]:
    names, shares = args.only.split(","), [float(share) for share in args.shares.split(",")]
    if args.profile is not None:
        yield from _searches(load(args.profile), args.machine, args.budgets.split(","))
    elif args.modules:
        os.environ["TILEGRAD_CACHE"] = "off"
        for size in SIZES if args.all else (args.size,):
            for name in ALL.split(",") if args.all else names:
                yield from _modules(name, size, SHARES if args.all else shares)
    else:
        for name in names:
            graph = _training(name, args.size)
            for share in shares:
                yield _rerun(name, args.size, graph, args.machine, share)


def said(row: Row) -> str:
    if isinstance(row, Searched):
        found = f"+{row.found:7.2%} in {row.found_s:5.1f} s, by the heuristic +{row.quick:7.2%} in {row.quick_s:4.1f} s"
        return f"{format_bytes(row.budget):10} {found}"
    where = f"{row.net:16} {row.size:5} {row.share:4.0%}"
    if isinstance(row, Planned):
        bar = "pass" if row.passes else "MISS"
        times = f"capture {row.capture_s:5.1f} s, planning {row.planning_s:5.1f} s"
        return f"{where}  {times}  {bar}  {_times(row.ratio)} plain's time  {row.plan}"
    alone = f"recompute {_more(row.extra)}, may be better by {_more(row.gap)}, {row.cpu_s:.1f} s"
    return f"{where}  {alone}; of all {row.best} {_more(row.best_extra)}, {row.best_s:.1f} s"


def _more(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _modules(name: str, size: int, shares: Sequence[float]) -> Iterator[Planned]:
    plain_name = name.removesuffix(FROZEN)
    net, shape = NETWORKS[plain_name]().train(), example_shape(plain_name, size)
    if name.endswith(FROZEN):
        frozen(net)
    export_module(net, (shape,), {})  # what is only loaded once
    begun = time.process_time()
    export_module(net, (shape,), {})
    capture_s = time.process_time() - begun
    outside = sum(t.numel() * t.element_size() for t in (*net.parameters(), *net.buffers())) + 4 * prod(shape)
    plain = plain_bytes(net, (shape,), {}, train=True) + outside
    for share in shares:
        begun, ratio = time.process_time(), None
        try:
            found = tilegrad.tile(net, budget=int(share * plain)).plan_for(shape).planning
            assert found is not None
            plan, ratio = found.chosen.planner, found.chosen.time_s / found.plain.time_s
        except BudgetError as error:
            plan = error.what
        spent = time.process_time() - begun - capture_s
        yield Planned(name, size, share, capture_s, spent, spent <= 2 * capture_s + BAR_S, plan, ratio)


def _training(name: str, size: int) -> Graph:
    """A training step with frozen norms, as fine-tuning has them."""
    with torch.device("meta"):
        net = frozen(NETWORKS[name]().train())
    graph = export_module(net, (example_shape(name, size),), {}).graph
    return training_graph(graph, [value.name for value in graph.of_kind(Kind.PARAMETER)])


def _rerun(name: str, size: int, graph: Graph, machine: str, share: float) -> Rerun:
    step = TrainingStep(graph, find_machine(machine), Effort(nodes=0))
    budget = int(share * step.keep.peak_bytes)
    begun = time.process_time()
    alone = schedule_reruns(step.reruns, budget, step.effort)
    cpu_s = time.process_time() - begun
    extra = None if alone is None else step.judge(alone, "").time_s / step.keep.time_s - 1
    fresh = TrainingStep(graph, find_machine(machine), Effort(nodes=0))
    begun = time.process_time()
    try:
        chosen = plan_step(Problem(budget, fresh)).chosen
    except BudgetError:
        best, best_extra = "none", None
    else:
        best, best_extra = chosen.planner, chosen.time_s / step.keep.time_s - 1
    best_s = time.process_time() - begun
    return Rerun(name, size, share, extra, None if alone is None else alone.gap, cpu_s, best, best_extra, best_s)


def _searches(graph: Graph, machine: str, budgets: Sequence[str]) -> Iterator[Searched]:
    step = TrainingStep(graph, find_machine(machine), Effort(nodes=0))
    for text in budgets:
        budget, figures = parse_bytes(text), []
        for nodes in (Effort.nodes, 0):
            begun = time.process_time()
            schedule = plan_recompute(graph, step.seconds, budget, Effort(nodes=nodes))
            spent = time.process_time() - begun
            assert schedule is not None, f"nothing fits {text}"
            figures += [step.judge(schedule, "").time_s / step.keep.time_s - 1, spent]
        yield Searched(budget, *figures)


if __name__ == "__main__":
    main()
