"""Tables and lines for a terminal, in which no name can steer it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..units import printable


def make_table(title: str | Text, names: Iterable[str], left: Collection[str] = (), **column: Any) -> Table:
    """A table with these columns, of which those in `left` are texts, the others figures. `column`: how rich shows
    them."""
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", **column)
    return table


def plain(text: str) -> Text:
    """A name as it is: no markup, no control characters."""
    return Text(printable(text))


def print_line(console: Console, text: str) -> None:
    console.print(plain(text), highlight=False, soft_wrap=True)
