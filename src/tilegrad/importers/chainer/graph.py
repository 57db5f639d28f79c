"""A dump of a Chainer training step as a graph: forward and backward functions, with what backward retains.

The dump has no shapes and no order. Shapes follow from bytes (`chainer_shapes.py`); functions run by rank, slices last
among equals, then as in the file; backward runs in exactly the reverse order. What a backward function reads is what
its forward partner says it retains, not every tensor that the dump lists. Further contributions to a gradient are
added in place: each is a value that lives in the memory of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ...ir import Graph, Input, Kind, Node, Phase, Role, Source, TensorType, Value, check_graph
from ..form import Form
from .dump import ChainerDump, ChainerFunction, load_dump
from .infer import ITEM_BYTES, Knowns, infer_shapes
from .ops import find_known, opaque_form
from .order import pair_functions, sort_functions


def load_chainer(path: Path) -> Graph:
    """The graph of the training step in this dump."""
    dump = load_dump(path)
    order = sort_functions(dump)
    partners = pair_functions(dump, order)
    known = {f.line: k for f in order if (k := find_known(f, _bytes(dump, f))) is not None}
    graph = _Importer(dump, order, partners, known).run(path.stem)
    check_graph(graph)
    return graph


def _bytes(dump: ChainerDump, f: ChainerFunction) -> list[int]:
    return [dump.tensors[id].bytes for id in (*f.inputs, *f.outputs)]


class _Names:
    """Makes names unique: the second `conv` is `conv_1`."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.next: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        found = name
        while found in self.taken:
            self.next[name] += 1
            found = f"{name}_{self.next[name]}"
        self.taken.add(found)
        return found


class _Importer:
    """Builds values and nodes, once each function is known, paired and in order."""

    def __init__(
        self,
        dump: ChainerDump,
        order: Sequence[ChainerFunction],
        partners: Mapping[int, ChainerFunction],
        known: Knowns,
    ):
        self.dump, self.order, self.partners, self.known = dump, order, partners, known
        self.shapes, self.understood = infer_shapes(dump, order, known)
        self.value_names, self.node_names = _Names(), _Names()
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.by_id: dict[int, Value] = {}
        self.gradients: dict[int, Value] = {}  # of each tensor, as far as it has come
        self.forms: dict[int, Form] = {}
        self.named: dict[int, str] = {}  # forward nodes by line

    def run(self, name: str) -> Graph:
        self._outside()
        for f in self.order:
            self._forward(f)
        read = {id for f in self.order for id in f.inputs}
        results = [id for f in self.order for id in f.outputs if id not in read]
        self._backward(results)
        parameters = [t.id for t in self.dump.tensors.values() if t.parameter is not None]
        # What a training step leaves; the dump does not say that anybody reads the loss.
        outputs = [self.gradients[id].name for id in parameters if id in self.gradients]
        return Graph(tuple(self.values), tuple(self.nodes), tuple(outputs), (), name)

    def _outside(self) -> None:
        """Parameters, inputs, and the rest that no function makes."""
        made = {id for f in self.order for id in f.outputs}
        used = {id for f in self.order for id in f.inputs} | made
        labels = {f.inputs[k] for f in self.order if f.line in self.known for k in self.known[f.line].integer}
        seen: dict[str, int] = {}
        for t in self.dump.tensors.values():
            if t.name == "_" and t.id not in used:
                raise self.dump.tensor_error(t.id, "is neither read nor written by any function")
            if t.name != "_" and seen.setdefault(t.name, t.line) != t.line:
                raise self.dump.tensor_error(t.id, f"is called '{t.name}', as is the one at line {seen[t.name]}")
            if t.id not in made:
                kind = Kind.PARAMETER if t.parameter else Kind.CONSTANT if t.name == "_" else Kind.INPUT
                name = t.parameter or (f"t{t.id}" if t.name == "_" else f"input{t.name}")
                self._declare(t.id, name, kind, "int32" if t.id in labels and not t.parameter else "float32")

    def _declare(self, id: int, name: str, kind: Kind, dtype: str = "float32") -> None:
        size = self.dump.tensors[id].bytes
        if (shape := self.shapes.get(id)) is None:  # it cannot be told: flat, and never of another size
            shape, dtype = ((size // ITEM_BYTES,), dtype) if size % ITEM_BYTES == 0 else ((size,), "uint8")
        name = self.value_names(name)
        self.by_id[id] = Value(name, TensorType(shape, dtype), kind, name if kind is Kind.PARAMETER else None)
        self.values.append(self.by_id[id])

    def _forward(self, f: ChainerFunction) -> None:
        for id in f.outputs:
            self._declare(id, f"t{id}", Kind.ACTIVATION)
        ids = (*f.inputs, *f.outputs)
        form = None
        if f.line in self.understood and (self.known[f.line].flat or all(id in self.shapes for id in ids)):
            form = self.known[f.line].form(f, [self.by_id[id].type.shape for id in ids])
        self.forms[f.line] = form = form or opaque_form(f)
        parameter = next((p for id in f.inputs if (p := self.dump.tensors[id].parameter)), None)
        name = (parameter.rpartition("/")[0] or parameter) if parameter else f"{form.op}_t{f.outputs[0]}"
        self.named[f.line] = self.node_names(name)
        values = [self.by_id[id] for id in f.inputs]
        roles = [Role.PARAMETER if v.kind is Kind.PARAMETER else Role.DATA for v in values]
        inputs = tuple(Input(arg, v.name, role) for arg, v, role in zip(form.args, values, roles, strict=True))
        outputs, attrs = tuple(self.by_id[id].name for id in f.outputs), MappingProxyType(dict(form.attrs))
        self.nodes.append(
            Node(self.named[f.line], form.op, inputs, outputs, attrs, form.target, Phase.FORWARD, _source(f))
        )

    def _backward(self, results: Sequence[int]) -> None:
        """Backward functions, in exactly the reverse order. Gradients are for parameters and what they reach."""
        wanted = {t.id for t in self.dump.tensors.values() if t.parameter is not None}
        for f in self.order:
            if not wanted.isdisjoint(f.inputs):
                wanted.update(f.outputs)
        given = {f.line: [i for i in dict.fromkeys(self.partners[f.line].outputs) if i in wanted] for f in self.order}
        total, so_far = Counter(id for ids in given.values() for id in ids), Counter[int]()
        for f in reversed(self.order):
            if not given[f.line]:
                continue  # it reads inputs only: there is no gradient to give
            inputs = [*self._incoming(f, results), *self._retained(f)]
            for k, id in enumerate(given[f.line]):
                if so_far[id]:
                    inputs.append(Input(f"sum.{k}", self.gradients[id].name, Role.SUM))
                so_far[id] += 1
                self._gradient(id, f".{so_far[id]}" if so_far[id] < total[id] else "")
            self._emit(f, inputs, [self.gradients[id].name for id in given[f.line]])

    def _emit(self, f: ChainerFunction, inputs: Sequence[Input], outputs: Sequence[str]) -> None:
        forward = self.named[f.line]
        name, op = self.node_names(f"{forward}.backward"), f"{self.forms[f.line].op}_backward"
        attrs = MappingProxyType({"of": forward})
        source = _source(self.partners[f.line])
        self.nodes.append(Node(name, op, tuple(inputs), tuple(outputs), attrs, "", Phase.BACKWARD, source))

    def _gradient(self, id: int, suffix: str) -> None:
        """The next gradient of a tensor: it lives where the one before did."""
        value, before = self.by_id[id], self.gradients.get(id)
        name = self.value_names(f"{value.name}.grad{suffix}")
        target = value.name if value.kind is Kind.PARAMETER else None
        self.gradients[id] = Value(name, value.type, Kind.GRADIENT, target, before.name if before else None)
        self.values.append(self.gradients[id])

    def _incoming(self, f: ChainerFunction, results: Sequence[int]) -> list[Input]:
        """Gradients of its outputs. Backward starts from the number one, which is no tensor."""
        backward = self.partners[f.line]
        listed = {id for id, role in zip(backward.inputs, backward.roles, strict=True) if role == "gradient"}
        there = [(k, id) for k, id in enumerate(f.outputs) if id in listed and id in self.gradients]
        if not there and listed.isdisjoint(results):
            raise backward.error("no function gives a gradient for any of its outputs")
        return [Input(f"grad.{k}", self.gradients[id].name, Role.GRADIENT) for k, id in there]

    def _retained(self, f: ChainerFunction) -> list[Input]:
        found = []
        for k in f.retained("_input_indexes_to_retain", len(f.inputs)):
            value = self.by_id[f.inputs[k]]
            role = Role.PARAMETER if value.kind is Kind.PARAMETER else Role.RETAINED_INPUT
            found.append(Input(self.forms[f.line].args[k], value.name, role))
        for k in f.retained("_output_indexes_to_retain", len(f.outputs)):
            found.append(Input(f"result.{k}", self.by_id[f.outputs[k]].name, Role.RETAINED_OUTPUT))
        return found


def _source(f: ChainerFunction) -> Source:
    return Source(line=f"{f.file}:{f.line}")
