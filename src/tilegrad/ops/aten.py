"""Call an ATen operator from a node: tensors from its inputs, the rest from its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..errors import InternalError
from ..ir import Node, TensorType

_ENUMS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}


def encode(item: Any) -> Any:
    """An argument of an ATen call as JSON: torch's own types become `{"dtype": "float32"}` and the like."""
    for key, cls in _ENUMS.items():
        if isinstance(item, cls):
            return {key: str(item).removeprefix("torch.")}
    if isinstance(item, list | tuple):
        return [encode(each) for each in item]
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, complex):
        return {"complex": [item.real, item.imag]}
    raise TypeError(f"cannot write {type(item).__name__} as a plain attribute")


def decode(item: Any) -> Any:
    if isinstance(item, list):
        return [decode(each) for each in item]
    if isinstance(item, dict):
        ((key, text),) = item.items()
        if key == "complex":
            return complex(*text)
        return torch.device(text) if key == "device" else getattr(torch, text)
    return item


@lru_cache(maxsize=4096)
def overload(target: str) -> Any:
    """`"aten.conv2d.default"` -> the callable."""
    try:
        namespace, base, name = target.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), base), name)
    except (ValueError, AttributeError):
        raise InternalError(f"'{target}' is not an operator of torch {torch.__version__}") from None


class TorchCall:
    """A node's own operator, ready to be called with tensors again and again: all else is looked up once."""

    def __init__(self, node: Node):
        self.function = overload(node.target)
        self.attrs: dict[str, Any] = {name: decode(value) for name, value in node.attrs.items()}
        self.pick = self.attrs.pop("output", None)  # which result of an operator that has several
        self.lists: dict[str, list[int | None]] = {}
        self.single: list[tuple[str, int]] = []
        for at, slot in enumerate(node.inputs):
            base, _, place = slot.arg.partition(".")
            if place:
                found = self.lists.setdefault(base, [])
                found += [None] * (int(place) - len(found))  # what was left out: x[:, index]
                found.append(at)
            else:
                self.single.append((base, at))
        arguments = self.function._schema.arguments
        self.first = arguments[0].name if arguments else ""  # some operators take `self` by position only

    def __call__(self, tensors: Sequence[Tensor], **replace: Any) -> Any:
        """`replace` overrides attributes (a shape, say, that depends on the tile)."""
        kwargs = {**self.attrs, **replace}
        for name, at in self.single:
            kwargs[name] = tensors[at]
        for name, places in self.lists.items():
            kwargs[name] = [None if at is None else tensors[at] for at in places]
        head = (kwargs.pop(self.first),) if self.first in kwargs else ()
        result = self.function(*head, **kwargs)
        return result if self.pick is None else result[self.pick]


def call(node: Node, tensors: Sequence[Tensor], **replace: Any) -> Any:
    """Run the node's own operator once."""
    return TorchCall(node)(tensors, **replace)


def natural_dtype(node: Node, inputs: Sequence[TensorType]) -> str | None:
    """The dtype of what the operator gives by itself, without autocast; None where it does not take these inputs."""
    blanks = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in inputs]
    off = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]
    on_meta = {"device": torch.device("meta")} if node.attrs.get("device") is not None else {}
    try:
        with off[0], off[1], torch.no_grad():
            return str(call(node, blanks, **on_meta).dtype).removeprefix("torch.")
    except (RuntimeError, NotImplementedError):  # mixed dtypes, mostly
        return None


def is_pointwise(target: str) -> bool:
    """torch itself tags the operators that work element by element."""
    return is_known(target) and torch.Tag.pointwise in overload(target).tags


def is_known(target: str) -> bool:
    """Is it an operator of this torch?"""
    try:
        return target.startswith("aten.") and bool(overload(target))
    except InternalError:
        return False


def is_random(node: Node) -> bool:
    """torch itself tags the operators that draw from a generator; some only do with dropout on (attention, LSTM)."""
    switches = _switches(node.target)
    return switches is not None and all(node.attrs.get(name) for name in switches)


@lru_cache(maxsize=4096)
def _switches(target: str) -> tuple[str, ...] | None:
    """The arguments of an operator without which it does not draw; None for one that never does."""
    if not is_known(target) or torch.Tag.nondeterministic_seeded not in overload(target).tags:
        return None
    names = (argument.name for argument in overload(target)._schema.arguments)
    return tuple(name for name in names if name in ("dropout_p", "dropout", "train", "training"))
