"""`tilegrad verify`: one training step, plain and tiled, compared tensor by tensor."""

from __future__ import annotations

import argparse
import json

import torch

from ..bounds import MODES
from ..errors import InputError
from ..modules.verification import verify
from ..report.html import save_page
from ..report.verification import print_costs, print_differences, verification_page
from ..units import format_sizes
from .console import make_console
from .model import add_model_arguments, input_shapes, load_model, tile_sizes

DTYPES = ("float64", "float32", "bfloat16")


def register(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--tile", metavar="128", help="elements of the input per tile: 128, or 128x256")
    parser.add_argument("--budget", metavar="2GiB", help="memory for the whole step, instead of --tile")
    parser.add_argument("--mode", choices=(*MODES, "auto"), default="auto", help="way to tile (default: stream)")
    parser.add_argument("--axes", metavar="h,w", help="axes to cut, among n, d, h, w (default: the image's)")
    parser.add_argument("--halos", choices=("auto", "device", "host", "disk"), default="auto", help="where halos wait")
    parser.add_argument("--dtype", choices=DTYPES, default="float64", help="precision of both runs (default: float64)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--html", metavar="PATH", help="a report of both steps, recorded")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.tile is None) == (args.budget is None):
        raise InputError("give --tile or --budget, one of them", hint="--tile 128")
    shapes = input_shapes(args)
    torch.manual_seed(args.seed)
    dtype = getattr(torch, args.dtype)
    module = load_model(args.model, train=args.train).to(dtype)
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    found = verify(
        module, *inputs, tile=tile_sizes(args.tile), budget=args.budget, mode=args.mode, axes=args.axes,
        halos=args.halos, recorded=bool(args.html),
    )  # fmt: skip
    title = f"{args.model} on {', '.join(map(format_sizes, shapes))}, {args.dtype}"
    if args.html:
        save_page(verification_page(found, title), args.html)
    if args.json:
        print(json.dumps(found.to_json()))
        return 0 if found.ok else 1
    console = make_console()
    print_differences(found.differences, console, title)
    for note in found.notes:
        console.print(f"note: {note}")
    plain, tiled = found.plain, found.tiled
    print_costs((plain.peak_bytes, plain.step_s), (tiled.peak_bytes, tiled.step_s), console)
    console.print(str(found), style="bold green" if found.ok else "bold red")
    return 0 if found.ok else 1
