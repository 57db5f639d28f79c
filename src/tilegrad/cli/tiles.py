"""`tilegrad tiles`: which box of every operator each tile computes and reads."""

from __future__ import annotations

import argparse
import json

from ..bounds import MODES, Tiling, image_axes, tile_graph
from ..errors import GridError
from ..importers import capture
from ..report.tiles import geometry, print_tiles
from ..units import parse_sizes
from .console import make_console
from .model import add_model_arguments, input_shapes, load_model


def register(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--grid", required=True, metavar="4x4", help="tiles per axis")
    parser.add_argument("--mode", choices=MODES, default="stream", help="way to tile (default: stream)")
    parser.add_argument("--axes", metavar="h,w", help="axes to cut, among n, d, h, w (default: the image's)")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    tiling = make_tiling(args)
    if args.json:
        print(json.dumps(geometry(tiling)))
    else:
        print_tiles(tiling, make_console())
    return 0


def make_tiling(args: argparse.Namespace) -> Tiling:
    shapes = input_shapes(args)
    grid = parse_sizes(args.grid, "grid")
    graph = capture(load_model(args.model, train=args.train, weights=False), *shapes)
    names = [part.strip() for part in args.axes.split(",")] if args.axes else image_axes(graph)[: len(grid)]
    if len(names) != len(grid):
        raise GridError(
            f"a grid of {len(grid)} sizes for {len(names)} axes ({', '.join(names)})",
            hint=f"--grid {'x'.join(['4'] * len(names))}, or --axes with {len(grid)} names",
        )
    if len(set(names)) != len(names):
        raise GridError(f"an axis is named twice in {', '.join(names)}")
    return tile_graph(graph, args.mode, dict(zip(names, grid, strict=True)))
