"""Stores by name, found in this folder."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from ...errors import InputError
from .base import Near as Near
from .base import Part as Part
from .base import Slot as Slot
from .base import ValueStore as ValueStore


@cache
def stores() -> dict[str, type[ValueStore]]:
    for found in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{found.name}")
    return {kind.name: kind for kind in sorted(ValueStore.__subclasses__(), key=lambda kind: kind.name)}


def let_go() -> None:
    for kind in stores().values():
        kind.let_go()


def make_store(name: str) -> ValueStore:
    if name not in stores():
        raise InputError(f"there is no store '{name}'", hint=f"one of {', '.join(sorted(stores()))}")
    return stores()[name]()
