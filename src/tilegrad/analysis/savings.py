"""What the same work could do with less memory: writing in place, and running in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir import Graph
from ..profile import Block, BlockKind, Profile
from .live import find_live, ticks_are_operators

MOST = 5000  # nodes: the search for an order looks at all that are ready, every time

# Operators that read an element before they write it and never again, by ATen's names.
IN_PLACE = frozenset(
    (
        "add", "sub", "mul", "div", "exp", "log", "relu", "sigmoid", "tanh", "neg", "abs", "maximum", "minimum",
        "add_relu", "add_sigmoid", "add_tanh", "gelu", "silu", "leaky_relu", "elu", "hardtanh", "relu6", "clamp",
        "sqrt", "rsqrt", "square", "pow", "softplus", "mish", "hardswish", "hardsigmoid",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Savings:
    """Peaks of what the allocator owns."""

    peak_bytes: int
    in_place_bytes: int  # if every operator that can wrote into an input that is not needed any more
    in_place_nodes: int  # how many could
    order_bytes: int | None  # in the best other order found, or as it is where none is better

    def to_json(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "in_place_peak_bytes": self.in_place_bytes,
            "in_place_operators": self.in_place_nodes,
            "order_peak_bytes": self.order_bytes,
        }


def find_savings(profile: Profile, device: str) -> Savings | None:
    """None where it is not known which operator reads what, or ticks are not operators."""
    graph = profile.graph
    if graph is None or not ticks_are_operators(profile):
        return None
    blocks = [b for b in profile.blocks if b.device == device and b.owned]
    if not blocks:
        return None
    peak = find_live(blocks, profile.ticks).peak_bytes
    shrunk, count = _in_place(profile, graph, blocks)
    order = _best_order(graph, blocks, peak) if len(graph.nodes) <= MOST else None
    return Savings(peak, find_live(shrunk, profile.ticks).peak_bytes, count, order)


def _in_place(profile: Profile, graph: Graph, blocks: Sequence[Block]) -> tuple[list[Block], int]:
    """Inputs that end where an output of their size begins give their memory to it."""
    by_name = {b.name: b for b in blocks}
    changed: dict[str, Block] = {}
    for op in profile.operators:
        node = graph.node.get(op.id)
        if node is None or node.op not in IN_PLACE or len(node.outputs) != 1:
            continue
        out = by_name.get(node.outputs[0])
        for name in node.reads:
            given = by_name.get(name)
            if given is None or out is None or name in changed or graph.value[name].alias is not None:
                continue
            if given.bytes == out.bytes and given.start < out.start and given.stop == out.start + 1:
                changed[name] = replace(given, stop=out.start)
                break
    return [changed.get(b.name, b) for b in blocks], len(changed)


def _best_order(graph: Graph, blocks: Sequence[Block], recorded: int) -> int:
    """Always the ready node that leaves least behind. The recorded order stays where this is no better."""
    owner = _owners(graph)
    size = {b.name: b.bytes for b in blocks if b.kind is not BlockKind.WORKSPACE}
    scratch: dict[str, int] = {}
    by_tick: dict[int, int] = {}
    for block in blocks:
        if block.kind is BlockKind.WORKSPACE:
            by_tick[block.start] = by_tick.get(block.start, 0) + block.bytes
    starts = {b.name: b.start for b in blocks}
    for node in graph.nodes:
        scratch[node.name] = by_tick.get(starts.get(node.outputs[0], -1), 0)
    readers: dict[str, int] = {}
    for node in graph.nodes:
        for name in {owner[v] for v in node.reads}:
            readers[name] = readers.get(name, 0) + 1
    for name in graph.outputs:
        readers[owner[name]] = readers.get(owner[name], 0) + 1  # never freed
    waiting = {n.name: len({v for v in n.reads if v in graph.producer}) for n in graph.nodes}
    ready = [n.name for n in graph.nodes if not waiting[n.name]]
    now = peak = 0
    while ready:
        best = min(ready, key=lambda name: _growth(graph, name, owner, size, readers))
        ready.remove(best)
        node = graph.node[best]
        made = sum(size.get(out, 0) for out in node.outputs if owner[out] == out)
        peak = max(peak, now + made + scratch[best])
        now += made
        for name in {owner[v] for v in node.reads}:
            readers[name] -= 1
            now -= size.get(name, 0) if not readers[name] else 0
        now -= sum(size.get(out, 0) for out in node.outputs if not readers.get(out))
        for out in node.outputs:
            for reader in graph.consumers[out]:
                waiting[reader.name] -= 1
                if not waiting[reader.name]:
                    ready.append(reader.name)
    return min(peak, recorded)


def _growth(
    graph: Graph, name: str, owner: Mapping[str, str], size: Mapping[str, int], readers: Mapping[str, int]
) -> int:
    node = graph.node[name]
    made = sum(size.get(out, 0) for out in node.outputs if owner[out] == out)
    return made - sum(size.get(v, 0) for v in {owner[v] for v in node.reads} if readers[v] == 1)


def _owners(graph: Graph) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in graph.values:  # an alias is declared after what it lives in
        found[value.name] = found.get(value.alias, value.alias) if value.alias is not None else value.name
    return found
