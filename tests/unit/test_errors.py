"""The exception tree, and how its messages read."""

from __future__ import annotations

import pickle
import re

import pytest

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


def test_the_tree_is_as_drawn() -> None:
    """Each line of the drawing is a class, below the class it is drawn under."""
    drawn = re.findall(r"^    (.*?)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: dict[int, str] = {}
    tree = {}
    for indent, name in drawn:
        parents[len(indent)] = name
        above = [depth for depth in parents if depth < len(indent)]
        tree[name] = parents[max(above)] if above else None
    assert tree == {c.__name__: c.__base__.__name__ if c is not TilegradError else None for c in CLASSES}


def test_bad_input_is_one_kind() -> None:
    """The command line ends with code 2 for these, and only these."""
    assert {c.__name__ for c in CLASSES if issubclass(c, InputError)} == {
        "InputError",
        "ModelError",
        "CaptureError",
        "GridError",
        "FormatError",
    }


def test_every_class_says_what_it_is_for() -> None:
    assert all((c.__doc__ or "").endswith(".") for c in CLASSES)
