"""What `--slow` adds: more random examples, and all combinations of what a test is run with.

Without it every value is met with every value of each other parameter, or all but, yet not with every pair of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

slow = False  # set before tests are collected


def often(usual: int, thorough: int) -> int:
    """How many random examples."""
    return thorough if slow else usual


def crossed(*factors: Iterable[Any], every: int = 2) -> list[Any]:
    """Values for `parametrize`, of which one in `every` is run and all with --slow: neighbours differ in which. A value
    that is a tuple stands for several parameters, one of `pytest.param` brings its marks."""
    found = []
    for indexed in product(*map(enumerate, factors)):
        each = [_values(value) for _, value in indexed]
        marks = [mark for _, more in each for mark in more]
        if sum(at for at, _ in indexed) % every:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(*(item for values, _ in each for item in values), marks=marks))
    return found


def _values(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    if isinstance(value, type(pytest.param())):
        return tuple(value.values), tuple(value.marks)
    return (value if isinstance(value, tuple) else (value,)), ()
