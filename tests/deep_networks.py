"""Reference networks for tests that plan and run every one of them: the deepest take a minute each, on demand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

DEEP = ("densenet121", "efficientnet_b0", "resnet34")


def each(names: Iterable[str]) -> list[Any]:
    """`--slow` for the deepest."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in DEEP else name for name in names]
