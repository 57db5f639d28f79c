"""What an operator is: a rule for boxes, a way to run on a box, a cost, and samples for the generic tests.

Rule O1  `reads` says, for every dimension of every input, which output dimension drives it and through
         which window. `None` as driver: the whole dimension is read, whatever the output box.
Rule O2  `run` gets exactly the boxes that `reads` asked for, clipped to their values, and returns exactly
         the output box. What was clipped is padding and is the operator's own business (`Place.pad`).
Rule O3  An operator without a rule returns None from `reads`: it runs whole, and planners see a barrier.
Rule O4  Backward is autograd over `run`: what it keeps alive is found by running it on tensors without data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..ir import Build, Node, TensorType
from ..region import POINT, Box, Whole, Window
from . import aten

T = TypeVar("T")
Seed = int | Tensor  # a tensor where a step is recorded: kernels read what it is then


@dataclass(frozen=True, slots=True)
class Read:
    """How one dimension of an input is read: from output dimension `dim`, through `window`."""

    dim: int | None
    window: Window


Reads = tuple[tuple[Read, ...], ...]  # per input, per dimension


@dataclass(frozen=True)
class Call:
    """A node with the types of what it reads and writes: all that an operator's rules need."""

    node: Node
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    @property
    def out(self) -> TensorType:
        return self.outputs[0]

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each tensor argument among the inputs."""
        return {i.arg: at for at, i in enumerate(self.node.inputs)}

    @cached_property
    def invoke(self) -> aten.TorchCall:
        """torch's own operator."""
        return aten.TorchCall(self.node)

    @cached_property
    def memo(self) -> dict[Hashable, Any]:
        """What an operator found out about boxes, for the next time that it runs on them."""
        return {}

    def attr(self, name: str, default: Any = None) -> Any:
        found = self.node.attrs.get(name)
        return default if found is None else found

    def arg(self, name: str) -> str | None:
        """The value read as argument `name`, if it is given."""
        return self.node.inputs[self.index[name]].value if name in self.index else None

    def dims(self, name: str = "dim") -> list[int]:
        """The dimensions of a reduction, counted from the front; none given means all."""
        found, rank = self.attr(name), len(self.inputs[0].shape)
        if found is None or found == []:
            return list(range(rank))
        return sorted(d % rank for d in (found if isinstance(found, list) else [found])) if rank else []

    def dim(self, name: str = "dim", default: int = 0) -> int:
        """A dimension attribute, counted from the front."""
        rank = len(self.inputs[0].shape)
        at = int(self.attr(name, default))
        return at + rank if at < 0 else at

    def tuple(self, name: str, length: int, default: int) -> tuple[int, ...]:
        """An attribute given per axis, or once for all of them, or left out."""
        found = self.attr(name)
        if found is None or found == []:
            return (default,) * length
        if isinstance(found, int):
            return (found,) * length
        return tuple(found) * length if len(found) == 1 else tuple(found)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tile lies: the output box, and for each input the box it reads before clipping."""

    out: Box
    reads: tuple[Box, ...]
    seed: Seed = 0  # of random operators
    device: torch.device | None = None  # where the tile runs, for operators that read nothing
    unread: bool = False  # nobody reads what is made: only its gradient is wanted, and its shape
    known: dict[str, Any] | None = field(default=None, compare=False)  # what tiles of one pass have in common

    def pad(self, call: Call, i: int = 0) -> list[tuple[int, int]]:
        """How far input `i`'s box sticks out of its value, per dimension."""
        shape = call.inputs[i].shape
        return [side.overhang(n) for side, n in zip(self.reads[i], shape, strict=True)]

    def once(self, call: Call, make: Callable[[], T]) -> T:
        """What is the same for all tiles of a node."""
        if self.known is None:
            return make()
        if call.node.name not in self.known:
            self.known[call.node.name] = make()
        found: T = self.known[call.node.name]
        return found

    def origin(self, call: Call, i: int, dim: int) -> int:
        """Global index of the first element of input `i`'s tile along `dim`."""
        return self.reads[i][dim].clip(call.inputs[i].shape[dim]).lo


@dataclass(frozen=True, slots=True)
class Sample:
    """One call for the generic tests: a function of tensors, and their shapes."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    note: str = ""
    integer: tuple[int, ...] = ()  # positions of class-index inputs, and
    classes: int = 0  # how many classes they choose from


class Op:
    """Base of all operators; the defaults describe an operator that runs whole."""

    pads: ClassVar[bool] = False  # does what sticks out of the input count as padding?
    dense: ClassVar[bool] = False  # does its arithmetic run at the machine's full rate, or wait for memory?
    by_channels: ClassVar[bool] = False  # does it make channels by the rows of its `weight`, of all channels?
    native: ClassVar[bool] = True  # does torch's own operator compute the same for whole tensors?
    remembers: ClassVar[tuple[str, ...]] = ()  # arguments that torch's own operator writes to
    random: ClassVar[bool] = False
    repeats: ClassVar[bool] = True  # are its kernels the same every time, whatever the seed?
    anywhere: ClassVar[bool] = False  # can it make any box along dimensions that no input drives?
    blind: ClassVar[bool] = False  # reads no input's content, so no gradient passes through it
    opaque: ClassVar[bool] = False  # is its backward a user's own, perhaps not linear?
    elementwise: ClassVar[bool] = False  # does each element of the output read one of each input, broadcast?
    view: ClassVar[bool] = False  # another look at its input's memory: makes no bytes
    reach: ClassVar[float] = 0.85  # the share of a GPU's memory rate at which it works
    serial: ClassVar[bool] = False  # does a CPU take its operations one by one?
    flops_each: ClassVar[float] = 1.0  # what `flops` gives, where that is the same for every call
    fresh_gradient: ClassVar[bool] = False  # is its input's gradient in memory that nothing else reads?
    gradient_alone: ClassVar[bool] = False  # can it be differentiated without being run (`Place.unread`)?

    def __init__(self, spatial: int = 0):
        self.spatial = spatial  # how many trailing dimensions of its first input are an image's

    def reads(self, call: Call) -> Reads | None:
        return None

    def run(self, call: Call, tiles: Sequence[Tensor], place: Place) -> Tensor:
        return self.run_native(call, tiles, place.device)

    def run_native(self, call: Call, tensors: Sequence[Tensor], device: torch.device | None) -> Tensor:
        """torch's own operator; what it would make elsewhere it makes on the device."""
        if device is not None and call.attr("device") is not None:
            return call.invoke(tensors, device=device)
        return call.invoke(tensors)

    def run_whole(self, call: Call, tensors: Sequence[Tensor], seed: Seed, device: torch.device) -> Tensor:
        """All of the output from whole inputs: by torch's own operator where that is the same."""
        if ("whole", device) not in call.memo:
            call.memo["whole", device] = self.is_native(call), *self._all_of(call, device)
        native, place, parts = call.memo["whole", device]
        if native:
            return self.run_native(call, tensors, device)
        if self.random:
            place = replace(place, seed=seed)
        return self.run(call, [t[part] for t, part in zip(tensors, parts, strict=True)], place)

    def _all_of(self, call: Call, device: torch.device) -> tuple[Place, list[tuple[slice, ...]]]:
        """Where all of the output lies, and what of the inputs it reads."""
        full = Box.full(call.out.shape)
        reads = self.needs(call, full) or tuple(Box.full(t.shape) for t in call.inputs)
        boxes = [box.clip(t.shape) for box, t in zip(reads, call.inputs, strict=True)]
        return Place(full, reads, 0, device), [box.slices for box in boxes]

    def is_native(self, call: Call) -> bool:
        """Does torch's own operator make all of the output from whole inputs?"""
        return self.native and not self.random and call.node.target.startswith("aten.")

    def writes(self, node: Node) -> tuple[str, ...]:
        """Values that torch's own operator writes to while it trains."""
        if not self.remembers or not node.attrs.get("training", node.attrs.get("use_input_stats")):
            return ()
        return tuple(i.value for i in node.inputs if i.arg in self.remembers)

    def flops(self, call: Call) -> float:
        """Floating point operations per element of the output."""
        return self.flops_each

    def rate(self, call: Call) -> float:
        """Where it is dense, the share of a GPU's arithmetic at which it works: here, on some dozens of channels."""
        return 0.4

    def lower(self, call: Call, build: Build, tiled: Collection[int]) -> str | None:
        """Emit simpler nodes that compute the same and return the name of their result, or None to stay as it is.
        `tiled` are the dimensions of the first input that lie on an axis of the image (or the batch)."""
        return None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return iter(())

    def needs(self, call: Call, out: Box) -> tuple[Box, ...] | None:
        """The boxes of the inputs that make `out`, not clipped."""
        if "reads" not in call.memo:
            call.memo["reads"] = self.reads(call)
        rule: Reads | None = call.memo["reads"]
        if rule is None:
            return None
        return tuple(Box(r.window.reads(*(out[r.dim] if r.dim is not None else (0, 1))) for r in dims) for dims in rule)


class Weighted(Op):
    """Element by element in its first input; the others, weights mostly, are read whole."""

    def reads(self, call: Call) -> Reads:
        return (pointwise(call.inputs[0].shape, call.out.shape), *(whole(t.shape) for t in call.inputs[1:]))


class Reduction(Op):
    """An operator that folds dimensions away, and can do so tile by tile.

    `partial` makes an accumulator from one tile, `combine` joins two and `combine_all` many, `finish` gives the result.
    In backward `gradient` gives the tile's share of the exact gradient; where that is not written out, it is the
    gradient of `surrogate(tile, total)`, a function of the tile, seeded with the result's. While folding, `Place.out`
    is the whole result.
    """

    binned: ClassVar[bool] = False  # local as well, but better folded where only a head follows

    def foldable(self, call: Call) -> bool:
        return True

    def beside(self, call: Call, box: Box) -> tuple[Box, ...]:
        """The boxes of further inputs that belong to a box of the first: `others` of `partial` and `surrogate`."""
        return ()

    def tied(self, call: Call) -> tuple[tuple[int, int, int], ...]:
        """Dimensions of further inputs that lie beside one of the first: (input, its dimension, the first's)."""
        return ()

    def partial(self, call: Call, tile: Tensor, place: Place, *others: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def combine(self, call: Call, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def combine_all(self, call: Call, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Join many, given one above the other."""
        if type(self).combine is Reduction.combine:
            return tuple(t.sum(0) for t in parts)
        each = zip(*(t.unbind() for t in parts), strict=True)
        return reduce(lambda a, b: self.combine(call, a, b), each)

    def finish(self, call: Call, total: tuple[Tensor, ...]) -> Tensor:
        return total[0]

    def surrogate(self, call: Call, tile: Tensor, total: tuple[Tensor, ...], place: Place, *others: Tensor) -> Tensor:
        return self.finish(call, self.partial(call, tile, place, *others))

    def gradient(
        self,
        call: Call,
        tile: Tensor,
        total: tuple[Tensor, ...],
        grad: Tensor,
        place: Place,
        *others: Tensor,
        onto: Tensor | None = None,
    ) -> Tensor:
        """The tile's gradient from the result's (`grad`), added to `onto`; the others' goes where autograd leads it."""
        leaf = tile.detach().requires_grad_()
        with torch.enable_grad():
            result = self.surrogate(call, leaf, total, place, *others)
            torch.autograd.backward(result, grad.to(result.dtype).reshape(result.shape))
        assert leaf.grad is not None
        return leaf.grad if onto is None else leaf.grad + onto


def whole(shape: Sequence[int]) -> tuple[Read, ...]:
    """Every dimension read whole: weights, scalars, whatever has no place in the image."""
    return tuple(Read(None, Whole(n, 1)) for n in shape)


def pointwise(shape: Sequence[int], out: Sequence[int]) -> tuple[Read, ...]:
    """Broadcasting: dimensions are matched from the back; size 1 against more is read whole."""
    shift = len(out) - len(shape)
    return tuple(
        Read(k + shift, POINT) if n == out[k + shift] and n != 1 else Read(None, Whole(n, 1))
        for k, n in enumerate(shape)
    )


def imagelike(call: Call, windows: Sequence[Window]) -> tuple[Read, ...]:
    """The data input of convolution-like operators: batch by batch, all channels, windows on the image axes."""
    rank, axes = len(call.inputs[0].shape), len(windows)
    lead = [Read(d, POINT) for d in range(rank - axes - 1)]
    channels = call.inputs[0].shape[rank - axes - 1]
    return (*lead, Read(None, Whole(channels, 1)), *(Read(rank - axes + a, w) for a, w in enumerate(windows)))


def along(call: Call, dims: Sequence[int], keep: bool = True) -> tuple[Read, ...]:
    """Dimensions `dims` of the first input read whole, the others one by one; `keep`: they stay in the output."""
    gone = {d % len(call.inputs[0].shape) for d in dims}
    reads, at = [], 0
    for k, n in enumerate(call.inputs[0].shape):
        reads.append(Read(None, Whole(n, 1)) if k in gone else Read(at, POINT))
        at += keep or k not in gone
    return tuple(reads)
