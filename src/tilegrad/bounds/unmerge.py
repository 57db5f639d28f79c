"""Keep axes apart that a view has merged, as long as nobody needs them as one.

Attention in windows makes one batch of all windows of all images, `(n, h/8, w/8, 8, 8, c) -> (n*h/8*w/8, 64, c)`, and
undoes that afterwards; a decoder flattens an image into tokens for a linear layer and shapes it back. In between the
image's axes have no dimension of their own, and nothing could be tiled. So a value that such a view gives is kept in
its *form*: the tensor before the merge, and which of its dimensions make up each dimension that the model sees. An
operator that only looks on runs on the tensor as it is; one that needs a dimension as one gets it merged.

Rule V1  The elements of a form, in order, are those of the value the model sees.
Rule V2  What an operator gives has the shape that the model sees, dimension by dimension, or is a form of it.
Rule V3  Outputs and updates are merged: their shapes are the model's.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from types import MappingProxyType
from typing import Any

from ..ir import Build, Graph, Node, Source, TensorType
from ..ops import aten, find
from .axes import Axes, call_of, label_axes

Groups = tuple[tuple[int, ...], ...]  # sizes of the dimensions that make up each dimension the model sees
VIEWS = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}
NOWHERE = Source()
PERMUTES = {"permute", "transpose", "movedim", "t", "mT", "swapaxes", "numpy_T"}


@dataclass(frozen=True)
class AxisForm:
    value: str
    groups: Groups
    name: str = ""  # of the node that merged it in the model
    source: Source = NOWHERE

    @property
    def shape(self) -> tuple[int, ...]:
        """As the model sees it."""
        return tuple(map(prod, self.groups))

    @property
    def flat(self) -> tuple[int, ...]:
        """As it is."""
        return tuple(n for group in self.groups for n in group)

    @property
    def merged(self) -> bool:
        return any(len(group) > 1 for group in self.groups)

    def dims(self, dim: int) -> list[int]:
        """The dimensions that make up one."""
        start = sum(map(len, self.groups[:dim]))
        return list(range(start, start + len(self.groups[dim])))


def unmerge_graph(graph: Graph) -> Graph:
    """The same computation with the image's axes kept apart."""
    axes = label_axes(graph)
    if not any(node.op in VIEWS and _merges(graph, axes, node) for node in graph.nodes):
        return graph
    return _Pass(graph, axes).run()


def _merges(graph: Graph, axes: Axes, node: Node) -> bool:
    """Does a view make one dimension of an axis of the image and something else?"""
    value = node.inputs[0].value
    on = {dim for axis, dim in axes.dims[value].items() if axis != "n"}
    form = _regroup(tuple((n,) for n in graph.shape(value)), graph.shape(node.outputs[0]))
    if form is None or not on:
        return False
    at, starts = 0, {}
    for k, n in enumerate(graph.shape(value)):
        if n != 1:
            starts[at] = k
            at += 1
    at = 0
    for group in form:
        long = [n for n in group if n != 1]
        members = [starts.get(at + k) for k in range(len(long))]
        at += len(long)
        if len(long) > 1 and on.intersection(m for m in members if m is not None):
            return True
    return False


class _Pass:
    """One walk over the nodes; `forms` has the values that are not as the model sees them."""

    def __init__(self, graph: Graph, axes: Axes):
        self.graph, self.axes = graph, axes
        self.build = Build(graph.name)
        self.forms: dict[str, AxisForm] = {}
        self.plain: dict[str, str] = {}  # forms that were merged after all
        for value in graph.values:
            if not value.kind.computed:
                self.build.values[value.name] = value

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.build.source, self.build.prefix = node.source, f"{node.name}."
            forms = [self.form(name) for name in node.reads]
            made = self._handle(node, forms) if self._concerns(node, forms) else None
            if made is None:
                self._keep(node)
            elif made.merged or made.value != node.outputs[0]:
                self.forms[node.outputs[0]] = replace(made, name=node.name, source=node.source)
        self.build.updates = [(old, self.merge(new)) for old, new in self.graph.updates]
        return self.build.graph([self.merge(name) for name in self.graph.outputs])

    def _concerns(self, node: Node, forms: Sequence[AxisForm]) -> bool:
        return any(f.merged for f in forms) or (node.op in VIEWS and _merges(self.graph, self.axes, node))

    def form(self, name: str) -> AxisForm:
        return self.forms.get(name) or AxisForm(name, tuple((n,) for n in self.graph.shape(name)))

    def merge(self, name: str) -> str:
        """A value as the model sees it."""
        form = self.forms.get(name)
        if form is None:
            return name
        if not form.merged:
            return form.value
        if name not in self.plain:
            before, self.build.source = self.build.source, form.source
            called = form.name if form.name not in self.build.values else f"{form.name}.merged"
            self.plain[name] = self._view(form.value, form.shape, self.graph.type(name).dtype, called)
            self.build.source = before
        return self.plain[name]

    def _keep(self, node: Node) -> None:
        """The node as it was, on values as the model sees them."""
        inputs = tuple(replace(i, value=self.merge(i.value)) for i in node.inputs)
        self.build.values[node.outputs[0]] = self.graph.value[node.outputs[0]]
        self.build.nodes.append(replace(node, inputs=inputs))

    def _view(self, value: str, shape: Sequence[int], dtype: str, name: str | None = None) -> str:
        if self.build.type(value).shape == tuple(shape):
            return value
        type_, size = TensorType(tuple(shape), dtype), {"size": list(shape)}
        return self.build.emit("view", [("self", value)], type_, size, "aten.view.default", name)

    def shaped(self, form: AxisForm, groups: Groups) -> AxisForm:
        """The same value with other groups, which must have the same order of elements."""
        flat = tuple(n for group in groups for n in group)
        return replace(form, value=self._view(form.value, flat, self.build.type(form.value).dtype), groups=groups)

    def emit(
        self, node: Node, inputs: Sequence[str], groups: Groups, attrs: Mapping[str, Any] = MappingProxyType({})
    ) -> AxisForm:
        type_ = TensorType(tuple(n for group in groups for n in group), self.graph.type(node.outputs[0]).dtype)
        slots = [(i.arg, value) for i, value in zip(node.inputs, inputs, strict=True)]
        made = self.build.emit(node.op, slots, type_, {**node.attrs, **attrs}, node.target, node.name)
        return AxisForm(made, groups)

    # -- operators -----------------------------------------------------------------------------------------------------

    def _handle(self, node: Node, forms: list[AxisForm]) -> AxisForm | None:
        """The node on forms, or None where it needs what the model sees."""
        if node.op in VIEWS:
            groups = _regroup(forms[0].groups, self.graph.shape(node.outputs[0]))
            return self.shaped(forms[0], groups) if groups is not None else None
        if node.op in PERMUTES:
            return self._permute(node, forms[0])
        handler = HANDLERS.get(node.op)
        if handler is not None:
            return handler(self, node, forms)
        return self._elementwise(node, forms) if find(node).elementwise and not _laid_out(node) else None

    def _permute(self, node: Node, form: AxisForm) -> AxisForm:
        order = find(node).order(call_of(self.graph, node))  # type: ignore[attr-defined]
        dims = [dim for k in order for dim in form.dims(k)]
        groups = tuple(form.groups[k] for k in order)
        bare = replace(node, op="permute", target="aten.permute.default", attrs=MappingProxyType({}))
        return self.emit(bare, [form.value], groups, {"dims": dims})

    def _elementwise(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        shape = self.graph.shape(node.outputs[0])
        groups = _common([f.groups for f in forms], len(shape))
        if groups is None or tuple(map(prod, groups)) != shape:
            return None
        aligned = [self.shaped(f, _broadcast(f.groups, groups)) for f in forms]
        return self.emit(node, [f.value for f in aligned], groups)

    def _linear(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        """The last dimension as one, the others as they are."""
        first = self.single(forms[0], [-1])
        out = self.graph.shape(node.outputs[0])
        rest = [self.merge(name) for name in node.reads[1:]]
        return self.emit(node, [first.value, *rest], (*first.groups[:-1], (out[-1],)))

    def _layer_norm(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        first = self.single(forms[0], range(-len(node.attrs["normalized_shape"]), 0))
        return self.emit(node, [first.value, *(self.merge(name) for name in node.reads[1:])], first.groups)

    def _along(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        """Operators along one dimension that leave its neighbours alone."""
        rank = len(forms[0].groups)
        given = node.attrs.get("dim", -1)
        dim = int(given) % rank
        first = self.single(forms[0], [dim])
        (at,) = first.dims(dim)
        out = self.graph.shape(node.outputs[0])
        gone = len(out) < rank
        groups = list(first.groups)
        groups[dim : dim + 1] = [] if gone else [(out[dim],)]
        return self.emit(node, [first.value], tuple(groups), {"dim": at})

    def _concat(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        rank = len(self.graph.shape(node.outputs[0]))
        dim = int(node.attrs.get("dim", 0)) % rank
        singles = [self.single(f, [dim]) for f in forms]
        if any(len(f.groups) != rank for f in singles):
            return None
        others = [tuple(g for k, g in enumerate(f.groups) if k != dim) for f in singles]
        common = _common(others, rank - 1)
        if common is None:
            return None
        shaped = [self.shaped(f, (*common[:dim], f.groups[dim], *common[dim:])) for f in singles]
        groups = (*common[:dim], (self.graph.shape(node.outputs[0])[dim],), *common[dim:])
        return self.emit(node, [f.value for f in shaped], groups, {"dim": sum(map(len, common[:dim]))})

    def _matmul(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        """Products (and attention): batch dimensions stay apart, the last two of each are one."""
        if any(len(f.groups) < 2 for f in forms):
            return None
        out = self.graph.shape(node.outputs[0])
        singles = [self.single(f, [-2, -1]) for f in forms]
        lead = _common([f.groups[:-2] for f in singles], len(out) - 2)
        if lead is None:
            return None
        shaped = [self.shaped(f, (*_broadcast(f.groups[:-2], lead), *f.groups[-2:])) for f in singles]
        if node.op == "bmm":  # takes one batch dimension only
            first, second = node.inputs
            inputs = (first, replace(second, arg="other"))
            node = replace(node, op="matmul", target="aten.matmul.default", inputs=inputs)
        return self.emit(node, [f.value for f in shaped], (*lead, (out[-2],), (out[-1],)))

    def _einsum(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        """A letter for every dimension: where a dimension is in parts, so is its letter."""
        equation = str(node.attrs["equation"]).replace(" ", "")
        if "." in equation or "->" not in equation:
            return None
        left, out = equation.split("->")
        terms, groups = left.split(","), dict[str, tuple[int, ...]]()
        for letter in dict.fromkeys("".join(terms)):
            found = [f.groups[t.index(letter)] for t, f in zip(terms, forms, strict=True) if letter in t]
            common = _common([(g,) for g in found], 1)
            if common is None:
                return None
            groups[letter] = common[0]
        fresh = iter(c for c in string.ascii_letters if c not in groups)
        try:
            names = {c: c + "".join(next(fresh) for _ in g[1:]) for c, g in groups.items()}
        except StopIteration:
            return None
        pairs = [(c, g) for t, f in zip(terms, forms, strict=True) for c, g in zip(t, f.groups, strict=True)]
        if any(prod(groups[c]) != prod(g) for c, g in pairs):
            return None  # a dimension that is broadcast
        shaped = [self.shaped(f, tuple(groups[c] for c in t)) for t, f in zip(terms, forms, strict=True)]
        spelled = ",".join("".join(names[c] for c in t) for t in terms) + "->" + "".join(names[c] for c in out)
        return self.emit(node, [f.value for f in shaped], tuple(groups[c] for c in out), {"equation": spelled})

    def _expand(self, node: Node, forms: Sequence[AxisForm]) -> AxisForm | None:
        (form,), out = forms, self.graph.shape(node.outputs[0])
        lead = len(out) - len(form.groups)
        groups = tuple((n,) for n in out[:lead]) + tuple(
            g if prod(g) == n else (n,) for g, n in zip(form.groups, out[lead:], strict=True)
        )
        form = self.single(form, [k for k, n in enumerate(out[lead:]) if prod(form.groups[k]) != n])
        return self.emit(node, [form.value], groups, {"size": [n for g in groups for n in g]})

    def single(self, form: AxisForm, dims: Sequence[int]) -> AxisForm:
        """These dimensions as one each."""
        chosen = {d % len(form.groups) for d in dims}
        return self.shaped(form, tuple((prod(g),) if k in chosen else g for k, g in enumerate(form.groups)))


def _laid_out(node: Node) -> bool:
    """Does it ask for a memory layout, which belongs to the shape that the model sees?"""
    layout = node.attrs.get("memory_format")
    return layout is not None and aten.decode(layout) not in (None, aten.decode({"memory_format": "preserve_format"}))


Handler = Callable[["_Pass", Node, list[AxisForm]], AxisForm | None]
HANDLERS: dict[str, Handler] = {
    "linear": _Pass._linear,
    "layer_norm": _Pass._layer_norm,
    "softmax": _Pass._along,
    "log_softmax": _Pass._along,
    "slice": _Pass._along,
    "select": _Pass._along,
    "unbind": _Pass._along,
    "split": _Pass._along,
    "split_with_sizes": _Pass._along,
    "chunk": _Pass._along,
    "cat": _Pass._concat,
    "matmul": _Pass._matmul,
    "bmm": _Pass._matmul,
    "scaled_dot_product_attention": _Pass._matmul,
    "einsum": _Pass._einsum,
    "expand": _Pass._expand,
}


def _regroup(groups: Groups, shape: Sequence[int]) -> Groups | None:
    """The groups of a view: dimensions are taken in order, and split where the view splits them."""
    left = [n for group in groups for n in group if n != 1]
    if 0 in left or prod(left) != prod(shape):
        return None
    found: list[tuple[int, ...]] = []
    for size in shape:
        group: list[int] = []
        while prod(group) < size:
            missing, n = size // prod(group), left[0]
            if size % prod(group):
                return None
            if n <= missing:
                if missing % n:
                    return None
                group.append(left.pop(0))
            else:
                if n % missing:
                    return None
                group.append(missing)
                left[0] = n // missing
        found.append(tuple(group) or (1,))
    return tuple(found)


def _common(all_groups: Sequence[Groups], rank: int) -> Groups | None:
    """For each dimension of broadcast values the parts that all can be split into; None where there are none."""
    found: list[tuple[int, ...]] = []
    for back in range(1, rank + 1):
        here = [g[-back] for g in all_groups if len(g) >= back and prod(g[-back]) != 1]
        ends = sorted({end for g in here for end in accumulate(reversed(g), lambda a, b: a * b)})
        if any(b % a for a, b in pairwise(ends)):
            return None
        sizes = [b // a for a, b in pairwise([1, *ends])]
        found.append(tuple(n for n in reversed(sizes) if n != 1) or (1,))
    return tuple(reversed(found))


def _broadcast(groups: Groups, common: Groups) -> Groups:
    """A value's groups, split as all are; dimensions of size 1 get as many of them."""
    lead = len(common) - len(groups)
    return tuple(c if prod(g) != 1 else (1,) * len(c) for g, c in zip(groups, common[lead:], strict=True))
