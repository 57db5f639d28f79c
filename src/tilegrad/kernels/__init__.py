"""Kernels, found in this folder, and where they fit into an island."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from ..ir import Graph
from ..ops import Call
from ..schedule import Compute, Fold, Free, Island, IslandStep, Join, Load, Store
from .base import Kernel as Kernel


@dataclass(frozen=True)
class Fused:
    """Steps of an island that one kernel runs."""

    kernel: Kernel
    steps: tuple[Compute, ...]


@cache
def kernels() -> tuple[Kernel, ...]:
    """The longest chains first; of equal ones those for some devices alone."""
    for file in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{file.name}")
    found = (kind() for kind in Kernel.__subclasses__())
    return tuple(sorted(found, key=lambda kernel: (-len(kernel.chain), len(kernel.devices))))


def kernel_for(call: Call, device: str, offered: Sequence[Kernel]) -> Kernel | None:
    """The one that runs a node by itself, if there is any."""
    for kernel in offered:
        known = len(kernel.chain) == 1 and call.node.op in kernel.chain[0] and call.out.dtype in kernel.dtypes
        if known and device in kernel.devices and kernel.accepts((call,)):
            return kernel
    return None


def with_kernels(
    island: Island, graph: Graph, calls: Mapping[str, Call], device: str, offered: Sequence[Kernel] | None = None
) -> tuple[IslandStep | Fused, ...]:
    """An island's steps, where a kernel can run several of them as one. `device`: the kind of device it runs on."""
    usable = [k for k in (kernels() if offered is None else offered) if device in k.devices]
    steps: list[IslandStep | Fused] = list(island.steps)
    alone = _read_once(island, graph)
    for kernel in usable:
        at = 0
        while at < len(steps):
            found = _match(kernel, steps, at, graph, calls, alone)
            if found is not None:
                steps[at : found[1]] = [found[0], *found[2]]
            at += 1
    return tuple(steps)


def _read_once(island: Island, graph: Graph) -> frozenset[str]:
    """Values of the island that one node reads, once, and nobody stores, joins or folds."""
    reads: dict[str, int] = {}
    for step in island.steps:
        match step:
            case Compute(node=name):
                for value in graph.node[name].reads:
                    reads[value] = reads.get(value, 0) + 1
            case Store(value=value) | Join(value=value) | Load(value=value):
                reads[value] = 2
            case Fold(node=name):
                reads[graph.node[name].reads[0]] = 2
    return frozenset(value for value, count in reads.items() if count == 1 and value not in island.whole)


def _match(
    kernel: Kernel,
    steps: Sequence[IslandStep | Fused],
    at: int,
    graph: Graph,
    calls: Mapping[str, Call],
    alone: frozenset[str],
) -> tuple[Fused, int, list[Free]] | None:
    """The chain that begins here, where it ends, and what is freed in between."""
    chain: list[Compute] = []
    frees: list[Free] = []
    for end in range(at, len(steps)):
        step = steps[end]
        if isinstance(step, Free) and chain:
            frees.append(step)
            continue
        if not isinstance(step, Compute) or not _continues(kernel, chain, step, graph, calls, alone):
            return None
        chain.append(step)
        if len(chain) == len(kernel.chain):
            found = tuple(calls[one.node] for one in chain)
            return (Fused(kernel, tuple(chain)), end + 1, frees) if kernel.accepts(found) else None
    return None


def _continues(
    kernel: Kernel,
    chain: Sequence[Compute],
    step: Compute,
    graph: Graph,
    calls: Mapping[str, Call],
    alone: frozenset[str],
) -> bool:
    """Rule K2."""
    node = graph.node[step.node]
    if node.op not in kernel.chain[len(chain)] or calls[step.node].out.dtype not in kernel.dtypes:
        return False
    if step.answers is not None:
        return False
    if not chain:
        return True
    before = graph.node[chain[-1].node].outputs[0]
    return node.reads[0] == before and before in alone and step.out == chain[-1].out == step.reads[0]
