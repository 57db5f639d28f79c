"""The training step of a net of locally connected layers, for any sizes, cut over any grid of workers.

    image -> for every layer: filter (weights of their own at every place, valid, stride 1), filterA (a gain and a bias
    per place), filterNL -> linear over all that is left -> softmax -> loss; backward; updates in place

Height and width of every map are cut into rows x cols boxes. A worker

- writes its box of every map, and reads the box that its box of the next map needs: output [lo, hi) of a filter of k
  reads input [lo, hi + k - 1), so up to k - 1 elements come from others, as a halo;
- has the weights and biases of its box, and the classifier's weights for its box of the last map: these are never sent;
- has gradients of just what it has, and adds to a halo of them what belongs to others;
- sums the logits over its box. The sum over workers is on every worker, as are labels, probabilities, loss and metric;
  `step` says how boxes show that.

At one worker every rect is the whole array, but for the gradient of the loss, which nobody reads: it is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from ..errors import InputError
from ..ir import Graph, Input, Kind, Node, Value
from ..region import Box, Interval, Slide, cuts_of_count
from .kinds import KINDS
from .step import edges, held_of, inputs_of, listed, make_array, part_of, single_assignment

Gain = Literal["a*(x+b)", "a*x+b"]
METRICS = 4
_IMAGE, _LABELS, _WEIGHTS = "data.raw_output", "data.labels_output", "classifier.weights1"
_LOGITS, _PROBABILITY = "classifier.linear1.output", "classifier.softmax.probability"
_LOSS, _METRIC = "classifier.softmax.output", "classifier.evaluate.output"


def training_step(
    *,
    batch: int,
    image: tuple[int, int],
    channels: int,
    layers: Sequence[tuple[int | tuple[int, int], int]],  # kernel and maps of each
    classes: int,
    gain: Gain = "a*(x+b)",
    workers: tuple[int, int] = (1, 1),
) -> tuple[Graph, ...]:
    """One graph per worker, row by row. Raises `InputError` for sizes that cannot be."""
    kernels = [k if isinstance(k, tuple) else (k, k) for k, _ in layers]
    maps = [count for _, count in layers]
    for what, numbers in (
        ("the batch", (batch,)), ("the image", image), ("the channels", (channels,)), ("the classes", (classes,)),
        ("kernels", [n for kernel in kernels for n in kernel]), ("maps", maps), ("the workers", workers),
    ):  # fmt: skip
        if any(n < 1 for n in numbers):
            raise InputError(f"{what} must be 1 or more, not {tuple(numbers)}", where="training_step")
    if not layers:
        raise InputError("a net without layers", where="training_step")
    if gain not in ("a*(x+b)", "a*x+b"):
        raise InputError(f"the gain '{gain}' is not known", where="training_step", hint="'a*(x+b)' or 'a*x+b'")
    if any(count > size for count, size in zip(workers, image, strict=True)):
        what = f"{workers[0]} x {workers[1]} workers for an image of {image[0]} x {image[1]}"
        raise InputError(what, where="training_step", hint="fewer workers")
    sides = [(channels, *image)]
    for at, ((kh, kw), count) in enumerate(zip(kernels, maps, strict=True)):
        _, h, w = sides[-1]
        if kh > h or kw > w:
            raise InputError(f"a kernel of {kh} x {kw} on maps of {h} x {w}", where=f"training_step: layer {at}")
        sides.append((count, h - kh + 1, w - kw + 1))
    whole = _Sizes(batch, tuple(sides), tuple(kernels), classes, gain, workers)
    return tuple(_Worker(whole, (r, c)).graph() for r in range(workers[0]) for c in range(workers[1]))


@dataclass(frozen=True, slots=True)
class _Sizes:
    batch: int
    sides: tuple[tuple[int, int, int], ...]  # channels, height and width of the image and of every layer's maps
    kernels: tuple[tuple[int, int], ...]
    classes: int
    gain: Gain
    workers: tuple[int, int]


@dataclass
class _Worker:
    """One worker's graph as it grows."""

    sizes: _Sizes
    index: tuple[int, int]
    arrays: dict[str, Value] = field(default_factory=dict)
    operators: list[Node] = field(default_factory=list)

    def graph(self) -> Graph:
        self.add_array(_IMAGE, self.dim(0), self.read(0), self.own(0))
        self.add_array(_LABELS, (self.sizes.batch, 1, 1, 1))
        self.do("data", "source", (), (_IMAGE, _LABELS))
        for at in range(len(self.sizes.kernels)):
            self.layer(at)
        self.classifier()
        self.backward()
        for param in [array.name for array in reversed(self.arrays.values()) if array.kind is Kind.PARAMETER]:
            name = "update_W1" if param == _WEIGHTS else f"update_{param}"
            self.do(name, "update", (param, f"{param}.grad"), in_place=True)
        (row, col), (rows, cols) = self.index, self.sizes.workers
        name = f"worker {row},{col} of {rows}x{cols}" if rows * cols > 1 else "step"
        graph = single_assignment(tuple(self.arrays.values()), self.operators, name)
        return replace(graph, nodes=tuple(replace(node, attrs=_with_rects(graph, node)) for node in graph.nodes))

    def own(self, map: int) -> Box:
        """This worker's place in the maps of a layer; 0 is the image, 1 the first layer's."""
        _, *sides = self.sizes.sides[map]
        found = []
        for side, count, at in zip(sides, self.sizes.workers, self.index, strict=True):
            cuts = cuts_of_count(side, count)
            found.append(Interval(cuts[at], cuts[at + 1]))
        return Box(found)

    def need(self, at: int) -> Box:
        """What layer `at` reads of the maps before it, to make this worker's place."""
        pairs = zip(self.own(at + 1), self.sizes.kernels[at], strict=True)
        return Box(Slide(kernel).reads(side.lo, side.hi) for side, kernel in pairs)

    def read(self, map: int) -> Box:
        """This worker's place and the halo that the next layer needs."""
        own = self.own(map)
        return own if map == len(self.sizes.kernels) or (need := self.need(map)).empty else own.hull(need)

    def dim(self, map: int) -> tuple[int, ...]:
        return (self.sizes.batch, *self.sizes.sides[map])

    def add_array(self, name: str, dim: tuple[int, ...], *places: Box, kind: Kind = Kind.ACTIVATION) -> None:
        """An array of which this worker reads and writes these places in the last two dimensions, or all."""
        whole = Box.full(dim)
        boxes = [Box((*whole[:-2], *place)) for place in places] or [whole]
        self.arrays[name] = make_array(name, dim, kind, boxes[0], None if kind is Kind.PARAMETER else boxes[-1])

    def do(self, name: str, kind: str, reads: Sequence[str], writes: Sequence[str] = (), **attrs: Any) -> None:
        """An operator, with its arrays in the order of the ports of its kind."""
        inputs = tuple(Input(port, array) for port, array in zip(KINDS[kind].inputs, reads, strict=False))
        self.operators.append(Node(name, kind, inputs, tuple(writes), MappingProxyType(attrs)))

    def layer(self, at: int) -> None:
        name, dim, place = f"L{at}", self.dim(at + 1), self.own(at + 1)
        weights = (dim[1], 1, 1, self.sizes.sides[at][0], *self.sizes.kernels[at], *dim[2:])
        self.add_array(f"{name}.W", weights, place, kind=Kind.PARAMETER)
        self.add_array(f"{name}.b", (1, *dim[1:]), place, kind=Kind.PARAMETER)
        self.add_array(f"{name}.a", (1,), kind=Kind.PARAMETER)
        filtered, scaled, out = (f"{name}.{step}.output" for step in ("filter", "filterA", "filterNL"))
        self.add_array(filtered, dim, place)
        self.add_array(scaled, dim, place)
        self.add_array(out, dim, self.read(at + 1), place)
        reads = (self.before(at), f"{name}.W")
        need = listed(Box((*Box.full(self.dim(at)[:2]), *self.need(at))))
        gain = {} if self.sizes.gain == "a*(x+b)" else {"gain": self.sizes.gain}
        self.do(f"{name}.filter", "locally_connected", reads, (filtered,), dist_input=need, stride=1, padding=0)
        self.do(f"{name}.filterA", "scalar_affine", (filtered, f"{name}.a", f"{name}.b"), (scaled,), **gain)
        self.do(f"{name}.filterNL", "nonlinearity", (scaled,), (out,))

    def before(self, at: int) -> str:
        return f"L{at - 1}.filterNL.output" if at else _IMAGE

    def classifier(self) -> None:
        last = len(self.sizes.kernels)
        dim, logits = self.dim(last), (self.sizes.batch, self.sizes.classes, 1, 1)
        self.add_array(_WEIGHTS, (self.sizes.classes, *dim[1:]), self.own(last), kind=Kind.PARAMETER)
        sizes = {_LOGITS: logits, _PROBABILITY: logits, _LOSS: (1, 1, 1, 1), _METRIC: (METRICS, 1, 1, 1)}
        for name, size in sizes.items():
            self.add_array(name, size)
        self.do("classifier.linear1", "linear", (self.before(last), _WEIGHTS), (_LOGITS,))
        self.do("classifier.softmax", "softmax_cross_entropy", (_LOGITS, _LABELS), (_PROBABILITY, _LOSS))
        self.do("classifier.evaluate", "evaluate", (_PROBABILITY, _LABELS), (_METRIC,))
        self.do("classifier.evaluate.accuracy", "accuracy", (_METRIC,))

    def backward(self) -> None:
        """The gradients of all operators, the last first: what each reads and writes is told by the ports of its kind.
        Nobody wants the gradient of the image, and that of a*x+b does not need b."""
        for op in reversed(tuple(self.operators)):
            if (kind := f"{op.op}_grad") in KINDS:
                at = {i.arg: i.value for i in op.inputs} | dict(zip(KINDS[op.op].outputs, op.outputs, strict=True))
                reads, writes = KINDS[kind].inputs, KINDS[kind].outputs
                reads = reads[:-1] if op.attrs.get("gain") else reads
                writes = writes[:-1] if at.get("input") == _IMAGE else writes
                arrays = [self.gradient(at[p[:-6]]) if p.endswith(".delta") else at[p] for p in (*reads, *writes)]
                attrs = {key: value for key, value in op.attrs.items() if key in ("dist_input", "gain")}
                self.do(f"{op.name}.grad", kind, arrays[: len(reads)], arrays[len(reads) :], **attrs)

    def gradient(self, of: str) -> str:
        """The gradient of an array: a worker has it for what it has, and adds to that of all it reads."""
        name, held = f"{of}.grad", held_of(self.arrays[of])
        if name not in self.arrays:
            read = Box([(0, 0)] * 4) if of == _LOSS else held.write or held.read
            self.arrays[name] = make_array(name, self.arrays[of].type.shape, Kind.GRADIENT, read, held.read)
            self.do(f"{name}.set_zero", "set_zero", (), (name,))
        return name


def _with_rects(graph: Graph, node: Node) -> Mapping[str, Any]:
    """The attributes of an operator with all rects of its kind: those of its arrays, where it has none of its own."""
    rects = {}
    for key in KINDS[node.op].dists:
        part, any_part = part_of(graph, node, key)
        held = held_of(part)
        rects[key] = listed(held.read if any_part else held.write or held.read)
    return MappingProxyType({**rects, **node.attrs})


def split_step(graph: Graph, workers: tuple[int, int]) -> tuple[Graph, ...]:
    """The step that a graph shows on another number of workers: one graph each, with all boxes made anew. Raises
    `InputError` where it is of another form."""
    try:
        batch, channels, height, width = graph.shape(_IMAGE)
        layers: list[tuple[tuple[int, int], int]] = []
        while (name := f"L{len(layers)}.W") in graph.value:
            maps, _, _, _, kh, kw, _, _ = graph.shape(name)
            layers.append(((kh, kw), maps))
        found = training_step(
            batch=batch, image=(height, width), channels=channels, layers=layers, classes=graph.shape(_WEIGHTS)[0],
            gain="a*(x+b)" if "b" in inputs_of(graph, graph.node["L0.filterA.grad"]) else "a*x+b", workers=workers,
        )  # fmt: skip
    except InputError:
        raise
    except (KeyError, ValueError, IndexError):
        what = "a step of another form than layers L0, L1, … and a classifier"
        raise InputError(what, where=graph.name, hint="the rects of the file itself, without --mesh") from None
    if set(edges(found[0])) != set(edges(graph)):
        raise InputError("a step with other operators than the layers explain", where=graph.name)
    return found
