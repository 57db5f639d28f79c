"""A verification as a table: one row per tensor, the verdict last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table

from ..units import format_bytes


class Row(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def differ(self) -> int: ...
    @property
    def max_absolute(self) -> float: ...
    @property
    def max_relative(self) -> float: ...


def print_differences(rows: Sequence[Row], console: Console, title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("tensor", no_wrap=True)
    for column in ("differ", "of", "largest absolute", "largest relative"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        style = "bold red" if row.differ else ""
        absolute, relative = f"{row.max_absolute:.2e}", f"{row.max_relative:.2e}"
        table.add_row(row.name, str(row.differ), str(row.elements), absolute, relative, style=style)
    console.print(table)


def print_costs(plain: tuple[int, float], tiled: tuple[int, float], console: Console) -> None:
    (plain_bytes, plain_s), (tiled_bytes, tiled_s) = plain, tiled
    share = tiled_bytes / plain_bytes if plain_bytes else 0.0
    peaks = f"plain {format_bytes(plain_bytes)}   tiled {format_bytes(tiled_bytes)} ({share:.1%})"
    console.print(f"peak bytes of the step   {peaks}")
    console.print(f"time of the step         plain {plain_s:.3f} s   tiled {tiled_s:.3f} s ({tiled_s / plain_s:.2f} x)")
