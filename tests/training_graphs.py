"""Random small training graphs: skips, several outputs per node, views, gradients summed in place, outputs kept.

`pick(low, high)` gives every choice, so that the same code serves hypothesis and a seeded generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from step_player import Player
from tilegrad.ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph

Pick = Callable[[int, int], int]


def some(count: int, *, derandomize: bool = True) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, derandomize=derandomize, suppress_health_check=quiet, database=None)


@st.composite
def training_graphs(draw: st.DrawFn, most: int = 8, unit: int = 1, values: int = 99) -> Graph:
    """Up to `most` forward nodes that make up to `values` values of a few times `unit` bytes, or a few bytes."""
    return _Grow(lambda low, high: draw(st.integers(low, high)), unit, values).graph(most)


def seeded_graph(seed: int, most: int = 8, unit: int = 1, values: int = 99) -> Graph:
    return _Grow(Random(seed).randint, unit, values).graph(most)


def node_times(graph: Graph) -> dict[str, float]:
    return {node.name: float(node.time_s or 0) for node in graph.nodes}


def chain_graph(sizes: Sequence[int], *, handed: bool = False, time_s: float | None = 1.0) -> Graph:
    """Nodes f0, f1, ... in a row that make v0, v1, ... of these bytes; backward of each reads what it made."""

    def kind(size: int) -> TensorType:
        return TensorType((size,), "uint8")

    values, nodes = [Value("x", kind(1), Kind.INPUT)], list[Node]()
    for i, size in enumerate(sizes):
        values.append(Value(f"v{i}", kind(size)))
        nodes.append(Node(f"f{i}", "any", (Input("in", f"v{i - 1}" if i else "x"),), (f"v{i}",), time_s=time_s))
    for i in reversed(range(len(sizes))):
        inputs = [Input("kept", f"v{i}", Role.RETAINED_OUTPUT)]
        inputs += [Input("grad", f"g{i}", Role.GRADIENT)] if i + 1 < len(sizes) else []
        values += [Value(f"g{i - 1}", kind(sizes[i - 1]), Kind.GRADIENT)] if i else []
        made = (f"g{i - 1}",) if i else ()
        nodes.append(Node(f"b{i}", "any", tuple(inputs), made, {"of": f"f{i}"}, phase=Phase.BACKWARD, time_s=time_s))
    graph = Graph(tuple(values), tuple(nodes), (f"v{len(sizes) - 1}",) if handed else (), (), "chain")
    check_graph(graph)
    return graph


def largest_working_set(graph: Graph) -> int:
    """What the hungriest node reads and makes, and all that is there throughout: nothing can need less."""
    player = Player(graph)
    touched = [{player.root[name] for name in (*n.reads, *n.outputs)} | player.resident for n in graph.nodes]
    return max(sum(player.size[name] for name in names) for names in touched)


@dataclass
class _Gradient:
    name: str
    shared: bool  # does another gradient live in the same memory?


@dataclass
class _Grow:
    pick: Pick
    unit: int
    most_values: int
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    grads: dict[str, _Gradient] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def graph(self, most: int) -> Graph:
        self._value("x", self._size(), Kind.INPUT)
        for i in range(self.pick(1, most) if self._chance(4) else self.pick(max(1, most - 2), most)):
            self._forward(i)
        forward = list(self.nodes)
        last = forward[-1].outputs[0]
        if self._chance(2):
            self.outputs.append(last)
        if self._chance(2):
            self._gradient(last, last + ".grad.1")
            self.outputs += [last + ".grad.1"] if self._chance(2) else []
            self._node("seed", [], [last + ".grad.1"], Phase.BACKWARD)
        for node in reversed(forward):
            self._backward(node, node is forward[-1])
        if self._chance(4):
            self.outputs.append(f"v{self.pick(0, len(forward) - 1)}")
        graph = Graph(tuple(self.values), tuple(self.nodes), tuple(dict.fromkeys(self.outputs)), (), "random")
        check_graph(graph)
        return graph

    def _chance(self, one_in: int) -> bool:
        return self.pick(1, one_in) == one_in

    def _size(self) -> int:
        return self.pick(1, 9) * (1 if self._chance(6) else self.unit)

    def _value(self, name: str, size: int, kind: Kind = Kind.ACTIVATION, **more: str | None) -> None:
        self.bytes[name] = size
        self.values.append(Value(name, TensorType((size,), "uint8"), kind, more.get("target"), more.get("alias")))

    def _node(self, name: str, inputs: list[Input], outputs: list[str], phase: Phase, **attrs: str) -> None:
        time_s = float(self.pick(1, 9))  # whole seconds: sums are exact
        self.nodes.append(Node(name, "any", tuple(inputs), tuple(outputs), attrs, phase=phase, time_s=time_s))

    # -- forward -------------------------------------------------------------------------------------------------------

    def _forward(self, i: int) -> None:
        readable = [v.name for v in self.values if v.kind is not Kind.PARAMETER]
        reads = dict.fromkeys(
            [readable[-1], *(readable[self.pick(0, len(readable) - 1)] for _ in range(self.pick(0, 2)))]
        )
        inputs = [Input(f"in.{k}", name) for k, name in enumerate(reads)]
        of = inputs[-1].value
        outputs = [f"v{i}"]
        if (of != "x" and self._chance(5)) or self.made == self.most_values:  # a view
            self._value(f"v{i}", self.bytes[of], alias=of)
        else:
            self._value(f"v{i}", self._size())
            self.made += 1
            if self._chance(4) and self.made < self.most_values:
                outputs.append(f"v{i}.saved")
                self._value(outputs[-1], self._size())
                self.made += 1
        if self._chance(2):
            self._value(f"w{i}", self._size(), Kind.PARAMETER)
            inputs.append(Input("weight", f"w{i}", Role.PARAMETER))
        self._node(f"f{i}", inputs, outputs, Phase.FORWARD)

    # -- backward ------------------------------------------------------------------------------------------------------

    def _gradient(self, of: str, name: str, alias: str | None = None) -> None:
        self._value(name, self.bytes[of], Kind.GRADIENT, alias=alias)
        self.grads[of] = _Gradient(name, alias is not None)

    def _backward(self, node: Node, begins: bool) -> None:
        incoming = [self.grads[out].name for out in node.outputs if out in self.grads]
        if not incoming and not begins:
            return
        inputs = [Input(f"grad.{k}", name, Role.GRADIENT) for k, name in enumerate(incoming)]
        for slot in node.inputs:
            if slot.role is Role.PARAMETER or self._chance(3):
                role = slot.role if slot.role is Role.PARAMETER else Role.RETAINED_INPUT
                inputs.append(Input(f"kept.{slot.arg}", slot.value, role))
        for name in node.outputs:
            if name.endswith(".saved") or self._chance(3):
                inputs.append(Input(f"kept.{name}", name, Role.RETAINED_OUTPUT))
        outputs = []
        for slot in node.inputs:
            if slot.role is Role.PARAMETER:
                outputs.append(f"{slot.value}.grad")
                self._value(outputs[-1], self.bytes[slot.value], Kind.GRADIENT, target=slot.value)
            elif slot.value != "x" or self._chance(3):
                outputs.append(self._contribute(slot.value, incoming, inputs))
        if self._chance(5):
            outputs.append(f"{node.name}.work")
            self._value(outputs[-1], self._size(), Kind.GRADIENT)
        self._node(f"{node.name}.backward", inputs, outputs, Phase.BACKWARD, of=node.name)

    def _contribute(self, of: str, incoming: list[str], inputs: list[Input]) -> str:
        """One more gradient of a value: new, in the memory of the incoming one, or added in place."""
        before = self.grads.get(of)
        count = sum(v.name.startswith(f"{of}.grad.") for v in self.values)
        name, alias = f"{of}.grad.{count + 1}", None
        if before is not None:
            inputs.append(Input(f"sum.{of}", before.name, Role.SUM))
            alias = None if before.shared else before.name
            self._gradient(of, name, alias)
            self.grads[of].shared = False
        else:
            if len(incoming) == 1 and self.bytes[incoming[0]] >= self.bytes[of] and self._chance(3):
                alias = incoming[0]
                for other in self.grads.values():  # nothing is added in place to what two may read
                    other.shared |= other.name == alias
            self._gradient(of, name, alias)
        if of == "x":
            self.outputs = [o for o in self.outputs if not o.startswith("x.grad")] + [name]
        return name
