"""`tilegrad plan --mesh 8x8`: a training step on ranks, over the links of a table, on paper."""

from __future__ import annotations

import argparse
import json

from ..bounds import lower_graph
from ..bounds.mesh import Mesh
from ..errors import InputError
from ..ir import Graph, Kind
from ..planners import MeshProblem
from ..planners.ranks.forecast import OnPaper
from ..report.ranks import print_forecasts
from ..sim.links import LINKS
from ..sim.machine import Machine
from ..units import parse_budget, parse_sizes
from .console import make_console


def run_on_mesh(args: argparse.Namespace, graph: Graph, machine: Machine) -> int:
    """`graph`: of a module, as it was captured."""
    sizes = parse_sizes(args.mesh, "mesh")
    if len(sizes) > 2:
        raise InputError(f"a mesh of {args.mesh} for images of two axes", hint="--mesh 8x8")
    count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    mesh = Mesh(("h", "w")[: len(sizes)], sizes, tuple(range(count)))
    lowered = lower_graph(graph)
    graded = tuple(v.name for v in lowered.of_kind(Kind.PARAMETER) if v.type.floating)
    budget = parse_budget(args.budget[0], machine.device_bytes) if args.budget else None
    paper = OnPaper(MeshProblem(lowered, mesh, 0, graded, "auto", machine), budget)
    found = [paper.over(link) for name, link in LINKS.items() if args.link in (None, name)]
    if args.json:
        print(
            json.dumps(
                {"schema": 1, "mesh": list(sizes), "machine": machine.name, "links": [f.to_json() for f in found]}
            )
        )
    else:
        print_forecasts(f"{graph.name} on {args.mesh} x {machine.name}, predicted", found, make_console())
    return 0
