"""Strong and weak scaling on paper: a training step on meshes of up to 64 GPUs, over the links of a table.

    python bench/scaling.py                                    ResNet-50 and U-Net at 16,384² and 65,536², on H200s
    python bench/scaling.py --nets unet --sizes 16384 --links ethernet --json results.json
    python bench/scaling.py --check 2,2x2                      predicted against measured, on this machine

Nothing is run but for `--check`. Strong: the same image on more ranks, against the fewest that hold it. Weak: so much
more image that each rank has as much. bfloat16. `--check` trains ResNet-18 at 512² on ranks of one thread each, and
compares the time of a step with what is predicted for this machine and gloo's own link.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import tilegrad
from measure import step, write
from nets import NETS, prepared
from ranks import on_ranks, timed
from tilegrad.bounds import lower_graph
from tilegrad.bounds.mesh import Mesh
from tilegrad.distributed import part
from tilegrad.errors import GridError
from tilegrad.importers import export_module
from tilegrad.ir import Graph, Kind
from tilegrad.planners import MeshProblem
from tilegrad.planners.ranks.forecast import OnPaper
from tilegrad.planners.ranks.way import Forecast
from tilegrad.sim.links import LINKS
from tilegrad.sim.machine import PRESETS, Machine
from tilegrad.sim.measure import this_machine

COUNTS = (1, 4, 16, 64)


@dataclass(frozen=True)
class Row:
    """One mesh, one link."""

    net: str
    kind: str
    of: int  # the image of the largest mesh
    size: int
    ranks: int
    link: str
    step_s: float
    efficiency: float | None  # against the first that fits
    peak_bytes: int
    sent_bytes: int
    tiles: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="resnet50_train,unet")
    parser.add_argument("--sizes", default="16384,65536")
    parser.add_argument("--links", default="nvlink,infiniband,ethernet")
    parser.add_argument("--check", help="meshes to run here instead: 2,2x2")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.check:
        for mesh in args.check.split(","):
            check(tuple(int(n) for n in mesh.split("x")))
        return
    rows: list[Row] = []
    for name in args.nets.split(","):
        for size in map(int, args.sizes.split(",")):
            rows += scale(name, size, args.links.split(","), "strong")
            rows += scale(name, size, args.links.split(","), "weak")
    write(args.json, rows, "cpu")


def scale(name: str, size: int, links: Sequence[str], kind: str) -> list[Row]:
    """Up to 64 ranks, which have an image of this side together."""
    papers = {}
    for count in COUNTS:
        side = size if kind == "strong" else size * isqrt(count) // isqrt(COUNTS[-1])
        papers[count] = side, paper(graph_of(name, side), (isqrt(count),) * 2, PRESETS["h200"])
    rows = []
    for link in links:
        first: tuple[int, float] | None = None
        for count, (side, found) in papers.items():
            forecast = found.over(LINKS[link]) if found is not None else None
            if forecast is None or not forecast.fits:
                print(f"{name:15} {kind:6} {side:6} on {count:2}: does not fit")
                continue
            first = first or (count, forecast.step_s)
            ideal = first[1] * first[0] / count if kind == "strong" else first[1]
            rows.append(row(name, kind, size, side, forecast, ideal / forecast.step_s))
            show(rows[-1])
    return rows


def graph_of(name: str, size: int) -> Graph:
    with torch.device("meta"):
        net = NETS[name].make(width=1.0).bfloat16()
    image = torch.empty(1, NETS[name].channels, size, size, dtype=torch.bfloat16, device="meta")
    return lower_graph(export_module(net, (image,)).graph)


def paper(graph: Graph, shape: tuple[int, ...], machine: Machine) -> OnPaper | None:
    graded = tuple(v.name for v in graph.of_kind(Kind.PARAMETER) if v.type.floating)
    mesh = Mesh(("h", "w")[: len(shape)], shape, tuple(range(prod(shape))))
    try:
        return OnPaper(MeshProblem(graph, mesh, 0, graded, "auto", machine))
    except GridError:
        return None


def row(name: str, kind: str, of: int, size: int, f: Forecast, efficiency: float) -> Row:
    return Row(name, kind, of, size, f.ranks, f.link, f.step_s, efficiency, f.peak_bytes, f.sent_bytes, f.tiles)


def show(row: Row) -> None:
    print(
        f"{row.net:15} {row.kind:6} {row.size:6} on {row.ranks:2} over {row.link:10}: {row.step_s * 1e3:9.1f} ms, "
        f"{row.efficiency:4.0%}, {row.peak_bytes / 2**30:6.1f} GiB, {row.sent_bytes / 2**20:7.1f} MiB sent, "
        f"{row.tiles} tiles",
        flush=True,
    )


# -- predicted against measured ----------------------------------------------------------------------------------------


def check(shape: tuple[int, ...], name: str = "resnet18_train", size: int = 512) -> None:
    torch.set_num_threads(1)
    net, _ = prepared(name, size, "cpu")
    graph = lower_graph(export_module(net, ((1, 3, size, size),)).graph)
    found = paper(graph, shape, this_machine("cpu"))
    assert found is not None
    on_ranks(shape, compare, name, size, found.over(LINKS["loopback"]))


def compare(mesh: DeviceMesh, name: str, size: int, predicted: Forecast) -> None:
    net, image = prepared(name, size, "cpu")
    tiled: Any = tilegrad.tile(net, mesh=mesh)
    mine: Any = part(image, mesh)
    spent, used = [], []
    for _ in range(5):
        tiled.traffic.clear()
        took_s, cpu_s = timed(lambda: step(tiled, mine))
        spent.append(took_s)
        used.append(cpu_s)
    if dist.get_rank() == 0:
        print(
            f"{name} {size} on {'x'.join(map(str, mesh.shape))}: predicted {predicted.step_s * 1e3:.0f} ms "
            f"({predicted.compute_s * 1e3:.0f} of them compute), measured {statistics.median(spent[1:]) * 1e3:.0f} ms "
            f"({statistics.median(used[1:]) * 1e3:.0f} of CPU time); {predicted.sent_bytes} bytes to send at most, "
            f"{tiled.traffic.sent_bytes} sent by the first rank",
            flush=True,
        )


if __name__ == "__main__":
    main()
