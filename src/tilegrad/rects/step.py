"""One training step as one worker of many sees it: a `Graph` whose values say which box of them the worker has.

- An *array* is a value with memory of its own. Its shape is the same on every worker; `Value.held` has the boxes of it
  that this worker reads and writes.
- An *operator* is a node. Its op is one of `KINDS`, which names its ports. Among its attributes are the rects it works
  on, as [begin, end] and under the names they are printed with: `dist_input`, `dist_filters`, `dist_result`, or, for
  the classifier, `read_rect`, `write_rect`. Where it was read from a drawing, `evidence` says of each port how it is
  known: its label was *seen* beside the operator, *counted* in a crowded row, or *inferred*: the kind must have it.
- Ports called `*.delta` add to what is there, and parameters are updated in place. Either makes a new value in the
  memory of the array, with the same boxes: `alias` leads to the array.

How boxes tell who has what:

- Params are written nowhere: they are updated in place, and a worker has what it reads.
- An activation is written by its owner, and what is read beyond that is the halo that comes from others.
- What a worker reads of a gradient is what its owner has; what it writes beyond that goes to the neighbours, and is
  added there.
- The classifier sums over space, of which a worker has a part, and yet it writes all logits: its read_rect is a part of
  its input, and so what it writes is a part of the sum. The workers' parts are added. The gradient of a gain is summed
  likewise.
- All else that every worker writes whole (labels, probabilities, loss, metric) every worker makes by itself.

The rules are in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

from ..ir import Build, Graph, Held, Input, Kind, Node, Phase, Role, TensorType, Value
from ..region import Box
from .kinds import KINDS

ROLES = ("input", "param", "activation", "grad", "loss", "metric")  # what an array is for
_MADE = {
    ("source", "raw_data"): "input", ("source", "labels"): "input", ("softmax_cross_entropy", "output"): "loss",
    ("evaluate", "output"): "metric",
}  # fmt: skip

Edge = tuple[str, str, str]  # from, to, and the port as it is printed: "->input" or "output->"


def make_array(name: str, dim: tuple[int, ...], kind: Kind, read: Box, write: Box | None) -> Value:
    return Value(name, TensorType(dim), kind, name if kind is Kind.PARAMETER else None, held=Held(read, write))


def arrays(graph: Graph) -> tuple[Value, ...]:
    return tuple(v for v in graph.values if v.alias is None)


def held_of(value: Value) -> Held:
    """A value that is not split is there as a whole."""
    return value.held or Held(*[Box.full(value.type.shape)] * 2)


def inputs_of(graph: Graph, node: Node) -> dict[str, Value]:
    """By port: the arrays that an operator reads, without those it adds to."""
    return {i.arg: _array(graph, i.value) for i in node.inputs if i.role is not Role.SUM}


def outputs_of(graph: Graph, node: Node) -> dict[str, Value]:
    """By port: the arrays that an operator writes. An update has no such port."""
    return {port: _array(graph, name) for port, name in zip(KINDS[node.op].outputs, node.outputs, strict=False)}


def _array(graph: Graph, name: str) -> Value:
    value = graph.value[name]
    return value if value.alias is None else graph.value[value.alias]


def edges(graph: Graph, *nodes: Node) -> Iterator[Edge]:
    """The arrows between operators and arrays: of these nodes, or of all."""
    for node in nodes or graph.nodes:
        yield from ((array.name, node.name, f"->{port}") for port, array in inputs_of(graph, node).items())
        yield from ((node.name, array.name, f"{port}->") for port, array in outputs_of(graph, node).items())


def with_evidence(graph: Graph, evidence: dict[Edge, str]) -> Graph:
    """The same graph, whose operators say how their ports are known."""
    nodes = []
    for node in graph.nodes:
        found = {edge[2]: evidence[edge] for edge in edges(graph, node) if edge in evidence}
        attrs = MappingProxyType({**node.attrs, "evidence": found})
        nodes.append(replace(node, attrs=attrs) if found else node)
    return replace(graph, nodes=tuple(nodes))


def role_of(graph: Graph, array: Value) -> str:
    """One of `ROLES`."""
    if array.kind is Kind.ACTIVATION:
        made = graph.producer[array.name]
        return _MADE.get((made.op, KINDS[made.op].outputs[made.outputs.index(array.name)]), "activation")
    return "grad" if array.kind is Kind.GRADIENT else "param"


def owned(graph: Graph, array: Value) -> Box:
    """What this worker has of an array, without what it has for others or from them."""
    held = held_of(array)
    added = any(i.role is Role.SUM and i.value == array.name for n in graph.consumers[array.name] for i in n.inputs)
    return held.read if held.write is None or added else held.write


def is_rect(key: str) -> bool:
    """Of the attributes of an operator."""
    return key.startswith("dist_") or key in ("read_rect", "write_rect")


def dists_of(node: Node) -> dict[str, Box]:
    """The rects that an operator works on."""
    return {key: Box(zip(*raw, strict=True)) for key, raw in node.attrs.items() if is_rect(key)}


def show(dim: Iterable[int]) -> str:
    return "[" + " ".join(map(str, dim)) + "]"


def listed(box: Box | None) -> list[list[int]] | None:
    """[begin, end]"""
    return None if box is None else [[side.lo for side in box], [side.hi for side in box]]


def result_dim(graph: Graph, node: Node) -> tuple[int, ...]:
    """Of what an operator makes, or of what its gradient is made from; what makes no array makes one number."""
    special = {"source": "raw_data", "update": "params"}
    port = special.get(node.op, "output.delta" if node.op.endswith("_grad") else "output")
    made = {**outputs_of(graph, node), **inputs_of(graph, node)}.get(port)
    return made.type.shape if made is not None else (1,)


def part_of(graph: Graph, node: Node, key: str) -> tuple[Value, bool]:
    """The array that one of an operator's rects is a part of, and whether it may be any part: of what it reads, if that
    is no parameter. Else it is the box that is written."""
    port, reads = KINDS[node.op].dists[key], inputs_of(graph, node)
    part = reads[port] if port in reads else outputs_of(graph, node)[port]
    return part, port in reads and part.kind is not Kind.PARAMETER


def single_assignment(arrays: Sequence[Value], operators: Sequence[Node], name: str) -> Graph:
    """The graph of operators that read and write arrays, in whatever order: their inputs and outputs name arrays. What
    cannot be a graph breaks a rule of `check_graph`."""
    build = Build(name)
    by_name = {array.name: array for array in arrays}
    for one in arrays:
        of = by_name.get(one.name.removesuffix(".grad"))
        target = of.target if of is not None and one.kind is Kind.GRADIENT else one.target
        build.values[one.name] = replace(one, target=target)
    latest = {name: name for name in by_name}

    def again(array: str, kind: Kind) -> str:
        """A new value in the memory of an array."""
        if array in latest:
            new, old = build.fresh(array), build.values[array]
            build.values[new] = replace(old, name=new, kind=kind, alias=array)
            latest[array] = new
        return latest.get(array, array)

    for node in _in_order(operators):
        inputs = [_input(by_name, node, i, latest.get(i.value, i.value)) for i in node.inputs]
        outputs = list(node.outputs)
        for at, (port, array) in enumerate(zip(KINDS[node.op].outputs, node.outputs, strict=False)):
            if port.endswith(".delta"):
                inputs.append(Input(port, latest.get(array, array), Role.SUM))
                outputs[at] = again(array, Kind.GRADIENT)
        if node.op == "update":
            updates = [(i.value, again(i.value, Kind.ACTIVATION)) for i in node.inputs if i.arg == "params"]
            build.updates += updates
            outputs += [new for _, new in updates]
        build.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs), phase=_phase(node.op)))
    read = {i.value for node in build.nodes for i in node.inputs}
    return build.graph([a.name for a in arrays if a.kind is Kind.ACTIVATION and a.name not in read])  # the loss


def _input(arrays: dict[str, Value], node: Node, given: Input, value: str) -> Input:
    kind = arrays[given.value].kind if given.value in arrays else Kind.ACTIVATION
    role = {Kind.PARAMETER: Role.PARAMETER, Kind.GRADIENT: Role.GRADIENT}.get(kind, Role.DATA)
    if role is Role.DATA and _phase(node.op) is Phase.BACKWARD:
        made = KINDS[node.op.removesuffix("_grad")].outputs
        role = Role.RETAINED_OUTPUT if given.arg in made else Role.RETAINED_INPUT
    return Input(given.arg, value, role)


def _phase(op: str) -> Phase:
    return Phase.UPDATE if op == "update" else Phase.BACKWARD if op.endswith(("_grad", "set_zero")) else Phase.FORWARD


def _in_order(operators: Sequence[Node]) -> Sequence[Node]:
    """An order in which operators can run: what reads an array waits for all that write it, what adds to one waits
    until it is zero. Where they wait for each other, the given order."""
    sorter = TopologicalSorter[Any]()  # of places, and of arrays between them
    for at, op in enumerate(operators):
        zero = op.op == "set_zero"
        sorter.add(at, *op.reads, *(() if zero else (("zero", out) for out in op.outputs)))
        for out in op.outputs:
            sorter.add(out, at)
            sorter.add(("zero", out), *((at,) if zero else ()))
    try:
        found = [operators[key] for key in sorter.static_order() if isinstance(key, int)]
    except CycleError:
        return operators
    return sorted(found, key=lambda op: list(Phase).index(_phase(op.op)))
