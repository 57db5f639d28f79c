"""Calls of a module, and what was made for them: a plan is used only for what it was made for.

A call is its arguments' structure (names, order, nesting), the types of its tensors and all its other values, what
needs a gradient, and torch's modes. Beside the call the module's own state counts (`Snapshot`), since a capture bakes
it in. What was made longest ago and not used since goes when there are too many.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import CaptureError, InputError, RunError, TilegradError
from ..images import ImageSource, is_array, of_array
from ..importers import Captured, argument_names, autocast_dtype, device_of, forward_line, key_of, leaves, take
from ..torch_private import transforms_active

T = TypeVar("T")
MOST = 32  # plans that are kept
OFTEN = 4  # captures of one call, from which on the log says why
_log = logging.getLogger("tilegrad")


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: its arguments as a tree over tensors, and what plans are kept under."""

    tree: Any = field(repr=False)
    flat: Sequence[Any] = field(repr=False)  # its tensors
    names: Sequence[str]  # what they are called
    key: Any = field(repr=False)
    device: torch.device  # where it runs
    streamed: bool = False  # are outputs written elsewhere, box by box?

    @property
    def as_stream(self) -> ModuleCall:
        return replace(self, key=("streamed", self.key), streamed=True)

    @property
    def away(self) -> list[int]:
        """Which of them are images that lie elsewhere: not in memory, or on the host of a GPU that runs the call."""
        return [at for at, t in enumerate(self.flat) if isinstance(t, ImageSource) or on_host(t, self.device)]

    @property
    def whole(self) -> list[Any]:
        """Its tensors, where images are read as a whole."""
        away = frozenset(self.away)
        return [item.to(self.device) if at in away else item for at, item in enumerate(self.flat)]

    @property
    def blank(self) -> list[Any]:
        """Its tensors, where images are without data."""
        return [without_data(item) if isinstance(item, ImageSource) else item for item in self.flat]

    @classmethod
    def of(
        cls,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        describe: Mapping[type, Callable[[Any], Any]] | None = None,
    ) -> ModuleCall:
        """`describe`: what counts of other kinds of tensors than torch's."""
        _check_modes()
        flat, names = list[Any](), list[str]()
        args, kwargs = tuple(map(opened, args)), {name: opened(item) for name, item in kwargs.items()}
        tree = take((args, _ordered(module, kwargs)), flat, names=names, kinds=(Tensor, ImageSource, *(describe or {})))
        for item in leaves(tree):
            if isinstance(item, Iterator):
                what = f"a {type(item).__name__} as an argument would be used up by the capture"
                raise InputError(what, where=type(module).__name__, hint="a list, or a tensor")
        for item in flat:
            if isinstance(item, Tensor) and type(item) not in (Tensor, nn.Parameter):
                what = f"a {type(item).__name__}, which is a subclass of Tensor, as an argument"
                raise InputError(what, where="the arguments", hint="x.as_subclass(torch.Tensor)")
        known: Mapping[type, Callable[[Any], Any]] = {ImageSource: _source_key, **(describe or {})}
        device = device_of(module, flat)
        tensors = tuple(known[type(t)](t) if type(t) in known else _tensor_key(t, device) for t in flat)
        key = key_of(tree), tensors, torch.is_grad_enabled(), device, autocast_dtype(device), _defaults()
        return cls(tree, flat, argument_names(module, names), key, device)


def _defaults() -> tuple[Any, ...]:
    """Of torch's modes, what models ask for."""
    return torch.get_default_dtype(), torch.is_inference_mode_enabled()


def _check_modes() -> None:
    if transforms_active():
        raise RunError(
            "a tiled module cannot run inside torch.func transforms (grad, vmap, jvp, …)",
            hint="loss.backward() or torch.autograd.grad, or the module without tilegrad.tile",
        )


def _ordered(module: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the signature has them: f(a=1, b=2) is f(b=2, a=1)."""
    if len(kwargs) < 2:
        return dict(kwargs)
    try:
        order = {name: at for at, name in enumerate(inspect.signature(module.forward).parameters)}
    except (TypeError, ValueError):  # a forward that hides its signature
        order = {}
    return dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))


def on_host(item: Any, device: torch.device) -> bool:
    """Is it an image that is read box by box from there? What gets a gradient is not, nor are numbers."""
    image = isinstance(item, Tensor) and item.dim() > 2 and not item.requires_grad
    return image and item.device.type == "cpu" and device.type == "cuda"


def _tensor_key(tensor: Tensor, device: torch.device) -> tuple[Any, ...]:
    where = "host" if on_host(tensor, device) else ""
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.stride(), where


def _source_key(source: ImageSource) -> tuple[Any, ...]:
    source.check_scaled()
    return tuple(source.shape), source.dtype, "away"


def opened(item: Any) -> Any:
    """An array on disk (zarr's, h5py's, a memory map) as an image of which boxes are read; all else as it is."""
    here = isinstance(item, Tensor | ImageSource | np.generic | nn.Module)
    here |= isinstance(item, np.ndarray) and not isinstance(item, np.memmap)
    here |= hasattr(item, "__torch_function__")  # a part of a mesh
    return item if here or not is_array(item) or len(item.shape) < 2 else of_array(item)


def without_data(source: ImageSource) -> Tensor:
    return torch.empty(source.shape, dtype=source.dtype, device="meta")


@contextlib.contextmanager
def explained(module: nn.Module) -> Iterator[None]:
    """Whatever goes wrong while planning is ours, with its cause."""
    try:
        with torch.autograd.set_detect_anomaly(False):  # there is no data to look at yet
            yield
    except (TilegradError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CaptureError(
            f"this model cannot be planned: {reason}",
            where=forward_line(module),
            hint='mode="none" runs it as it is; please report it',
        ) from error


class Calls(Generic[T]):
    """What was made for calls, the least recently used first."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[Any, Captured, T]] = OrderedDict()
        self._count: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._made)

    def find(self, call: ModuleCall) -> T | None:
        for number in reversed(self._made):
            key, captured, made = self._made[number]
            if key == call.key and captured.start is not None and captured.start.holds():
                self._made.move_to_end(number)
                return made
        return None

    def add(self, call: ModuleCall, made: T, captured: Captured) -> None:
        self._warn(call, captured)
        self._made[max(self._made, default=0) + 1] = (call.key, captured, made)
        while len(self._made) > MOST:
            self._made.popitem(last=False)

    def _warn(self, call: ModuleCall, captured: Captured) -> None:
        """Say once what makes the same call be captured again and again."""
        self._count[call.key] = self._count.get(call.key, 0) + 1
        if self._count[call.key] != OFTEN:
            return
        earlier = [c.start for key, c, _ in self._made.values() if key == call.key and c.start is not None]
        found = [what for start in earlier[-1:] if (what := start.difference()) is not None]
        _log.warning(
            "the same call is captured for the %dth time, because %s changes from call to call; a buffer "
            "(register_buffer) or an input would not have to be captured again",
            OFTEN,
            f"'{found[0]}'" if found else "the module's state",
        )
