"""`tilegrad analyze`: where time and memory go in a profile, a trace, a memory snapshot or a graph."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from ..analysis import Analysis, analyze
from ..analysis.groups import BYS, By, OperatorGroup, group_operators, operator_seconds
from ..errors import InputError
from ..files import save_text
from ..importers import find_format, load, load_profile
from ..profile import Profile
from ..report.profile_tables import print_groups, print_memory, print_operators, print_summary, print_training
from ..sim.machine import Machine, find_machine
from ..units import parse_budget, parse_seconds
from .console import is_quiet, make_console
from .parser import refuse_idle

if TYPE_CHECKING:
    from ..analysis.training import Training

LARGE_FILE = 4 << 20  # bytes: from here on progress is shown
TABLES = ("top", "sort", "by", "type", "name", "min_time", "time")  # options of tables
SORTS = ("time", "seq", "name", "type", "flops", "bytes", "rate", "bandwidth", "count")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="MegEngine profile, torch trace (.gz too), CUDA snapshot or graph")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table of operators (default: 10)")
    parser.add_argument("--sort", choices=SORTS, default="time", help="order of the tables (default: time)")
    parser.add_argument("--by", choices=BYS, help="what to group by (default: type)")
    parser.add_argument("--type", metavar="TEXT", help="only operators whose type contains this")
    parser.add_argument("--name", metavar="TEXT", help="only operators whose name or module contains this")
    parser.add_argument("--min-time", metavar="10us", help="only operators that took at least this long")
    parser.add_argument("--time", choices=("kernel", "total"), default="kernel", help="kernels, or with waits")
    parser.add_argument(
        "--machine", metavar="v100", help="hold rates against this one's: this, v100, a100, h200 or FILE.toml"
    )
    parser.add_argument("--plans", action="store_true", help="what tilegrad would do: plans at several budgets")
    parser.add_argument("--budget", action="append", metavar="4GB", help="a budget to plan for; may repeat")
    parser.add_argument("--json", nargs="?", const="-", metavar="PATH", help="everything as JSON, on standard output")
    parser.add_argument("--csv", metavar="PATH", help="the operators, or with --by the groups, as CSV")
    parser.add_argument("--html", metavar="PATH", help="a report to look at")
    parser.add_argument("--chrome-trace", metavar="PATH[.gz]", help="a trace for Perfetto")
    parser.add_argument("--dot", metavar="PATH", help="the graph for Graphviz")
    parser.add_argument("--mesh", metavar="2x2", help="of a graph of rects: split the step over so many workers")
    parser.add_argument("--rects", metavar="PATH", help="of a graph of rects: write it as JSON")
    parser.add_argument("--plot", metavar="PATH.svg", help="memory over time for a paper (.svg, .pdf, .png)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.top < 0:
        raise InputError(f"--top {args.top} is not possible", hint="--top 10")
    if find_format(args.file).gives == "rects":
        from .analyze_rects import run_rects

        return run_rects(args)
    if args.mesh or args.rects:
        raise InputError(
            "--mesh and --rects are for graphs of rects", where=args.file, hint="tilegrad tiles --mesh 2x2"
        )
    if args.json == "-" and not args.csv:
        shown = [name for name in TABLES if not (name == "by" and args.html)]
        refuse_idle(args, shown, "on JSON, which has everything", "--json PATH, or --csv PATH")
    least = parse_seconds(args.min_time) if args.min_time else 0.0
    machine = _machine(args.machine)
    analysis = analyze(read_profile(args.file, machine), machine)
    training = _plan(args, analysis.profile, machine) if args.plans or args.budget else None
    if training is not None:
        analysis = replace(analysis, plans=training.to_json())
    places = [at for at in range(len(analysis.operators)) if _wanted(args, analysis, at, least)]
    if args.json != "-":
        _print(args, analysis, places, training)
    _write(args, analysis, places, training)
    return 0


def read_profile(file: str, machine: Machine | None = None) -> Profile:
    """The profile in a file; of a graph without times one that is simulated."""
    format = find_format(file)
    if format.gives == "graph":
        from ..analysis.simulated import simulate  # needs torch

        return simulate(load(file), machine or find_machine("v100"), Path(file).name)
    size = Path(file).stat().st_size
    shown = size > LARGE_FILE and sys.stderr.isatty() and not is_quiet()
    with Progress(transient=True) if shown else nullcontext() as bar:
        if bar is None:
            return load_profile(file)
        task = bar.add_task(f"reading {Path(file).name}", total=size)
        return load_profile(file, lambda done, total: bar.update(task, completed=done, total=total))


def _describe_file(file: str) -> dict[str, Any]:
    """So that figures can be told to belong to this file."""
    digest, size, newlines = hashlib.sha256(), 0, 0
    with open(file, "rb") as raw:
        while piece := raw.read(1 << 20):
            digest.update(piece)
            size += len(piece)
            newlines += piece.count(b"\n")
    return {"name": Path(file).name, "bytes": size, "sha256": digest.hexdigest(), "newlines": newlines}


def _machine(text: str | None) -> Machine | None:
    if text is None:
        return None
    if text == "this":
        from ..sim.measure import this_machine  # needs torch

        return find_machine(text, this_machine)
    return find_machine(text)


def _plan(args: argparse.Namespace, profile: Profile, machine: Machine | None) -> Training:
    from ..analysis.training import plan_training  # needs torch

    base = machine or find_machine("v100")
    return plan_training(profile, base, [parse_budget(text, base.device_bytes) for text in args.budget or ()])


def _wanted(args: argparse.Namespace, analysis: Analysis, at: int, least: float) -> bool:
    op = analysis.operators[at]
    if args.type and args.type.lower() not in op.type.lower():
        return False
    if args.name and args.name.lower() not in f"{op.name} {op.module}".lower():
        return False
    return not least or operator_seconds(op, args.time) >= least


def _print(args: argparse.Namespace, analysis: Analysis, places: Sequence[int], training: Training | None) -> None:
    console = make_console()
    print_summary(analysis, console)
    if places:
        by: By = args.by or "type"
        groups = group_operators([analysis.operators[at] for at in places], by, analysis.machine)
        print_groups(analysis, _sorted_groups(groups, args), by, args.time, console)
        shown = _sorted_places(places, analysis, args)[: args.top]
        if shown:
            print_operators(analysis, shown, f"top {len(shown)} by {args.sort}", args.time, console)
    elif analysis.operators:
        console.print("no operator is like that")
    for device in analysis.memory:
        print_memory(analysis, device, console)
    if training is not None:
        print_training(training, console)


def _sorted_places(places: Sequence[int], analysis: Analysis, args: argparse.Namespace) -> list[int]:
    def key(at: int) -> Any:
        op = analysis.operators[at]
        seconds = operator_seconds(op, args.time)
        kernel = operator_seconds(op, "kernel")
        return {
            "seq": at, "count": at, "name": op.module or op.name, "type": op.type, "time": -seconds,
            "flops": -(op.flops or 0), "bytes": -(op.bytes or 0),
            "rate": -(op.flops or 0) / kernel if kernel else 0.0,
            "bandwidth": -(op.bytes or 0) / kernel if kernel else 0.0,
        }[args.sort]  # fmt: skip

    return sorted(places, key=lambda at: (key(at), at))


def _sorted_groups(groups: Sequence[OperatorGroup], args: argparse.Namespace) -> list[OperatorGroup]:
    keys: dict[str, Any] = {
        "name": lambda g: g.key, "type": lambda g: g.key, "count": lambda g: -g.count, "seq": lambda g: 0,
        "time": lambda g: -g.seconds(args.time), "flops": lambda g: -(g.rates.flops or 0),
        "bytes": lambda g: -(g.rates.bytes or 0), "rate": lambda g: -(g.rates.flops_per_s or 0),
        "bandwidth": lambda g: -(g.rates.bytes_per_s or 0),
    }  # fmt: skip
    return sorted(groups, key=keys[args.sort])


def _write(args: argparse.Namespace, analysis: Analysis, places: Sequence[int], training: Training | None) -> None:
    """All outputs that were asked for; each is written whole or not at all."""
    profile = analysis.profile
    if args.json:
        text = json.dumps({"file": _describe_file(args.file), **analysis.to_json()}, allow_nan=False)
        print(text) if args.json == "-" else save_text(text + "\n", args.json, "the JSON")
    if args.csv:
        from ..report.csv_tables import groups_csv, operators_csv

        chosen = [analysis.operators[at] for at in places]
        groups = _sorted_groups(group_operators(chosen, args.by, analysis.machine), args) if args.by else []
        ordered = _sorted_places(places, analysis, args)
        save_text(groups_csv(groups, args.by) if args.by else operators_csv(analysis, ordered), args.csv, "the CSV")
    if args.html:
        from ..report.html import save_page
        from ..report.profile_page import profile_page

        save_page(profile_page(analysis, args.by or "type", training), args.html)
    if args.chrome_trace:
        from ..report.chrome_trace import save_chrome_trace

        save_chrome_trace(profile, args.chrome_trace)
    if args.dot:
        from ..report.dot import format_dot

        save_text(format_dot(profile), args.dot, "the graph")
    if args.plot:
        from ..report.plots import save_memory_plot

        save_memory_plot(profile, args.plot)
