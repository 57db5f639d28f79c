"""What an importer makes of another framework's operator: an operator of ours, by ATen's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Form:
    """What a node needs to be an operator of ours: its name, its tensor arguments' names, its attributes."""

    op: str
    target: str
    args: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
