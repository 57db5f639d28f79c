"""Which dimension of each value lies on which axis of the image.

Convolutions, pools and resizes know their image axes: the last one, two or three dimensions are `w`, `h w`,
`d h w`, and the first of a batched input is `n`. From there names spread both ways through every operator that reads
a dimension from one output dimension: through permutes, views, broadcasts, into masks and maps that only meet the
image in a loss. Two names never share a dimension and no value has a name twice: where an operator would force that
(an image added to its own transpose, queries multiplied with keys), the input that came later is read *whole*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops import Call, Reduction, find

AXES = ("n", "d", "h", "w")
Place = tuple[str, int]  # value, dimension


def call_of(graph: Graph, node: Node) -> Call:
    """A node with the types of what it reads and makes: found once, and kept with the graph."""
    known: dict[str, Call] = graph.__dict__.setdefault("_calls", {})
    found = known.get(node.name)
    if found is None or found.node is not node:
        found = Call(node, tuple(map(graph.type, node.reads)), tuple(map(graph.type, node.outputs)))
        known[node.name] = found
    return found


@dataclass(frozen=True)
class Axes:
    """`dims[value][axis]` is the dimension of `value` along `axis`, where it has one."""

    dims: Mapping[str, Mapping[str, int]]
    whole: frozenset[tuple[str, int]] = frozenset()  # (node, input): axes cannot be told apart, so all of it is read

    def on(self, value: str, dim: int) -> str | None:
        return next((axis for axis, d in self.dims[value].items() if d == dim), None)


class _Classes:
    """Dimensions that must carry the same name: union-find that refuses contradictions."""

    def __init__(self) -> None:
        self.parent: dict[Place, Place] = {}
        self.members: dict[Place, dict[str, int]] = {}
        self.name: dict[Place, str | None] = {}

    def root(self, place: Place) -> Place:
        if place not in self.parent:
            self.parent[place], self.members[place], self.name[place] = place, {place[0]: place[1]}, None
        while self.parent[place] != place:
            self.parent[place] = self.parent[self.parent[place]]
            place = self.parent[place]
        return place

    def call(self, place: Place, name: str) -> bool:
        root = self.root(place)
        self.name[root] = self.name[root] or name
        return self.name[root] == name

    def join(self, a: Place, b: Place) -> bool:
        """False when the two cannot be one axis."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return True
        small, large = sorted((a, b), key=lambda r: len(self.members[r]))
        names = {self.name[a], self.name[b]} - {None}
        clash = any(self.members[large].get(v, d) != d for v, d in self.members[small].items())
        if clash or len(names) > 1:
            return False
        self.parent[small] = large
        self.members[large] |= self.members.pop(small)
        self.name[large] = next(iter(names), None)
        return True


def label_axes(graph: Graph) -> Axes:
    """Name the dimensions of every value of the graph: once, and kept with it."""
    found: Axes | None = graph.__dict__.get("_axes")
    if found is None:
        found = graph.__dict__["_axes"] = _label_axes(graph)
    return found


def _label_axes(graph: Graph) -> Axes:
    classes, clashes = _Classes(), list[tuple[str, int, Place, Place]]()
    rank = max((find(node).spatial for node in graph.nodes), default=0)
    for node in graph.nodes:
        if find(node).spatial == rank:  # a Conv1d among Conv2d's slides over channels, or over what was flattened
            _seed(graph, node, classes)
    if not any(classes.name.values()):
        _seed_inputs(graph, classes)
    for node in graph.nodes:
        clashes += _spread(graph, node, classes)
    _name_behind_barriers(graph, classes)
    dims: dict[str, dict[str, int]] = {v.name: {} for v in graph.values}
    for value in graph.values:
        for dim, size in enumerate(value.type.shape):
            name = classes.name.get(classes.root((value.name, dim))) if size > 1 else None
            if name is not None:
                dims[value.name].setdefault(name, dim)
    named = [(node, i) for node, i, *places in clashes if any(classes.name[classes.root(place)] for place in places)]
    return Axes(dims, frozenset(named))


def _seed(graph: Graph, node: Node, classes: _Classes) -> None:
    spatial = find(node).spatial
    if not spatial or not node.inputs:
        return
    value = node.inputs[0].value
    shape = graph.shape(value)
    lead = len(shape) - spatial
    for k, axis in enumerate("dhw"[-spatial:]):
        if shape[lead + k] > 1:
            classes.call((value, lead + k), axis)
    if lead == 2 and shape[0] > 1:
        classes.call((value, 0), "n")


def _seed_inputs(graph: Graph, classes: _Classes) -> None:
    """No operator knows an image axis: take what is known of the inputs, or their ranks at their word (n, c, then the
    image)."""
    known = [v for v in graph.values if v.axes]
    for value in known or [graph.value[name] for name in graph.inputs]:
        shape = value.type.shape
        usual = ("n", "", *"dhw"[-(len(shape) - 2) :]) if 3 <= len(shape) <= 5 else ()
        for axis, dim in value.axes if known else ((axis, dim) for dim, axis in enumerate(usual)):
            if axis and shape[dim] > 1:
                classes.call((value.name, dim), axis)


def _spread(graph: Graph, node: Node, classes: _Classes) -> Iterator[tuple[str, int, Place, Place]]:
    """Join what the node's rule drives from one dimension to another; gives the inputs for which that contradicts."""
    op, call = find(node), call_of(graph, node)
    out = node.outputs[0]
    pairs = [
        (i, (node.inputs[i].value, k), (out, read.dim))
        for i, dims in enumerate(op.reads(call) or ())
        for k, read in enumerate(dims)
        if read.dim is not None
    ]
    if isinstance(op, Reduction):
        first = node.inputs[0].value if node.inputs else ""
        pairs += [(i, (node.inputs[i].value, dim), (first, of)) for i, dim, of in op.tied(call)]
    for i, place, other in pairs:
        long = all(graph.shape(value)[dim] > 1 for value, dim in (place, other))
        if long and not classes.join(place, other):
            yield node.name, i, place, other


def _name_behind_barriers(graph: Graph, classes: _Classes) -> None:
    """An operator without a rule that keeps the rank is taken to keep the meaning of each dimension."""
    for node in graph.nodes:
        if not node.inputs or find(node).reads(call_of(graph, node)) is not None:
            continue
        before, after = graph.shape(node.inputs[0].value), graph.shape(node.outputs[0])
        if len(before) != len(after):
            continue
        for dim, size in enumerate(after):
            name = classes.name[classes.root((node.inputs[0].value, dim))]
            if name and size > 1 and before[dim] > 1:
                classes.call((node.outputs[0], dim), name)


def image_axes(graph: Graph) -> list[str]:
    """The axes of the graph's images, in order: `["h", "w"]`. The batch is not one of them."""
    found = {axis for dims in label_axes(graph).dims.values() for axis in dims}
    return [axis for axis in AXES[1:] if axis in found]
