"""Something to be made by name, with options: a model, an optimizer, a schedule."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError

_CALL = re.compile(r"(.+?)\((\s*|\s*\w+\s*=.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Recipe:
    """`AdamW(lr=0.001)`, or `{name = "AdamW", lr = 0.001}`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


def parse_recipe(given: Any) -> Recipe:
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return Recipe(given["name"], {key: value for key, value in given.items() if key != "name"})
    if isinstance(given, str) and given.strip():
        match = _CALL.fullmatch(given.strip())
        if match is None:
            return Recipe(given.strip())
        try:
            call = ast.parse(f"recipe({match[2]})", mode="eval").body
            assert isinstance(call, ast.Call) and not call.args
            return Recipe(match[1].strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
        except (SyntaxError, ValueError, AssertionError):
            pass  # said below
    hint = 'a name with options, such as "AdamW(lr=0.001)" or {name = "AdamW", lr = 0.001}'
    raise InputError(f"'{given}' cannot be made", hint=hint)
