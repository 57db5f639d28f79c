"""`tilegrad tiles`: which box of every operator each tile computes and reads."""

from __future__ import annotations

import argparse
import json
from math import prod

from ..bounds import MODES, Tiling, check_axes, image_axes, label_axes, lower_graph, tile_graph
from ..bounds.mesh import Mesh
from ..distributed.module import EXCHANGES
from ..errors import GridError
from ..importers import capture
from ..ir import Graph, Kind
from ..planners import MeshProblem
from ..planners.ranks.exchange import choose_exchanged
from ..planners.ranks.plan import MeshPlan, plan_mesh
from ..planners.ranks.tail import choose_tail
from ..report.html import save_page
from ..report.ranks import print_ranks, ranks_json
from ..report.tiles import geometry, print_tiles
from ..report.tiles_html import tiles_page
from ..units import parse_sizes
from .console import make_console
from .model import add_model_arguments, input_shapes, load_model
from .parser import refuse_idle


def register(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--grid", metavar="4x4", help="tiles per axis")
    parser.add_argument(
        "--mesh", metavar="2x2", help="workers per axis, instead of a grid: what each owns and receives"
    )
    parser.add_argument(
        "--exchange", choices=EXCHANGES, default="auto", help="with a mesh: when halos move (default: what is faster)"
    )
    parser.add_argument("--mode", choices=MODES, default="stream", help="way to tile (default: stream)")
    parser.add_argument("--axes", metavar="h,w", help="axes to cut, among n, d, h, w (default: the image's)")
    parser.add_argument("--json", action="store_true", help="JSON on standard output")
    parser.add_argument("--html", metavar="PATH", help="a page with the image and all tiles, step by step")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.grid is None) == (args.mesh is None):
        raise GridError("give --grid or --mesh, one of them", hint="--grid 4x4, or --mesh 2x2")
    if args.mesh is not None and args.html:
        raise GridError("a page shows tiles, not workers", hint=f"--grid {args.mesh} with --html")
    if args.mesh is not None:
        refuse_idle(args, ["mode"], "with a mesh: ranks overlap", "--grid")
        plan = make_mesh_plan(args)
        print(json.dumps(ranks_json(plan))) if args.json else print_ranks(plan, make_console())
        return 0
    refuse_idle(args, ["exchange"], "without a mesh", "--mesh 2x2")
    tiling = make_tiling(args)
    if args.html:
        save_page(tiles_page(tiling), args.html)
    if args.json:
        print(json.dumps(geometry(tiling)))
    else:
        print_tiles(tiling, make_console())
    return 0


def make_mesh_plan(args: argparse.Namespace) -> MeshPlan:
    """The plan of a training step on a mesh, without any processes."""
    graph, names, sizes = _cut(args, args.mesh, "mesh")
    mesh = Mesh(tuple(names), sizes, tuple(range(prod(sizes))))
    lowered = lower_graph(graph)
    graded = tuple(v.name for v in lowered.of_kind(Kind.PARAMETER) if v.type.floating)
    problem = MeshProblem(lowered, mesh, 0, graded, args.exchange)
    exchanged = choose_exchanged(problem)
    return plan_mesh(lowered, mesh, exchanged=exchanged, whole=choose_tail(problem, exchanged).nodes)


def make_tiling(args: argparse.Namespace) -> Tiling:
    graph, names, grid = _cut(args, args.grid, "grid")
    return tile_graph(graph, args.mode, dict(zip(names, grid, strict=True)))


def _cut(args: argparse.Namespace, text: str, what: str) -> tuple[Graph, list[str], tuple[int, ...]]:
    """The network, the axes to cut and into how many."""
    shapes = input_shapes(args)
    grid = parse_sizes(text, what)
    graph = capture(load_model(args.model, train=args.train, weights=False), *shapes)
    names = [part.strip() for part in args.axes.split(",")] if args.axes else image_axes(graph)[: len(grid)]
    check_axes(graph, label_axes(graph), names)
    if len(names) != len(grid):
        raise GridError(
            f"a {what} of {len(grid)} sizes for {len(names)} axes ({', '.join(names)})",
            hint=f"--{what} {'x'.join(['4'] * len(names))}, or --axes with {len(grid)} names",
        )
    if len(set(names)) != len(names):
        raise GridError(f"an axis is named twice in {', '.join(names)}")
    return graph, names, grid
