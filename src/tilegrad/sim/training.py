"""The training graph of a forward graph: its backward nodes, what each must still find, and all bytes in between.

Found by running every node by itself, backward included, on tensors without data: what autograd saves, what it saves
besides inputs and outputs (`<node>.saved`), what a kernel's caller allocates for a moment (`<node>.work`), which
outputs are views and which gradients share memory. So an operator needs no hand-written rule to be planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..bounds import call_of
from ..execution.executor import offered
from ..execution.saved import Enter, References, fills, memory_of, trimmed
from ..ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from ..kernels import kernel_for
from ..ops import Call, Op, find
from ..progress import tick
from .peak import PeakBytes


def forward_part(graph: Graph) -> Graph:
    """The forward pass of a training graph, whose outputs are what none of its nodes reads."""
    nodes = tuple(n for n in graph.nodes if n.phase is Phase.FORWARD)
    read, made = {v for n in nodes for v in n.reads}, {v for n in nodes for v in n.outputs}
    values = tuple(v for v in graph.values if v.name in made or not v.kind.computed)
    return Graph(values, nodes, tuple(v for n in nodes for v in n.outputs if v not in read), (), graph.name)


@dataclass
class Tape:
    """One node's autograd graph, and what it saved: values by name, all else by itself."""

    out: GradientEdge
    saved: References
    arrived: list[tuple[str, Tensor]]

    @property
    def hidden(self) -> list[Tensor]:
        return [item.tensor for item in self.saved.own if item.tensor is not None]

    def backward(self, grad: Tensor, lookup: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Gradients of the inputs that get one."""
        self.saved.lookup = lookup
        torch.autograd.backward([self.out], [grad])  # takes edges too
        found = dict(self.arrived)
        self.arrived.clear()
        return found


def run_taped(
    op: Op, call: Call, tensors: Sequence[Tensor], needs: frozenset[str], anchor: Tensor, *, plain: bool = False
) -> tuple[Tensor, Tape | None]:
    """Run a whole node, as we run it by itself or as torch does (`plain`), and record its backward. No tape where no
    gradient passes."""
    names, entered = call.node.reads, dict[str, Tensor]()
    arrived: list[tuple[str, Tensor]] = []
    with torch.enable_grad():
        for name, tensor in zip(names, tensors, strict=True):
            if name in needs and name not in entered and (tensor.is_floating_point() or tensor.is_complex()):
                entered[name] = Enter.apply(  # type: ignore[no-untyped-call]
                    anchor, tensor, lambda grad, name=name: arrived.append((name, grad))
                )
    saved = References(lambda name: dict(zip(names, tensors, strict=True))[name])
    with torch.enable_grad(), saved.hooks():
        given = [entered.get(n, t) for n, t in zip(names, tensors, strict=True)]
        kernel = None if plain else kernel_for(call, "cpu", offered())
        result = op.run_whole(call, given, 0, anchor.device) if kernel is None else kernel.run([call], [given], None)
    bare = trimmed(result.detach(), tensors)
    if not result.requires_grad:
        return bare, None
    saved.refer({**dict(zip(names, tensors, strict=True)), call.node.outputs[0]: bare})
    return bare, Tape(get_gradient_edge(result), saved, arrived)


SEED = "seed"  # the node that brings the gradients of the outputs


def training_graph(graph: Graph, graded: Collection[str], *, seeded: bool = True, plain: bool = False) -> Graph:
    """Forward and backward nodes. `graded`: outside values that need a gradient; `seeded`: the gradients of the outputs
    are brought by the caller (and have bytes), instead of being the number one; `plain`: by torch's kernels alone. Made
    once, and kept with the graph."""
    known: dict[object, Graph] = graph.__dict__.setdefault("_trained", {})
    key = frozenset(graded), seeded, plain
    if key not in known:
        known[key] = _train(graph, graded, seeded, plain)
    return known[key]


def _train(graph: Graph, graded: Collection[str], seeded: bool, plain: bool) -> Graph:
    trace = _Trace(graph, frozenset(graded), plain)
    for node in graph.nodes:
        tick()
        trace.forward(node)
    trace.seed(seeded)
    for node in reversed(graph.nodes):
        tick()
        trace.backward(node)
    made = trace.finish()
    check_graph(made)
    return made


@dataclass
class _Gradient:
    """The gradient of a value so far."""

    name: str
    tensor: Tensor
    shared: bool  # does somebody else read the same memory?


@dataclass
class _Trace:
    graph: Graph
    graded: frozenset[str]
    plain: bool
    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.anchor = torch.zeros((), device="meta", requires_grad=True)
        self.needs = set(self.graded)
        self.tensors: dict[str, Tensor] = {}
        self.tapes: dict[str, Tape] = {}
        self.owner: dict[int, str] = {}  # memory -> the value that is all of it
        self.alive: list[Tensor] = []  # all that were met: memory is told apart by address, and none may be used twice
        self.grads: dict[str, _Gradient] = {}
        self.counts: dict[str, int] = {}
        self.kept: list[str] = []  # to the end of the step
        for value in self.graph.values:
            if not value.kind.computed:
                self.values.append(value)
                self._meet(value.name, _blank(value.type))

    def _meet(self, name: str, tensor: Tensor) -> str | None:
        """Know a value's tensor; returns the value in whose memory it lies, if that is another."""
        self.tensors[name] = tensor
        return self._owned(name, tensor)

    def _owned(self, name: str, tensor: Tensor) -> str | None:
        self.alive.append(tensor)
        owner = self.owner.setdefault(memory_of(tensor), name)
        return None if owner == name else owner

    # -- forward -------------------------------------------------------------------------------------------------------

    def forward(self, node: Node) -> None:
        call, op = call_of(self.graph, node), find(node)
        passes = node.op != "detach" and not op.blind and self.graph.type(node.outputs[0]).floating
        needs = frozenset(self.needs & set(node.reads)) if passes else frozenset()
        with PeakBytes("meta") as peak, torch.no_grad():
            inputs = [_scratch(self.tensors[i.value], i.value in op.writes(node)) for i in node.inputs]
            result, tape = run_taped(op, call, inputs, needs, self.anchor, plain=self.plain)
        (out,) = node.outputs
        outputs = [out]
        alias = self._meet(out, result)
        spent = 0 if alias is not None else result.untyped_storage().nbytes()
        if alias is not None and self.graph.type(alias).bytes < self.graph.type(out).bytes:
            alias = None  # rule G9: a view that repeats elements (expand) counts as what it would be without that
        self.values.append(replace(self.graph.value[out], alias=alias))
        if tape is not None:
            self.needs.add(out)
            self.tapes[node.name] = tape
            hidden = {memory_of(t): t.untyped_storage().nbytes() for t in tape.hidden}
            if hidden:
                spent += sum(hidden.values())
                outputs.append(self._bytes_value(f"{node.name}.saved", sum(hidden.values())))
        written = set(op.writes(node))
        if written:  # the new content, and the old one for backward
            size = 2 * sum(self.graph.type(name).bytes for name in written)
            outputs.append(self._bytes_value(f"{node.name}.buffers", size))
            self.kept.append(outputs[-1])
            spent += size // 2
        if peak.bytes > spent:
            outputs.append(self._bytes_value(f"{node.name}.work", peak.bytes - spent))
        self.nodes.append(replace(node, outputs=tuple(outputs)))

    def _bytes_value(self, name: str, count: int, kind: Kind = Kind.ACTIVATION) -> str:
        self.values.append(Value(name, TensorType((count,), "uint8"), kind))
        return name

    # -- backward ------------------------------------------------------------------------------------------------------

    def seed(self, brought: bool) -> None:
        made, several = [], 0
        for name, times in Counter(name for name in self.graph.outputs if name in self.needs).items():
            grad = torch.empty_like(self.tensors[name])
            if brought or name not in self.graph.producer or self.graph.consumers[name]:
                made.append(self._add(name, grad, None)[0])
                self.grads[name].shared = True  # it is the caller's
                several += times * self.graph.type(name).bytes if times > 1 else 0  # the caller's, beside their sum
            else:
                self.grads[name] = _Gradient("", grad, True)
        if several:
            made.append(self._bytes_value(f"{SEED}.work", several, Kind.GRADIENT))
        self.kept += made
        if made:
            self.nodes.append(Node(SEED, SEED, (), tuple(made), phase=Phase.BACKWARD))

    def backward(self, node: Node) -> None:
        (out,) = node.outputs
        tape, grad = self.tapes.pop(node.name, None), self.grads.get(out)
        if tape is None or grad is None:
            return
        inputs = [Input("grad", grad.name, Role.GRADIENT)] if grad.name else []
        for name in tape.saved.names:
            inputs.append(Input(f"saved.{name}", name, self._role(name, out)))
        if tape.hidden:
            inputs.append(Input("saved", f"{node.name}.saved", Role.RETAINED_OUTPUT))
        outputs, spent = [], 0
        with PeakBytes("meta") as peak, torch.no_grad():
            found = tape.backward(grad.tensor, self.tensors.__getitem__)
            for name in list(found):
                made, before, size = self._add(name, found.pop(name), grad)
                outputs.append(made)
                spent += size
                if before is not None:
                    inputs.append(Input(f"sum.{name}", before, Role.SUM))
        if peak.bytes > spent:
            outputs.append(self._bytes_value(f"{node.name}.backward.work", peak.bytes - spent, Kind.GRADIENT))
        attrs = MappingProxyType({"of": node.name})
        self.nodes.append(
            Node(f"{node.name}.backward", f"{node.op}_backward", tuple(inputs), tuple(outputs), attrs,
                 phase=Phase.BACKWARD, source=node.source)
        )  # fmt: skip

    def _role(self, name: str, out: str) -> Role:
        if name == out:
            return Role.RETAINED_OUTPUT
        return Role.PARAMETER if self.graph.value[name].kind is Kind.PARAMETER else Role.RETAINED_INPUT

    def _add(self, name: str, tensor: Tensor, source: _Gradient | None) -> tuple[str, str | None, int]:
        """One more gradient of a value: the name of the sum so far, the one before, and the bytes it allocates."""
        at = self.counts[name] = self.counts.get(name, 0) + 1
        made, before = f"{name}.grad.{at}", self.grads.get(name)
        alias, shared = None, False
        if before is not None and before.name:
            if before.shared:
                tensor = before.tensor + tensor
                self._owned(made, tensor)
            else:
                tensor = before.tensor.add_(tensor)
                alias = before.name
        else:
            if source is not None:
                tensor = self._own(name, tensor, source.tensor)
            alias = self._owned(made, tensor)
            shared = alias is not None
            if shared and source is not None:
                source.shared = True
                for other in self.grads.values():
                    other.shared |= memory_of(other.tensor) == memory_of(tensor)
        self.values.append(Value(made, self.graph.type(name), Kind.GRADIENT, None, alias))
        self.grads[name] = _Gradient(made, tensor, shared)
        allocated = 0 if alias is not None else tensor.numel() * tensor.element_size()
        return made, before.name if before is not None and before.name else None, allocated

    def _own(self, name: str, grad: Tensor, incoming: Tensor) -> Tensor:
        """Rule T3."""
        if memory_of(grad) in self.owner and name not in self.graph.producer:
            return grad.clone()
        whole = grad.numel() == incoming.numel() if memory_of(grad) == memory_of(incoming) else fills(grad)
        return grad if whole else grad.clone()

    def finish(self) -> Graph:
        graph = self.graph
        last = {grad.name: f"{name}.grad" for name, grad in self.grads.items() if grad.name}  # the sum of all
        outside = (*graph.of_kind(Kind.INPUT), *graph.of_kind(Kind.PARAMETER))
        grads = [f"{v.name}.grad" for v in outside if v.name in self.grads]
        kept = [last.get(name, name) for name in self.kept]
        outputs = (*graph.outputs, *grads, *(new for _, new in graph.updates), *kept)
        values = [replace(v, name=last.get(v.name, v.name), alias=last.get(str(v.alias), v.alias)) for v in self.values]
        nodes = [_renamed(n, last) for n in self.nodes]
        return Graph(tuple(values), tuple(nodes), tuple(dict.fromkeys(outputs)), (), graph.name)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    if node.phase is Phase.FORWARD:
        return node
    inputs = tuple(replace(i, value=names.get(i.value, i.value)) for i in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(name, name) for name in node.outputs))


def _blank(type_: TensorType) -> Tensor:
    return torch.empty(type_.shape, dtype=getattr(torch, type_.dtype), device="meta")


def _scratch(tensor: Tensor, written: bool) -> Tensor:
    return tensor.clone() if written else tensor
