"""`tilegrad plan`: the fastest way to run a training step inside a memory budget."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..bounds import image_axes, lower_graph
from ..errors import InputError, ModelError
from ..files import near_file
from ..importers import export_module, load
from ..ir import Kind
from ..models import NETWORKS
from ..planners import Effort, Problem, TileSearch, TrainingStep, imported_tiles, planner_names, sweep
from ..report.curve import Curve, make_curve
from ..report.plan import print_budgets, print_candidates, print_curve, print_peak
from ..report.plan_html import save_plan_html
from ..report.plots import check_plot, save_curve_plot
from ..schedule import Storage
from ..sim.links import LINKS
from ..sim.machine import Machine, find_machine
from ..sim.measure import this_machine
from ..sim.plain import plain_bytes
from ..sim.training import training_graph
from ..units import parse_budgets
from .console import make_console
from .model import input_shapes, load_model, model_hint
from .parser import refuse_idle
from .plan_mesh import run_on_mesh

CURVE = "10%..90%"  # of plain: what is planned for where no budget is given


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL|FILE", help="a model as for `tilegrad tiles`, or a graph in a file")
    parser.add_argument(
        "--budget",
        action="append",
        metavar="4GB",
        help='bytes, "0.5 of device", 50%% of plain, or a range, 2GB..6GB; may repeat (default: 10%%..90%%)',
    )
    parser.add_argument("--input", action="append", metavar="1x3x512x512", help="shape of a model's input; may repeat")
    parser.add_argument("--planner", choices=planner_names(), default="auto", help="which planner (default: all)")
    parser.add_argument(
        "--machine", metavar="v100", help="this, v100, a100, h200 or FILE.toml (default: v100 for a graph, else this)"
    )
    parser.add_argument("--mesh", metavar="8x8", help="on so many ranks instead: time, traffic and memory of each")
    parser.add_argument("--link", choices=sorted(LINKS), help="with a mesh: between ranks (default: all of a table)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="which device of this machine")
    parser.add_argument(
        "--effort",
        type=int,
        default=Effort.nodes,
        help="of the exact search: nodes of its tree; 0: the heuristic alone",
    )
    parser.add_argument("--seconds", help=argparse.SUPPRESS)  # what --effort was called when it was timed
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--html", metavar="OUT.html", help="write a report, too")
    parser.add_argument("--plot", metavar="OUT.svg", help="time against memory for a paper, too (.svg, .pdf, .png)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.seconds is not None:
        raise InputError(
            "the search is counted, no longer timed: --seconds is gone", hint="--effort 0, or --effort 200"
        )
    if not 0 <= args.effort < 1e9:
        raise InputError(f"an effort of {args.effort} is not possible", hint=f"--effort {Effort.nodes}")
    imported = _is_file(args)
    if imported and args.mesh:
        raise InputError("a graph in a file cannot be cut over ranks", hint="a model, with --input 1x3x4096x4096")
    default = "v100" if imported else "h200" if args.mesh else "this"
    _check_idle(args, imported, args.machine or default)
    shapes = [] if imported else input_shapes(args)
    machine = find_machine(args.machine or default, partial(this_machine, args.device))
    if args.mesh:
        module = load_model(args.model, train=True, weights=False)
        return run_on_mesh(args, export_module(module, tuple(shapes), {}).graph, machine)
    asked = args.budget or [CURVE]
    for text in asked:
        parse_budgets(text, machine.device_bytes, 1 << 40)  # what cannot be is refused before anything is planned
    if args.plot:
        check_plot(args.plot)
    effort = Effort(nodes=args.effort)
    if imported:
        graph = load(args.model)
        hosted, problem = True, Problem(0, TrainingStep(graph, machine, effort), imported_tiles(graph, machine))
    else:
        hosted = (args.machine or default) != "this" or args.device == "cuda"
        problem = _problem(args.model, shapes, machine, effort, hosted or args.planner == "offload")
    storages = (Storage.DEVICE, Storage.HOST) if hosted else (Storage.DEVICE, Storage.DISK)
    assert problem.plain is not None
    plain = problem.plain.peak_bytes
    budgets = [budget for text in asked for budget in parse_budgets(text, machine.device_bytes, plain)]
    curve = make_curve(budgets, sweep(replace(problem, storages=storages), budgets, planner=args.planner))
    if args.json:
        print(json.dumps(curve.to_json() if len(budgets) > 1 else curve.tightest.to_json()))
    else:
        _print(curve)
    if args.html:
        save_plan_html(curve.tightest, args.html, curve)
    if args.plot:
        save_curve_plot(curve, args.plot)
    return 0


def _check_idle(args: argparse.Namespace, imported: bool, machine: str) -> None:
    if args.mesh:
        refuse_idle(args, ["planner", "effort", "html", "plot"], "with a mesh, whose plan is one", "without --mesh")
        if len(args.budget or ()) > 1:
            raise InputError("several budgets with a mesh", hint="--budget 40GiB, once")
    else:
        refuse_idle(args, ["link"], "without a mesh", "--mesh 8x8")
    if imported:
        refuse_idle(args, ["input"], "on a graph in a file, which has its shapes", "another file")
    if machine != "this":
        refuse_idle(args, ["device"], "on another machine than this", "--machine this")
    if args.planner in ("keep", "segments", "tile"):
        refuse_idle(args, ["effort"], f"on the planner '{args.planner}', which has no tree to search", "--planner auto")


def _is_file(args: argparse.Namespace) -> bool:
    """A graph in a file, or a model with the shape of its input?"""
    if ":" not in args.model and Path(args.model).is_file():
        return True
    name = args.model.partition("(")[0]  # before its options
    if ":" not in args.model and name not in NETWORKS:
        hint = near_file(args.model) or model_hint(name)
        raise ModelError(f"'{args.model}' is neither a file nor a model", hint=hint)
    if not args.input:
        raise InputError("a model needs the shape of its input", hint="--input 1x3x512x512")
    return False


def _problem(model: str, shapes: Sequence[tuple[int, ...]], machine: Machine, effort: Effort, hosted: bool) -> Problem:
    """A module's training step, without weights: whole nodes, tiles, and both."""
    module = load_model(model, train=True, weights=False)
    graph = export_module(module, tuple(shapes), {}).graph
    graded = tuple(v.name for v in graph.of_kind(Kind.PARAMETER))
    lowered = lower_graph(graph)
    plain = partial(plain_bytes, module, tuple(shapes), {}, train=True)
    axes = tuple(image_axes(lowered))
    tiles = TileSearch(lowered, axes, "stream", graded, True, plain, machine)
    step = TrainingStep(training_graph(graph, graded), machine, effort, hosted)
    as_torch = TrainingStep(training_graph(graph, graded, plain=True), machine)
    return Problem(0, step, tiles, graph, known=as_torch.keep)


def _print(curve: Curve) -> None:
    """Of one budget all candidates and what is alive at the peak; of several what is chosen for each."""
    console, planning = make_console(), curve.tightest
    if len(curve.asked) > 1:
        print_budgets(curve, console)
    else:
        print_candidates(planning.candidates, planning.chosen, planning.plain, planning.budget, console)
        print_peak(planning.chosen, console)
    print_curve(curve, console)
    for note in dict.fromkeys(note for found in curve.plannings for note in found.chosen.notes):
        console.print(f"note: {note}")
    console.print(f"machine     {planning.machine.name}", highlight=False)
