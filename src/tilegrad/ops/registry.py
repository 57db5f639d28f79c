"""Find the operator of a node. Every module of this folder is imported; a name can be taken once."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

from ..errors import InternalError
from ..ir import Node
from . import aten
from .base import Op
from .seeded import Seeded

_OPS: dict[str, Op] = {}
_OPAQUE, _SEEDED = Op(), Seeded()


def op(*names: str) -> Callable[[type[Op]], type[Op]]:
    """Register an operator class under its ATen base names. A trailing 1d, 2d or 3d says how many of the last
    dimensions of its input are an image's."""

    def register(cls: type[Op]) -> type[Op]:
        for name in names:
            if name in _OPS:
                raise InternalError(f"operator '{name}' is registered by both {type(_OPS[name])} and {cls}")
            _OPS[name] = cls(int(name[-2]) if re.fullmatch(r".*[123]d", name) else 0)
        return cls

    return register


@cache
def _load() -> None:
    package = __package__ or ""
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def registered() -> dict[str, Op]:
    """All operators by name."""
    _load()
    return dict(_OPS)


def find(node: Node) -> Op:
    """The node's operator; one that torch tags as pointwise needs no entry, and the rest runs whole (from a seed of
    its own, if it draws)."""
    _load()
    found = _OPS.get(node.op)
    if (found is None or not found.random) and aten.is_random(node):
        return _SEEDED
    if found is not None:
        return found
    if node.target and aten.is_pointwise(node.target):
        return _OPS["pointwise"]
    return _OPAQUE
