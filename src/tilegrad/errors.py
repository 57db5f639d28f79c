"""Every error tilegrad raises on purpose, and how it reads.

    TilegradError
    ├── InputError        what the caller gave cannot be used: a ValueError      (command line: exit code 2)
    │   ├── ModelError    the model file, its factory or its shapes
    │   ├── CaptureError  what the model does cannot be captured
    │   ├── GridError     tiles, axes, modes
    │   └── FormatError   a file that cannot be read
    ├── BudgetError       nothing fits the memory budget: a ValueError
    ├── RunError          a step that began cannot go on: a RuntimeError
    └── InternalError     a rule of ours is broken, please report: a RuntimeError

A message says what, then where, then what to try. Errors carry their parts as fields. Python's own kinds are mixed in
below, so that a handler for RuntimeErrors (out of memory, say) never catches a typo.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TilegradError(Exception):
    """Base of all errors of this package."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None):
        self.what, self.where, self.hint = what, where, hint
        super().__init__(format_error(what, where, hint))


def format_error(what: str, where: str | None, hint: str | None) -> str:
    lines = [what]
    if where:
        lines.append(f"  at   {where}")
    if hint:
        lines.append(f"  try  {hint}")
    return "\n".join(lines)


class InputError(TilegradError, ValueError):
    """What the caller gave cannot be used."""


class ModelError(InputError):
    """The model file, its factory, or the shapes given to it."""


class CaptureError(InputError):
    """What the model does cannot be captured."""


class GridError(InputError):
    """Tiles, axes or modes that do not fit the network."""


class FormatError(InputError):
    """A file or text that cannot be read."""


class BudgetError(TilegradError, ValueError):
    """Nothing fits the memory budget. `least_bytes`: the smallest budget that works, where one is known."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None, least_bytes: int | None = None):
        super().__init__(what, where=where, hint=hint)
        self.least_bytes = least_bytes


class RunError(TilegradError, RuntimeError):
    """A step that began cannot go on."""


class InternalError(TilegradError, RuntimeError):
    """A rule of ours is broken: please report it."""


def one_of(given: str, offers: Iterable[str]) -> str:
    """What to try instead of a word that is none of these: the one that was meant, if it is near; else any of them."""
    names = {offer.lower().lstrip("-"): offer for offer in offers}  # all options are alike in their dashes
    close = difflib.get_close_matches(str(given).lower().lstrip("-"), names, 1)
    return f"did you mean '{names[close[0]]}'?" if close else f"one of {', '.join(names.values())}"
