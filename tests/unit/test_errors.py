"""The exception tree, and how its messages read."""

from __future__ import annotations

import pickle
import re

import pytest
import torch

import tilegrad.errors as errors
from tilegrad.errors import InputError, TilegradError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TilegradError)]


@pytest.mark.parametrize(
    ("where", "hint", "text"),
    [
        (None, None, "no tiling fits"),
        ("conv2d 'a' (net.py:3)", None, "no tiling fits\n  at   conv2d 'a' (net.py:3)"),
        (None, 'budget="2GiB"', 'no tiling fits\n  try  budget="2GiB"'),
        ("a", "b", "no tiling fits\n  at   a\n  try  b"),
    ],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_what_where_and_what_to_try(cls: type[TilegradError], where: str | None, hint: str | None, text: str) -> None:
    error = cls("no tiling fits", where=where, hint=hint)
    assert str(error) == text
    assert (error.what, error.where, error.hint) == ("no tiling fits", where, hint)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_crosses_processes(cls: type[TilegradError]) -> None:
    error = cls("what", where="where", hint="hint")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert str(back) == str(error) and vars(back) == vars(error)


def test_the_least_budget_crosses_processes() -> None:
    back = pickle.loads(pickle.dumps(errors.BudgetError("what", hint="hint", least_bytes=7)))
    assert (back.least_bytes, str(back)) == (7, "what\n  try  hint")


def test_the_tree_is_as_drawn() -> None:
    """Each line of the drawing is a class, below the class it is drawn under."""
    drawn = re.findall(r"^    (.*?)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: dict[int, str] = {}
    tree = {}
    for indent, name in drawn:
        parents[len(indent)] = name
        above = [depth for depth in parents if depth < len(indent)]
        tree[name] = parents[max(above)] if above else None
    assert tree == {c.__name__: c.__bases__[0].__name__ if c is not TilegradError else None for c in CLASSES}


def test_bad_input_is_one_kind() -> None:
    """What a caller may catch as one: the budget is not among them, since there the input is good."""
    assert {c.__name__ for c in CLASSES if issubclass(c, InputError)} == {
        "InputError",
        "ModelError",
        "CaptureError",
        "GridError",
        "FormatError",
    }


def test_python_knows_them_too() -> None:
    """As drawn: what was asked for is a ValueError, what happens on the way a RuntimeError, and none is both."""
    drawn = dict(re.findall(r"^    .*?(\w+Error)\b.*: a (\w+Error)\b", errors.__doc__ or "", re.MULTILINE))
    assert set(drawn.values()) == {"ValueError", "RuntimeError"}
    for cls in CLASSES:
        marks = {drawn[base.__name__] for base in cls.__mro__ if base.__name__ in drawn}
        builtin = {kind.__name__ for kind in (ValueError, RuntimeError) if issubclass(cls, kind)}
        assert builtin == marks, cls
        assert len(builtin) == (0 if cls is TilegradError else 1), cls


@pytest.mark.parametrize("cls", [c for c in CLASSES if issubclass(c, ValueError)])
def test_a_handler_for_memory_does_not_catch_what_was_asked_for(cls: type[TilegradError]) -> None:
    assert not issubclass(cls, (RuntimeError, MemoryError, OSError, torch.OutOfMemoryError))


def test_every_class_says_what_it_is_for() -> None:
    assert all((c.__doc__ or "").endswith(".") for c in CLASSES)
