"""Chainer's functions as ATen operators, and how the shapes of their tensors hang together: one class each.

A function that is not here, or is used in a way that ATen has no name for, becomes an operator without a rule. That is
never an error: it runs whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ops import registered
from ...region import Slide
from ..form import Form
from .dump import ChainerFunction
from .shapes import Cut, Shape, Sizes, Sliding, SumOfSizes
from .slices import Cuts, parse_slices, spread_slices

BOOKKEEPING = {"_input_indexes_to_retain", "_output_indexes_to_retain", "_output_count", "rank", "lazy_grad_sum"}
Shapes = Sequence[Shape]  # of a function's inputs, then its output


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a tensor's dimensions: `n`, or with `free` as many as the function's first input, and `n` more."""

    n: int
    free: bool = False


IMAGE, MATRIX, VECTOR, SCALAR = Rank(4), Rank(2), Rank(1), Rank(0)
ALIKE, LESS = Rank(0, free=True), Rank(-1, free=True)


class Known:
    """A function of Chainer that ATen has too."""

    inputs: ClassVar[tuple[int, ...]] = (1,)  # how many it may have; none given: any number
    flat: ClassVar[bool] = False  # does it work on tensors of unknown shape?
    weighted: ClassVar[bool] = False  # is its second input a kernel?
    integer: ClassVar[tuple[int, ...]] = ()  # positions of class indices among its inputs
    fixed_ranks: ClassVar[tuple[Rank, ...]] = ()  # what `ranks` gives, where that is the same for every call
    fixed_least: ClassVar[int] = 0  # and `least`

    def applies(self, f: ChainerFunction, sizes: Sequence[int]) -> bool:
        """Is it used in a way that can be understood? `sizes`: bytes of its inputs, then its output."""
        return True

    def ranks(self, f: ChainerFunction) -> list[Rank]:
        """Of its inputs, then its output."""
        return list(self.fixed_ranks) or [ALIKE] * (len(f.inputs) + 1)

    def least(self, f: ChainerFunction) -> int:
        """How many dimensions its first input must have."""
        return self.fixed_least

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        """Post what must hold between the dimensions of its inputs and its output."""

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        """The operator; None if ATen has none that does the same."""
        raise NotImplementedError


class PointwiseFunction(Known):
    flat = True

    def __init__(self, op: str, **attrs: str):
        self.op, self.attrs = op, attrs  # ATen's attribute: Chainer's

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        for each in dims[:-1]:
            _join(sizes, each, dims[-1], f.outputs[0])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        attrs = {ours: f.number(theirs) for ours, theirs in self.attrs.items()}
        return Form(self.op, f"aten.{self.op}.default", ("self",), attrs)


class Add(PointwiseFunction):
    inputs = (2,)

    def applies(self, f: ChainerFunction, sizes: Sequence[int]) -> bool:
        return len(set(sizes)) == 1  # not where it broadcasts

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        return Form("add", "aten.add.Tensor", ("self", "other"))


class DropoutFunction(PointwiseFunction):
    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        p = f.number("dropout_ratio")
        if not 0 <= p < 1:
            raise f.attr_error("dropout_ratio", "at least 0 and below 1")
        return Form("dropout", "aten.dropout.default", ("input",), {"p": p, "train": True})


@dataclass(frozen=True, slots=True)
class Side:
    """The window along one axis."""

    stride: int
    pad: int
    dilation: int


def _sides(f: ChainerFunction) -> tuple[Side, Side]:
    h = Side(f.integer("sy", 1), f.integer("ph", 0), f.integer("dy", 1, 1))
    return h, Side(f.integer("sx", 1), f.integer("pw", 0), f.integer("dx", 1, 1))


def _slide(
    sizes: Sizes, f: ChainerFunction, larges: Sequence[int], smalls: Sequence[int], kernels: Sequence[int]
) -> None:
    cover = f.flag("cover_all", False)
    for side, large, small, kernel in zip(_sides(f), larges[2:], smalls[2:], kernels, strict=True):
        sizes.post(Sliding(large, small, kernel, side.stride, side.pad, side.dilation, cover, f.outputs[0]))


def _covers(f: ChainerFunction, shapes: Shapes, kernel: Sequence[int], ceil: bool = False) -> bool:
    """Do ATen's windows make an output of this size? With `cover_all`, Chainer may have one more."""
    sides = zip(_sides(f), shapes[0][2:], kernel, shapes[-1][2:], strict=True)
    return all(Slide(k, s.stride, s.pad, s.pad, s.dilation, ceil).count(n) == out for s, n, k, out in sides)


def _window_attrs(f: ChainerFunction) -> dict[str, Any]:
    sides = _sides(f)
    return {
        "stride": [s.stride for s in sides],
        "padding": [s.pad for s in sides],
        "dilation": [s.dilation for s in sides],
    }


class Convolution(Known):
    inputs = (2, 3)
    weighted = True
    transposed: ClassVar[bool] = False

    def ranks(self, f: ChainerFunction) -> list[Rank]:
        return [IMAGE, IMAGE, *[VECTOR] * (len(f.inputs) - 2), IMAGE]

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        self._channels(f, dims, sizes)
        _slide(sizes, f, dims[0], dims[-1], dims[1][2:])

    def _channels(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        """The kernel maps channels of `x` to channels of `y`, in groups."""
        (x, w, *bias, y), out = dims, f.outputs[0]
        sizes.join(x[0], y[0], out)
        for each in bias:
            sizes.join(each[0], y[1], out)
        # A transposed convolution's kernel has the channels of its input first, and splits those of its output.
        first, second = (x, y) if self.transposed else (y, x)
        sizes.join(w[0], first[1], out)
        if (groups := f.integer("groups", 1, 1)) == 1:
            sizes.join(w[1], second[1], out)
        else:
            sizes.post(SumOfSizes(second[1], (w[1],), out, groups))

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        if not _covers(f, shapes, shapes[1][2:]):
            return None
        attrs = _window_attrs(f) | {"groups": f.integer("groups", 1, 1)}
        return Form("conv2d", "aten.conv2d.default", _weighted(f, attrs), attrs)


class Deconvolution(Convolution):
    transposed = True

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        for dim, key in zip(dims[-1][2:], ("outh", "outw"), strict=True):
            sizes.put(dim, f.integer(key, 1), f.outputs[0])
        self._channels(f, dims, sizes)
        _slide(sizes, f, dims[-1], dims[0], dims[1][2:])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        x, w, y = shapes[0], shapes[1], shapes[-1]
        extra = []
        for side, n, k, out in zip(_sides(f), x[2:], w[2:], y[2:], strict=True):
            extra.append(out - ((n - 1) * side.stride - 2 * side.pad + side.dilation * (k - 1) + 1))
            if not 0 <= extra[-1] < max(side.stride, side.dilation):
                return None
        attrs = _window_attrs(f) | {"output_padding": extra, "groups": f.integer("groups", 1, 1)}
        return Form("conv_transpose2d", "aten.conv_transpose2d.input", _weighted(f, attrs), attrs)


def _weighted(f: ChainerFunction, attrs: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of operators with a weight; a bias that is not there is an attribute, as in capture."""
    if len(f.inputs) < 3:
        attrs["bias"] = None
    return ("input", "weight", "bias")[: len(f.inputs)]


class Pool(Known):
    fixed_ranks = (IMAGE, IMAGE)

    def __init__(self, op: str):
        self.op = op

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        x, y = dims
        _join(sizes, x[:2], y[:2], f.outputs[0])
        _slide(sizes, f, x, y, [sizes.new(f.integer(key, 1)) for key in ("kh", "kw")])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        kernel, ceil = [f.integer("kh", 1), f.integer("kw", 1)], f.flag("cover_all", False)
        if not _covers(f, shapes, kernel, ceil):  # ATen drops a last window that would lie in the padding only
            return None
        attrs = {"kernel_size": kernel} | _window_attrs(f) | {"ceil_mode": ceil}
        if self.op == "avg_pool2d":
            del attrs["dilation"]
        return Form(self.op, f"aten.{self.op}.default", ("self",), attrs)


class CropFunction(Known):
    def applies(self, f: ChainerFunction, sizes: Sequence[int]) -> bool:
        return parse_slices(f.text("slices")) is not None

    def _cuts(self, f: ChainerFunction) -> Cuts:
        return parse_slices(f.text("slices")) or ()

    def least(self, f: ChainerFunction) -> int:
        return sum(cut is not None for cut in self._cuts(f))

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        x, y = dims
        for whole, piece, cut in zip(x, y, spread_slices(self._cuts(f), len(x)), strict=True):
            if cut == (None, None):
                sizes.join(whole, piece, f.outputs[0])
            else:
                sizes.post(Cut(whole, piece, *cut, f.outputs[0]))

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        cuts = spread_slices(self._cuts(f), len(shapes[0]))
        ends = [slice(*cut).indices(n) for cut, n in zip(cuts, shapes[0], strict=True)]
        return Form("crop", "", ("self",), {"start": [a for a, _, _ in ends], "stop": [b for _, b, _ in ends]})


class ConcatFunction(Known):
    inputs = ()

    def _axis(self, f: ChainerFunction) -> int:
        return f.integer("axis", -32)

    def least(self, f: ChainerFunction) -> int:
        return max(self._axis(f) + 1, -self._axis(f))

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        *parts, y = dims
        axis = self._axis(f)
        for part in parts:
            for k, (a, b) in enumerate(zip(part, y, strict=True)):
                if k != axis % len(y):
                    sizes.join(a, b, f.outputs[0])
        sizes.post(SumOfSizes(y[axis], tuple(part[axis] for part in parts), f.outputs[0]))

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        args = tuple(f"tensors.{k}" for k in range(len(f.inputs)))
        return Form("cat", "aten.cat.default", args, {"dim": self._axis(f) % len(shapes[-1])})


class SoftmaxCrossEntropy(Known):
    inputs = (2,)
    integer = (1,)
    fixed_least = 2

    def ranks(self, f: ChainerFunction) -> list[Rank]:
        return [ALIKE, LESS, SCALAR if f.text("reduce") == "mean" else LESS]

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        x, labels, y = dims
        for each in (labels, y) if y else (labels,):
            _join(sizes, [x[0], *x[2:]], each, f.outputs[0])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        if not f.flag("normalize", True) or f.attrs.get("class_weight") is not None or f.text("reduce") != "mean":
            return None
        ignored = f.integer("ignore_label", -(1 << 31), -1)
        attrs = {"weight": None, "reduction": 1, "ignore_index": ignored}
        return Form("cross_entropy_loss", "aten.cross_entropy_loss.default", ("self", "target"), attrs)


class LinearFunction(Known):
    inputs = (2, 3)

    def ranks(self, f: ChainerFunction) -> list[Rank]:
        return [MATRIX, MATRIX, *[VECTOR] * (len(f.inputs) - 2), MATRIX]

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        x, w, *bias, y = dims
        for a, b in ((x[0], y[0]), (w[0], y[1]), (w[1], x[1]), *((each[0], y[1]) for each in bias)):
            sizes.join(a, b, f.outputs[0])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form:
        attrs: dict[str, Any] = {}
        return Form("linear", "aten.linear.default", _weighted(f, attrs), attrs)


class BatchNormalization(Known):
    inputs = (3,)
    fixed_ranks = (ALIKE, VECTOR, VECTOR, ALIKE)
    fixed_least = 2

    def relate(self, f: ChainerFunction, dims: Sequence[Sequence[int]], sizes: Sizes) -> None:
        x, gamma, beta, y = dims
        _join(sizes, x, y, f.outputs[0])
        if self._by_channel(f):
            _join(sizes, (x[1], x[1]), (gamma[0], beta[0]), f.outputs[0])

    @staticmethod
    def _by_channel(f: ChainerFunction) -> bool:
        return f.attrs.get("axis") is None and f.attrs.get("key_axis") in (None, [1])

    def form(self, f: ChainerFunction, shapes: Shapes) -> Form | None:
        if not self._by_channel(f):
            return None
        # The running statistics are no tensors of the dump; training does not read them.
        attrs = {"running_mean": None, "running_var": None, "training": True, "momentum": 0.1}
        attrs |= {"eps": f.number("eps"), "cudnn_enabled": False}
        return Form("batch_norm", "aten.batch_norm.default", ("input", "weight", "bias"), attrs)


KNOWN: Mapping[str, Known] = {
    "Convolution2DFunction": Convolution(),
    "Deconvolution2DFunction": Deconvolution(),
    "LinearFunction": LinearFunction(),
    "ReLU": PointwiseFunction("relu"),
    "Sigmoid": PointwiseFunction("sigmoid"),
    "Tanh": PointwiseFunction("tanh"),
    "LeakyReLU": PointwiseFunction("leaky_relu", negative_slope="slope"),
    "ELU": PointwiseFunction("elu", alpha="alpha"),
    "Add": Add("add"),
    "_ + _": Add("add"),
    "Dropout": DropoutFunction("dropout"),
    "MaxPooling2D": Pool("max_pool2d"),
    "AveragePooling2D": Pool("avg_pool2d"),
    "GetItem": CropFunction(),
    "Concat": ConcatFunction(),
    "SoftmaxCrossEntropy": SoftmaxCrossEntropy(),
    "BatchNormalization": BatchNormalization(),
}


def find_known(f: ChainerFunction, sizes: Sequence[int]) -> Known | None:
    """What Chainer's function is in ATen; None if there is nothing like it. `sizes`: bytes of all its tensors."""
    known = KNOWN.get(f.label)
    if known is None:
        return None
    if (known.inputs and len(f.inputs) not in known.inputs) or not f.inputs or len(f.outputs) != 1:
        wanted = " or ".join(map(str, known.inputs or ("any number of",)))
        raise f.error(f"it has {len(f.inputs)} inputs and {len(f.outputs)} outputs, not {wanted} and 1")
    return known if known.applies(f, sizes) else None


def opaque_form(f: ChainerFunction) -> Form:
    """An operator without a rule. Its name must not be one that has a rule for something else."""
    words = (
        re.sub(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+", "_", f.label).strip("_").lower()
        or "function"
    )
    op = words if words not in registered() else f"chainer_{words}"
    own = {key: item for key, item in f.attrs.items() if key not in BOOKKEEPING}
    return Form(op, f"chainer.{f.label}", tuple(f"inputs.{k}" for k in range(len(f.inputs))), own)


def _join(sizes: Sizes, a: Sequence[int], b: Sequence[int], tensor: int) -> None:
    for x, y in zip(a, b, strict=True):
        sizes.join(x, y, tensor)
