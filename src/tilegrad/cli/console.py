"""Where tables go: the terminal at its width, or plain text that is never cut when piped."""

from __future__ import annotations

import sys

from rich.console import Console


def make_console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=200)
