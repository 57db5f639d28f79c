"""What a node costs: arithmetic at the full rate, and bytes read and written. Forward, backward, whole or in part.

Only dense arithmetic (convolutions, matrix products) counts as arithmetic; everything else waits for memory. Backward
of a dense node is one such product per operand that gets a gradient. A node with a measured time takes that time. A
GPU's figures are ceilings (datasheets, the best of all probes), of which operators reach a share (`Op.reach` and
`Op.rate`).

On a CPU the C library gets large blocks from the system each time and gives them back, so that every page of them is
filled with zeros first. That is most of the time of an activation on a large image.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..bounds import call_of
from ..ir import Graph, Node, Phase, Role
from ..ops import Call, find
from .machine import Machine

FRESH = 32 << 20  # bytes: blocks from here on are new each time, whatever glibc has learned


@dataclass(frozen=True, slots=True)
class Cost:
    flops: float
    bytes: float
    dtype: str = "float32"
    reach: float = 1.0  # of a GPU's memory
    rate: float = 1.0  # of its arithmetic
    fresh: float = 0.0  # bytes of new memory
    serial: float = 0.0  # elements that a CPU looks at one after another

    def seconds(self, machine: Machine) -> float:
        if machine.kernel_s is None:
            return machine.seconds(self.flops, self.bytes, self.dtype) + machine.extra_s(self.fresh, self.serial)
        return machine.seconds(self.flops / self.rate, self.bytes / self.reach, self.dtype)


def node_cost(graph: Graph, node: Node) -> Cost:
    """Flops, and bytes of everything it reads and writes. A gradient that it adds to in place counts once."""
    of: Node | None = None
    if node.phase is Phase.FORWARD:
        flops, dtype = _dense_flops(graph, node), _dtype(graph, node)
    else:
        of = graph.node.get(str(node.attrs.get("of", "")))
        products = sum(graph.type(out).floating and len(graph.shape(out)) > 1 for out in node.outputs)
        flops = _dense_flops(graph, of) * products if of is not None else 0.0
        dtype = _dtype(graph, of or node)
    reads = {i.value for i in node.inputs if i.role is not Role.SUM}
    moved = sum(graph.type(name).bytes for name in (*reads, *node.outputs))
    op = find(node if node.phase is Phase.FORWARD or of is None else of)
    made = (graph.type(out).bytes for out in node.outputs if graph.value[out].alias is None and not op.view)
    serial = serial_elements(call_of(graph, node)) if node.phase is Phase.FORWARD else 0.0
    rate = op.rate(call_of(graph, of or node)) if flops else 1.0
    return Cost(flops, moved, dtype, op.reach, rate, sum(map(fresh_bytes, made)), serial)


def fresh_bytes(block: float) -> float:
    """Of a block of memory, what is new."""
    return block if block >= FRESH else 0.0


def serial_elements(call: Call) -> float:
    """What a CPU looks at one by one to make all of an output."""
    op = find(call.node)
    return op.flops(call) * call.out.size if op.serial else 0.0


def node_seconds(graph: Graph, machine: Machine) -> dict[str, float]:
    """Seconds of every node: measured where known, else predicted."""
    return {n.name: n.time_s if n.time_s is not None else node_cost(graph, n).seconds(machine) for n in graph.nodes}


def _dense_flops(graph: Graph, node: Node) -> float:
    op = find(node)
    return op.flops(call_of(graph, node)) * graph.type(node.outputs[0]).size if op.dense else 0.0


def _dtype(graph: Graph, node: Node) -> str:
    return graph.type((*node.outputs, *node.reads)[0]).dtype if node.outputs or node.inputs else "float32"
