"""How long planning takes and how near it comes to the best: recompute alone, and all planners of whole nodes.

python bench/planning.py                        five networks at four budgets, as a table
python bench/planning.py --only resnet50 --size 1024 --shares 0.3,0.9
python bench/planning.py --modules --size 4096  what `tilegrad.tile(net, budget=…)` takes, all planners
python bench/planning.py --modules --all        the same for every reference network, 1024² to 16,384², 5 to 90 %

With --modules each line says whether planning took at most twice as long as the capture and two seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from math import prod

import torch

import tilegrad
from nets import frozen
from tilegrad.errors import BudgetError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.models import NETWORKS, example_shape
from tilegrad.planners import Effort, Problem, TrainingStep, plan_step
from tilegrad.planners.recompute import schedule_reruns
from tilegrad.sim.machine import find_machine
from tilegrad.sim.plain import plain_bytes
from tilegrad.sim.training import training_graph

NAMES = "resnet50,densenet121,efficientnet_b0,unet,vgg16"
FROZEN = "_frozen"  # behind a name: its norms do not train
ALL = (
    "vgg16,unet,resnet50_frozen,resnet50,convnext_tiny,resnet18,mobilenet_v2,efficientnet_b0,densenet121,deeplab,"
    "wavenet1d"
)
SIZES, SHARES = (1024, 4096, 16384), (0.05, 0.1, 0.3, 0.6, 0.9)
BAR_S = 2.0  # beyond twice the capture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=NAMES, help=f"networks (default: {NAMES})")
    parser.add_argument("--size", type=int, default=512, help="of their images")
    parser.add_argument("--shares", default="0.3,0.5,0.7,0.9", help="of plain's peak")
    parser.add_argument("--machine", default="v100", help="that times are predicted for")
    parser.add_argument("--modules", action="store_true", help="plan modules, norms in training, as a user does")
    parser.add_argument("--all", action="store_true", help="every reference network, three sizes, five shares")
    args = parser.parse_args()
    shares = [float(share) for share in args.shares.split(",")]
    if args.modules:
        os.environ["TILEGRAD_CACHE"] = "off"
        print("| network | size | budget | capture, CPU time | planning, CPU time | | plan | predicted, times plain |")
        print("|---|---|---|---|---|---|---|---|")
        names, sizes = (ALL, SIZES) if args.all else (args.only, (args.size,))
        passed = [
            line
            for size in sizes
            for name in names.split(",")
            for line in _modules(name, size, SHARES if args.all else shares)
        ]
        print(f"\n{sum(passed)} of {len(passed)} pass")
        return 0
    print("| network | budget | recompute | may be better by | CPU time | all of whole nodes | CPU time |")
    print("|---|---|---|---|---|---|---|")
    for name in args.only.split(","):
        graph = _training(name, args.size)
        for share in shares:
            print(f"| {name} | {share:.0%} | {_row(graph, args.machine, share)} |", flush=True)
    return 0


def _modules(name: str, size: int, shares: Sequence[float]) -> Iterator[bool]:
    """A line for each share; yields whether it passes the bar."""
    plain_name = name.removesuffix(FROZEN)
    net, shape = NETWORKS[plain_name]().train(), example_shape(plain_name, size)
    if name.endswith(FROZEN):
        frozen(net)
    export_module(net, (shape,), {})  # what is only loaded once
    begun = time.process_time()
    export_module(net, (shape,), {})
    captured_s = time.process_time() - begun
    outside = sum(t.numel() * t.element_size() for t in (*net.parameters(), *net.buffers())) + 4 * prod(shape)
    plain = plain_bytes(net, (shape,), {}, train=True) + outside
    for share in shares:
        begun = time.process_time()
        try:
            found = tilegrad.tile(net, budget=int(share * plain)).plan_for(shape).planning
            assert found is not None
            words = f"{found.chosen.planner} | {found.chosen.time_s / found.plain.time_s:.2f}"
        except BudgetError as error:
            words = f"{error.what} | -"
        spent = time.process_time() - begun - captured_s
        passes = spent <= 2 * captured_s + BAR_S
        said = "pass" if passes else "**miss**"
        print(f"| {name} | {size} | {share:.0%} | {captured_s:.1f} s | {spent:.1f} s | {said} | {words} |", flush=True)
        yield passes


def _training(name: str, size: int) -> Graph:
    """A training step with frozen norms, as fine-tuning has them."""
    with torch.device("meta"):
        net = frozen(NETWORKS[name]().train())
    graph = export_module(net, (example_shape(name, size),), {}).graph
    return training_graph(graph, [value.name for value in graph.of_kind(Kind.PARAMETER)])


def _row(graph: Graph, machine: str, share: float) -> str:
    step = TrainingStep(graph, find_machine(machine), Effort(nodes=0))
    budget = int(share * step.keep.peak_bytes)
    begun = time.process_time()
    alone = schedule_reruns(step.reruns, budget, step.effort)
    alone_s = time.process_time() - begun
    extra, gap = "none", "-"
    if alone is not None and alone.gap is not None:
        extra, gap = f"+{step.judge(alone, '').time_s / step.keep.time_s - 1:.2%}", f"{alone.gap:.2%}"
    fresh = TrainingStep(graph, find_machine(machine), Effort(nodes=0))
    begun = time.process_time()
    try:
        chosen = plan_step(Problem(budget, fresh)).chosen
        best = f"{chosen.planner} +{chosen.time_s / step.keep.time_s - 1:.2%}"
    except BudgetError:
        best = "none"
    return f"{extra} | {gap} | {alone_s:.2f} s | {best} | {time.process_time() - begun:.2f} s"


if __name__ == "__main__":
    raise SystemExit(main())
