"""Where tables go: the terminal at its width, or plain text that is cut only where `COLUMNS` says so when piped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console

WIDE = 200
_QUIET = ContextVar("tilegrad_quiet", default=False)


class PipedConsole(Console):
    """One whose reader may go."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console() -> Console:
    columns = os.environ.get("COLUMNS", "")
    told = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    return PipedConsole(width=told or (None if sys.stdout.isatty() else WIDE), quiet=_QUIET.get())


def is_quiet() -> bool:
    return _QUIET.get()


def say(text: str) -> None:
    """A line about what was done."""
    if not _QUIET.get():
        print(text, flush=True)


@contextmanager
def set_quiet(quiet: bool) -> Iterator[None]:
    token = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(token)
