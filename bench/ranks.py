"""Training steps on ranks of this machine against one process, both with one thread each, in turns.

    python bench/ranks.py                     VGG-16 (quarter width) and ResNet-18, two ranks, four sizes
    python bench/ranks.py --nets resnet18_train --sizes 1024 --mesh 2x2 --json results.json
    python bench/ranks.py --alone             the CPU time of one of two ranks, with nobody to wait for
    python bench/ranks.py --nets resnet18_train --sizes 256 --profile 30    where a rank spends its time

`x one`: the time of plain PyTorch in one process over that of the ranks. `cpu`: the CPU time of the one process over
the most of a rank: what the ratio would be if nothing else ran and nobody waited. Calls are those of a step in one
rank: of functions in Python, and of functions in C (every operator of torch is one).
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.spawn import spawn

import tilegrad
from measure import step, write
from nets import prepared
from tilegrad.bounds import lower_graph
from tilegrad.bounds.mesh import Mesh
from tilegrad.distributed import close, part
from tilegrad.execution import Executor, RankPass
from tilegrad.execution.messages import Messages
from tilegrad.importers import export_module
from tilegrad.ir import Kind
from tilegrad.modules.runner import run_pass
from tilegrad.planners import MeshProblem
from tilegrad.planners.mesh import plan_rank

WIDTH = {"vgg16": 0.25}
PORT = 29571


@dataclass(frozen=True)
class Row:
    """What one size gave. Counts are of one step in the first rank."""

    net: str
    size: int
    mesh: str
    one_s: float
    ranks_s: float
    speedup: float
    cpu_speedup: float
    waited_s: float  # of a step, for others
    calls: int
    c_calls: int
    messages: int
    gathers: int
    sums: int
    sent_bytes: int
    summed_bytes: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="vgg16,resnet18_train")
    parser.add_argument("--sizes", default="256,384,512,1024")
    parser.add_argument("--mesh", default="2", help="ranks along h, or along h and w: 2x2")
    parser.add_argument("--exchange", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", type=int, default=0, help="print so many functions of one rank, by their own time")
    parser.add_argument("--alone", action="store_true", help="one rank of two in this process: others answer at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.alone:
        for name in args.nets.split(","):
            for size in map(int, args.sizes.split(",")):
                measure_alone(name, size, args.rounds)
        return
    args.shape = tuple(int(n) for n in args.mesh.split("x"))
    on_ranks(args.shape, measure_all, args)


def on_ranks(shape: tuple[int, ...], task: Callable[..., None], *args: Any) -> None:
    """`task(mesh, *args)` on ranks of this machine, one thread each, along h, or along h and w."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    spawn(live, (shape, task, args), nprocs=prod(shape))  # type: ignore[no-untyped-call]


def live(rank: int, shape: tuple[int, ...], task: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=prod(shape))
    task(init_device_mesh("cpu", shape, mesh_dim_names=("h", "w")[: len(shape)]), *args)
    close()
    dist.destroy_process_group()


def measure_all(mesh: DeviceMesh, args: argparse.Namespace) -> None:
    rows = []
    for name in args.nets.split(","):
        for size in map(int, args.sizes.split(",")):
            rows.append(measure(name, size, mesh, args))
            if dist.get_rank() == 0:
                show(rows[-1])
    if dist.get_rank() == 0:
        write(args.json, rows, "cpu")


def measure(name: str, size: int, mesh: DeviceMesh, args: argparse.Namespace) -> Row:
    net, image = prepared(name, size, "cpu", WIDTH.get(name, 1.0))
    apart = copy.deepcopy(net)  # one rank trains it alone: norms remember what they have seen
    tiled = tilegrad.tile(net, mesh=mesh, exchange=args.exchange)
    mine = part(image, mesh)
    first = dist.get_rank() == 0

    def alone() -> None:
        if first:
            step(apart, image)

    def together() -> None:
        step(tiled, mine)  # type: ignore[arg-type]

    together()
    spent: dict[Any, list[tuple[float, float]]] = {alone: [], together: []}
    for at in range(args.rounds + 1):
        for run, found in spent.items():
            if at == args.rounds:
                tiled.traffic.clear()
            took = timed(run)
            if at:  # the first is for warming up
                found.append(took)
    counts = asdict(tiled.traffic)
    (one_s, one_cpu), (ranks_s, ranks_cpu) = (
        tuple(statistics.median(each) for each in zip(*found, strict=True)) for found in spent.values()
    )
    ranks_cpu = most(ranks_cpu)
    if args.profile:
        print_profile(together, args.profile if first else 0)
    together()  # the eighth call, in which ranks compare their weights; the next is one as most are
    calls, c_calls = count_calls(together)
    shape = "x".join(map(str, args.shape))
    figures = {key: counts.get(key, 0) for key in ("waited_s", "messages", "gathers", "sums")}
    figures |= {key: counts[key] for key in ("sent_bytes", "summed_bytes")}
    return Row(
        name,
        size,
        shape,
        one_s,
        ranks_s,
        one_s / ranks_s,
        one_cpu / max(ranks_cpu, 1e-9),
        calls=calls,
        c_calls=c_calls,
        **figures,
    )


class Nobody:
    """Ranks that answer at once."""

    def post(self, messages: Messages) -> Nobody:
        for tensor in messages.receives.values():
            tensor.zero_()  # whatever lies there may be no number, and those are slow
        return self

    def gather(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Tensor:
        return torch.stack([tensor, tensor])

    def room(self, count: int, dtype: torch.dtype, axes: frozenset[str]) -> None:
        """Nowhere."""

    def sum(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Nobody:
        return self

    def spread(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Nobody:
        return self

    def broadcast(self, what: str, tensor: Tensor, axes: frozenset[str]) -> Nobody:
        return self

    def wait(self) -> None:
        """Nothing is on its way."""


def measure_alone(name: str, size: int, rounds: int) -> None:
    """What the first of two ranks computes, against one process: the least CPU time of each, in turns."""
    torch.set_num_threads(1)
    net, image = prepared(name, size, "cpu", WIDTH.get(name, 1.0))
    captured = export_module(net, (tuple(image.shape),))
    graph, half = lower_graph(captured.graph), image[:, :, : size // 2].clone()
    graded = tuple(v.name for v in graph.of_kind(Kind.PARAMETER))
    engine = Executor(plan_rank(MeshProblem(graph, Mesh(("h",), (2,), (0, 1)), 0, graded), None).schedule)

    def as_rank() -> None:
        run = RankPass(engine, captured.bind([half], None), torch.device("cpu"), peers=Nobody())
        torch.autograd.backward(out := run_pass(run)[0], torch.ones_like(out))

    def as_one() -> None:
        step(net, image)

    spent: dict[Callable[[], None], list[float]] = {as_one: [], as_rank: []}
    for _ in range(rounds):
        for run, found in spent.items():
            net.zero_grad()
            begin = time.process_time()
            run()
            found.append(time.process_time() - begin)
    one, rank = (min(found) for found in spent.values())
    print(
        f"{name:16} {size:5}: one process {one * 1e3:.0f} ms, one of two ranks {rank * 1e3:.0f} ms: {one / rank:.2f} x"
    )


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds until all ranks are done, and this one's CPU time."""
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    run()
    used = time.process_time() - cpu
    dist.barrier()
    return time.perf_counter() - begin, used


def most(number: float) -> float:
    found = torch.tensor([number])
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def count_calls(run: Callable[[], None]) -> tuple[int, int]:
    """Of functions in Python, and in C."""
    found = Counter[str]()
    sys.setprofile(lambda frame, event, arg: found.update((event,)))
    run()
    sys.setprofile(None)
    return found["call"], found["c_call"] - 1


def print_profile(run: Callable[[], None], functions: int) -> None:
    profile = cProfile.Profile()
    profile.runcall(run)
    if functions:
        pstats.Stats(profile).sort_stats("tottime").print_stats(functions)


def show(row: Row) -> None:
    print(
        f"{row.net:16} {row.size:5} on {row.mesh}: one {row.one_s * 1e3:7.0f} ms, ranks {row.ranks_s * 1e3:7.0f} ms: "
        f"{row.speedup:4.2f} x one ({row.cpu_speedup:4.2f} cpu), waited {row.waited_s * 1e3:.0f} ms; {row.calls} "
        f"calls and {row.c_calls} of C, {row.messages} messages, {row.gathers} gathers, {row.sums} sums, "
        f"{row.sent_bytes / 1024:.0f} KiB sent, {row.summed_bytes / 1024:.0f} KiB summed",
        flush=True,
    )


if __name__ == "__main__":
    main()
