"""The training step of a net of locally connected layers, for any sizes, cut over any grid of workers.

    image -> for every layer: filter (weights of their own at every place, valid, stride 1), filterA (a gain and a bias
    per place), filterNL -> linear over all that is left -> softmax -> loss; backward; updates in place

Height and width of every map are cut into rows x cols boxes. A worker

- writes its box of every map, and reads the box that its box of the next map needs: output [lo, hi) of a filter of k
  reads input [lo, hi + k - 1), so up to k - 1 elements come from others, as a halo;
- has the weights and biases of its box, and the classifier's weights for its box of the last map: these are never sent;
- has gradients of just what it has, and adds to a halo of them what belongs to others;
- sums the logits over its box. The sum over workers is on every worker, as are labels, probabilities, loss and metric;
  `model` says how rects show that.

At one worker every rect is the whole array, but for the gradient of the loss, which nobody reads: it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ..errors import InputError
from ..region import Box, Interval, Slide, cuts_of_count
from .model import Array, Dim, RectGraph, RectOperator, RectRole

Gain = Literal["a*(x+b)", "a*x+b"]
METRICS = 4
_LOGITS, _LOSS, _PROBABILITY = (
    "classifier.linear1.output",
    "classifier.softmax.output",
    "classifier.softmax.probability",
)
_IMAGE, _LABELS, _WEIGHTS, _METRIC = (
    "data.raw_output", "data.labels_output", "classifier.weights1", "classifier.evaluate.output",
)  # fmt: skip


def training_step(
    *,
    batch: int,
    image: tuple[int, int],
    channels: int,
    layers: Sequence[tuple[int | tuple[int, int], int]],  # kernel and maps of each
    classes: int,
    gain: Gain = "a*(x+b)",
    workers: tuple[int, int] = (1, 1),
) -> tuple[RectGraph, ...]:
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


def _split(dim: Dim, place: Box) -> Box:
    """All of an array, but of its last two dimensions this place."""
    return Box((*Box.full(dim[:-2]), *place))


@dataclass
class _Worker:
    """One worker's graph as it grows."""

    sizes: _Sizes
    index: tuple[int, int]
    arrays: dict[str, Array] = field(default_factory=dict)
    operators: list[RectOperator] = field(default_factory=list)

    def graph(self) -> RectGraph:
        last = len(self.sizes.kernels) - 1
        self.source()
        for at in range(last + 1):
            self.layer(at)
        self.classifier()
        self.classifier_grad()
        for at in range(last, -1, -1):
            self.layer_grad(at)
        self.update("update_W1", _WEIGHTS)
        for at in range(last, -1, -1):
            for name in (f"L{at}.a", f"L{at}.b", f"L{at}.W"):
                self.update(f"update_{name}", name)
        self.operators += list(self.zeros())
        row, col = self.index
        rows, cols = self.sizes.workers
        name = f"worker {row},{col} of {rows}x{cols}" if rows * cols > 1 else "step"
        return RectGraph(tuple(self.arrays.values()), tuple(self.operators), name)

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
        if map == len(self.sizes.kernels):
            return self.own(map)
        need = self.need(map)
        if need.empty:
            return self.own(map)
        return self.own(map).hull(need)

    def dim(self, map: int) -> Dim:
        return (self.sizes.batch, *self.sizes.sides[map])

    def array(self, name: str, dim: Dim, role: RectRole, read: Box, write: Box | None = None) -> None:
        self.arrays[name] = Array(name, dim, role, read, write)

    def whole(self, name: str, dim: Dim, role: RectRole) -> None:
        self.array(name, dim, role, Box.full(dim), None if role is RectRole.PARAM else Box.full(dim))

    def do(
        self, name: str, kind: str, inputs: dict[str, str], outputs: dict[str, str], result: Dim | None,
        dists: dict[str, Box], attrs: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        reads, writes, rects = MappingProxyType(inputs), MappingProxyType(outputs), MappingProxyType(dists)
        self.operators.append(RectOperator(name, kind, reads, writes, result, rects, MappingProxyType(attrs or {})))

    def source(self) -> None:
        dim = self.dim(0)
        self.array(_IMAGE, dim, RectRole.INPUT, _split(dim, self.read(0)), _split(dim, self.own(0)))
        self.whole(_LABELS, (self.sizes.batch, 1, 1, 1), RectRole.INPUT)
        self.do("data", "source", {}, {"raw_data": _IMAGE, "labels": _LABELS}, dim, {})

    def layer(self, at: int) -> None:
        name, dim, place = f"L{at}", self.dim(at + 1), self.own(at + 1)
        maps, channels = dim[1], self.sizes.sides[at][0]
        for part, given in (
            (f"{name}.W", (maps, 1, 1, channels, *self.sizes.kernels[at], *dim[2:])),
            (f"{name}.b", (1, *dim[1:])),
        ):
            self.array(part, given, RectRole.PARAM, _split(given, place))
        self.whole(f"{name}.a", (1,), RectRole.PARAM)
        own = _split(dim, place)
        for step in ("filter", "filterA", "filterNL"):
            read = _split(dim, self.read(at + 1)) if step == "filterNL" else own
            self.array(f"{name}.{step}.output", dim, RectRole.ACTIVATION, read, own)
        before = f"L{at - 1}.filterNL.output" if at else _IMAGE
        self.do(
            f"{name}.filter", "locally_connected", {"input": before, "filters": f"{name}.W"},
            {"output": f"{name}.filter.output"}, dim, self.connected(at), {"stride": 1, "padding": 0},
        )  # fmt: skip
        self.do(
            f"{name}.filterA", "scalar_affine", {"input": f"{name}.filter.output", "a": f"{name}.a", "b": f"{name}.b"},
            {"output": f"{name}.filterA.output"}, dim, {"dist_result": own}, self.gain(),
        )  # fmt: skip
        self.do(
            f"{name}.filterNL", "nonlinearity", {"input": f"{name}.filterA.output"},
            {"output": f"{name}.filterNL.output"}, dim, {"dist_result": own},
        )  # fmt: skip

    def gain(self) -> dict[str, Any]:
        return {} if self.sizes.gain == "a*(x+b)" else {"gain": self.sizes.gain}

    def connected(self, at: int) -> dict[str, Box]:
        return {
            "dist_input": _split(self.dim(at), self.need(at)),
            "dist_filters": self.arrays[f"L{at}.W"].read_rect,
            "dist_result": _split(self.dim(at + 1), self.own(at + 1)),
        }

    def classifier(self) -> None:
        last = len(self.sizes.kernels)
        dim, place = self.dim(last), self.own(last)
        weights, logits = (self.sizes.classes, *dim[1:]), (self.sizes.batch, self.sizes.classes, 1, 1)
        self.array(_WEIGHTS, weights, RectRole.PARAM, _split(weights, place))
        for name, given, role in (
            (_LOGITS, logits, RectRole.ACTIVATION), (_PROBABILITY, logits, RectRole.ACTIVATION),
            (_LOSS, (1, 1, 1, 1), RectRole.LOSS), (_METRIC, (METRICS, 1, 1, 1), RectRole.METRIC),
        ):  # fmt: skip
            self.whole(name, given, role)
        self.do(
            "classifier.linear1", "linear", {"input": f"L{last - 1}.filterNL.output", "weights": _WEIGHTS},
            {"output": _LOGITS}, logits, {"read_rect": _split(dim, place), "write_rect": Box.full(logits)},
        )  # fmt: skip
        self.do(
            "classifier.softmax", "softmax_cross_entropy", {"input": _LOGITS, "labels": _LABELS},
            {"probability": _PROBABILITY, "output": _LOSS}, (1, 1, 1, 1), {"dist_result": Box.full((1, 1, 1, 1))},
        )  # fmt: skip
        metrics = (METRICS, 1, 1, 1)
        self.do(
            "classifier.evaluate", "evaluate", {"probability": _PROBABILITY, "labels": _LABELS},
            {"output": _METRIC}, metrics, {"dist_result": Box.full(metrics)},
        )  # fmt: skip
        self.do("classifier.evaluate.accuracy", "accuracy", {"input": _METRIC}, {}, (1,), {})

    def classifier_grad(self) -> None:
        last = len(self.sizes.kernels)
        dim, logits, weights = self.dim(last), self.arrays[_LOGITS].dim, self.arrays[_WEIGHTS]
        loss = self.arrays[_LOSS]
        self.array(f"{_LOSS}.grad", loss.dim, RectRole.GRAD, Box([(0, 0)] * 4), loss.write_rect)
        self.whole(f"{_LOGITS}.grad", logits, RectRole.GRAD)
        self.array(f"{_WEIGHTS}.grad", weights.dim, RectRole.GRAD, weights.read_rect, weights.read_rect)
        self.do(
            "classifier.softmax.grad", "softmax_cross_entropy_grad",
            {"output.delta": f"{_LOSS}.grad", "probability": _PROBABILITY, "labels": _LABELS},
            {"input.delta": f"{_LOGITS}.grad"}, loss.dim, {"dist_result": Box.full(logits)},
        )  # fmt: skip
        before = f"L{last - 1}.filterNL.output"
        self.do(
            "classifier.linear1.grad", "linear_grad",
            {"output.delta": f"{_LOGITS}.grad", "input": before, "weights": _WEIGHTS},
            {"weights.delta": f"{_WEIGHTS}.grad", "input.delta": f"{before}.grad"}, None,
            {"read_rect": Box.full(logits), "write_rect": _split(dim, self.own(last))},
        )  # fmt: skip

    def layer_grad(self, at: int) -> None:
        name, dim = f"L{at}", self.dim(at + 1)
        own = _split(dim, self.own(at + 1))
        for step in ("filterNL", "filterA", "filter"):  # what the next layer's halo adds to goes to its owner
            write = _split(dim, self.read(at + 1)) if step == "filterNL" else own
            self.array(f"{name}.{step}.output.grad", dim, RectRole.GRAD, own, write)
        for part in ("a", "b", "W"):
            param = self.arrays[f"{name}.{part}"]
            self.array(f"{param.name}.grad", param.dim, RectRole.GRAD, param.read_rect, param.read_rect)
        self.do(
            f"{name}.filterNL.grad", "nonlinearity_grad",
            {
                "output.delta": f"{name}.filterNL.output.grad", "input": f"{name}.filterA.output",
                "output": f"{name}.filterNL.output",
            },
            {"input.delta": f"{name}.filterA.output.grad"}, dim, {"dist_result": own},
        )  # fmt: skip
        inputs = {"output.delta": f"{name}.filterA.output.grad", "input": f"{name}.filter.output", "a": f"{name}.a"}
        if self.sizes.gain == "a*(x+b)":  # the gradient of a*x+b does not need b
            inputs["b"] = f"{name}.b"
        self.do(
            f"{name}.filterA.grad", "scalar_affine_grad", inputs,
            {"a.delta": f"{name}.a.grad", "b.delta": f"{name}.b.grad", "input.delta": f"{name}.filter.output.grad"},
            dim, {"dist_result": own}, self.gain(),
        )  # fmt: skip
        before = f"L{at - 1}.filterNL.output" if at else _IMAGE
        outputs = {"filters.delta": f"{name}.W.grad"}
        if at:  # nobody wants the gradient of the image
            outputs["input.delta"] = f"{before}.grad"
        self.do(
            f"{name}.filter.grad", "locally_connected_grad",
            {"output.delta": f"{name}.filter.output.grad", "input": before, "filters": f"{name}.W"}, outputs, dim,
            self.connected(at),
        )  # fmt: skip

    def update(self, name: str, param: str) -> None:
        of = self.arrays[param]
        inputs = {"params": param, "gradient": f"{param}.grad"}
        self.do(name, "update", inputs, {}, of.dim, {"dist_result": of.read_rect}, {"in_place": True})

    def zeros(self) -> Iterator[RectOperator]:
        for array in self.arrays.values():
            if array.role is RectRole.GRAD:
                outputs = MappingProxyType({"output": array.name})
                yield RectOperator(f"{array.name}.set_zero", "set_zero", MappingProxyType({}), outputs, array.dim)
