"""`tilegrad analyze` for a step whose arrays are split in rects over workers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ..errors import InputError
from ..files import save_text
from ..importers import load_rects
from ..importers.rects import Repair
from ..ir import Graph
from ..rects import Share, count_kinds, format_rect_json, imbalance, shares, split_step, total
from ..rects.step import arrays, edges, held_of
from ..report.dot import format_rects_dot
from ..units import format_bytes, format_rate, parse_sizes
from .console import make_console
from .parser import refuse_idle

COLUMNS = "worker", "owned", "of it parameters", "with halos", "received a step", "halos", "gradients", "sums", "work"
OTHERS = ("csv", "html", "chrome_trace", "plot", "plans", "budget", "machine", "min_time", "time")  # need times, memory
TABLES = ("sort", "by", "type", "name")  # of operators


def run_rects(args: argparse.Namespace) -> int:
    asked = [f"--{name.replace('_', '-')}" for name in OTHERS if name in args.given]
    if asked:
        what = f"{asked[0]} needs times or addresses, which a graph of rects has not"
        raise InputError(what, where=Path(args.file).name, hint="--json, --dot, --mesh 2x2")
    refuse_idle(args, TABLES, "on a graph of rects, which is shown by worker", "--mesh 2x2")
    if args.json == "-":
        refuse_idle(args, ["top"], "on JSON, which has all repairs", "--json PATH")
    graph, repairs = load_rects(args.file)
    workers = _workers(graph, args.mesh)
    parts = shares(workers)
    if args.json:
        text = json.dumps(_to_json(graph, repairs, workers, parts))
        print(text) if args.json == "-" else save_text(text + "\n", args.json, "the JSON")
    if args.json != "-":
        _print(graph, repairs, parts, args.top)
    if args.dot:
        save_text("\n".join(map(format_rects_dot, workers)), args.dot, "the graph")
    if args.rects:
        save_text(format_rect_json(graph), args.rects, "the rects")
    return 0


def _workers(graph: Graph, mesh: str | None) -> tuple[Graph, ...]:
    if mesh is None:
        return (graph,)
    sizes = parse_sizes(mesh, "mesh")
    if len(sizes) > 2:
        raise InputError(f"a mesh of {mesh} for images of two axes", hint="--mesh 2x2")
    return split_step(graph, (sizes[0], sizes[1] if len(sizes) > 1 else 1))


def _to_json(
    graph: Graph, repairs: Sequence[Repair], workers: Sequence[Graph], parts: Sequence[Share]
) -> dict[str, Any]:
    totals = total(graph)
    return {
        "schema": 1,
        "kind": "rects",
        "name": graph.name,
        "counts": {
            "arrays": len(arrays(graph)),
            "operators": len(graph.nodes),
            "edges": len(list(edges(graph))),
            "kinds": count_kinds(graph),
        },
        "totals": {
            "parameters": totals["param_total"],
            "forward_flops": totals["flops_forward"],
            "backward_flops": totals["flops_backward"],
            "step_flops": totals["flops_step"],
            "array_bytes": totals["bytes_all_arrays_f32"],
            "array_bytes_by_role": totals["bytes_by_role_f32"],
        },
        "repairs": [repair._asdict() for repair in repairs],
        "imbalance": imbalance(parts),
        "workers": [_worker(graph, part) for graph, part in zip(workers, parts, strict=True)],
    }


def _worker(graph: Graph, share: Share) -> dict[str, Any]:
    rects = {
        a.name: {"dim": a.type.shape, "read_rect": (held := held_of(a)).read, "write_rect": held.write}
        for a in arrays(graph)
    }
    sums = {"owned_bytes": share.owned_bytes, "received_bytes": share.received_bytes}
    return {**asdict(share), **sums, "arrays": rects}


def _print(graph: Graph, repairs: Sequence[Repair], parts: Sequence[Share], top: int) -> None:
    console, totals, spread = make_console(), total(graph), imbalance(parts)
    sizes = f"{len(arrays(graph))} arrays, {len(graph.nodes)} operators, {len(list(edges(graph)))} edges"
    console.print(Text(f"{graph.name}: a training step in rects, {sizes}"), highlight=False, soft_wrap=True)
    work = format_rate(totals["flops_step"], "FLOP")
    console.print(f"parameters  {totals['param_total']:,}; a step takes {work}", highlight=False)
    table = Table(title="workers", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "worker" else "right")
    for part in parts:
        figures = (part.owned_bytes, part.owned_bytes_by_role.get("param", 0), part.held_bytes, part.received_bytes,
                   part.halo_bytes, part.gradient_bytes, part.sum_bytes)  # fmt: skip
        table.add_row(Text(part.name), *map(format_bytes, figures), format_rate(part.flops, "FLOP"))
    console.print(table)
    each = "owned {owned:.3f}, received {received:.3f}, work {flops:.3f}".format(**spread)
    console.print(f"imbalance   {each} (the most over the mean)", highlight=False)
    for repair in repairs[:top]:
        line = f"repaired    line {repair.line}: {' '.join(str(part) for part in repair[1:])}"
        console.print(Text(line), highlight=False, soft_wrap=True)
    if len(repairs) > top:
        console.print(f"and {len(repairs) - top} more repairs (--top, --json)", highlight=False)
