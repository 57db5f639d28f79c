"""`tilegrad record`: some steps of a network on random images in a memory budget, or a script of the user's as it is.

Steps are a trial of a model and a budget, not a training loop: the same batch every step, so that the loss must fall.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..modules.plan import Plan
from ..modules.tiled import TiledModule, tile
from ..profile import Profile
from ..recording.record import record
from ..report.html import save_page
from ..report.html_data import drawn_bytes, drawn_seconds
from ..report.page import Column, Drawn, Fact, Page, Table
from ..report.terminal import make_table
from ..sim.peak import PeakBytes
from ..torch_private import pytree
from ..units import format_bytes, format_seconds, format_sizes
from .console import make_console
from .model import MODEL_HELP, add_input, input_shapes, load_model, tile_sizes
from .parser import refuse_idle
from .script import run_script

OF_STEPS = ("input", "budget", "tile", "steps", "optimizer", "lr", "device", "seed")
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True)
class RecordedStep:
    loss: float
    seconds: float
    peak_bytes: int


def register(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL --input 1x3x512x512 | %(prog)s [options] SCRIPT.py [its arguments]"
    parser.add_argument("model", metavar="MODEL|SCRIPT.py", help=f"{MODEL_HELP}; or a script to run")
    add_input(parser, required=False)
    parser.add_argument("--budget", metavar="2GiB", help="memory for a step, without the optimizer's state")
    parser.add_argument("--tile", metavar="128", help="elements of the input per tile, instead of a budget")
    parser.add_argument("--steps", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="sgd", help="(default: sgd)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default: 0.001)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and images")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--html", metavar="PATH", help="a report; of steps the last is then recorded")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.model.endswith(".py"):
        refuse_idle(args, OF_STEPS, "on a script, which has its own", "file.py:factory for a network of a file")
        return run_script(args)
    if not args.input:
        raise InputError("a model needs the shape of its input", where=args.model, hint="--input 1x3x512x512")
    if args.steps < 1:
        raise InputError(f"{args.steps} steps are not possible", hint="--steps 3")
    if args.tile is not None and args.budget is not None:
        raise InputError("give --tile or --budget, not both", hint="--budget 2GiB")
    if not (isfinite(args.lr) and args.lr >= 0):
        raise InputError(f"a learning rate of {args.lr} is not possible", hint="--lr 0.001")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here", hint="--device cpu")
    shapes = input_shapes(args)
    torch.manual_seed(args.seed)
    module = load_model(args.model, train=True).to(args.device)
    if not any(p.requires_grad for p in module.parameters()):
        raise InputError("the model has no parameters: there is nothing to train", where=args.model)
    inputs = [torch.randn(shape, device=args.device) for shape in shapes]
    tiled, plan = _tiled(module, inputs, args)
    steps, profile = _train(tiled, inputs, args)
    title = f"{args.model} on {', '.join(map(format_sizes, shapes))}"
    if args.html:
        save_page(_page(title, steps, profile, plan, args), args.html)
    if args.json:
        found = {"schema": 1, "steps": [_step_json(s) for s in steps], "plan": plan and plan.to_json()}
        print(json.dumps(found, allow_nan=False))
    else:
        _print(title, steps, plan)
    return 0


def _tiled(module: nn.Module, inputs: list[Tensor], args: argparse.Namespace) -> tuple[nn.Module, Plan | None]:
    if args.tile is None and args.budget is None:
        return module, None
    found: TiledModule = tile(module, budget=args.budget, tile=tile_sizes(args.tile))
    found.plan_for(*inputs)  # so that planning is not part of the first step
    return found, found.plan


def _train(
    module: nn.Module, inputs: list[Tensor], args: argparse.Namespace
) -> tuple[list[RecordedStep], Profile | None]:
    optimizer = OPTIMIZERS[args.optimizer](module.parameters(), lr=args.lr)
    steps, profile = [], None
    for at in range(args.steps):
        if args.html and at == args.steps - 1:
            with record(args.model) as recorder:
                step = _step(module, inputs, optimizer, args.device)
            profile = recorder.profile
        else:
            step = _step(module, inputs, optimizer, args.device)
        steps.append(step)
    return steps, profile


def _step(module: nn.Module, inputs: list[Tensor], optimizer: torch.optim.Optimizer, device: str) -> RecordedStep:
    optimizer.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    with PeakBytes(device) as peak:
        loss = _loss(module(*inputs))
        torch.autograd.backward(loss)
    optimizer.step()
    value = float(loss.detach())  # waits for the device
    return RecordedStep(value, time.perf_counter() - begin, peak.bytes)


def _step_json(step: RecordedStep) -> dict[str, Any]:
    """JSON has no NaN: a loss that is not finite is null."""
    return asdict(step) | {"loss": step.loss if isfinite(step.loss) else None}


def _loss(outputs: Any) -> Tensor:
    """The model's own loss where it gives a number; else how far its outputs are from zero."""
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    if not tensors:
        raise InputError("the model's output has no gradient: there is nothing to train")
    if len(tensors) == 1 and tensors[0].numel() == 1:
        return tensors[0].reshape(())
    return torch.stack([t.float().square().mean() for t in tensors]).sum()


def _print(title: str, steps: list[RecordedStep], plan: Plan | None) -> None:
    console = make_console()
    table = make_table(title, ("step", "loss", "time", "peak of the step"))
    for at, step in enumerate(steps, start=1):
        table.add_row(str(at), f"{step.loss:.6g}", format_seconds(step.seconds), format_bytes(step.peak_bytes))
    console.print(table)
    if plan is not None:
        console.print(str(plan), highlight=False)


def _page(
    title: str, steps: list[RecordedStep], profile: Profile | None, plan: Plan | None, args: argparse.Namespace
) -> Page:
    peak = Column("beyond parameters and inputs", "bytes")
    columns = (Column("step", "count"), Column("loss", "rate"), Column("time", "seconds"), peak)
    rows = [(at, step.loss, step.seconds, step.peak_bytes) for at, step in enumerate(steps, start=1)]
    last, fastest = steps[-1], format_seconds(min(step.seconds for step in steps))
    facts = [Fact("loss", f"{last.loss:.4g}", f"{steps[0].loss:.4g} at first")]
    if profile is not None:
        own = f"{format_bytes(last.peak_bytes)} of it beyond parameters and inputs"
        facts.append(
            Fact("time of the last step", format_seconds(drawn_seconds(profile)), f"the fastest took {fastest}")
        )
        facts.append(Fact("peak of the last step", format_bytes(drawn_bytes(profile)), own))
    if args.budget:
        facts.append(Fact("budget", args.budget))
    return Page(
        title=title,
        summary=f"{len(steps)} training steps, {'plain' if plan is None else 'inside a memory budget'}. The last one "
        "was recorded, which makes it a little slower.",
        facts=tuple(facts),
        tables=(Table("Steps", columns, rows),),
        profiles=() if profile is None else (Drawn("last step", profile),),
    )
