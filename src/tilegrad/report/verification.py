"""A verification as a table, one row per tensor and the verdict last, and as a page with both steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ..modules.verification import Difference, Verification
from ..units import format_bytes, format_seconds
from .html_data import drawn_bytes, drawn_seconds
from .page import Column, Drawn, Fact, Page, Table
from .terminal import make_table


def print_differences(rows: Sequence[Difference], console: Console, title: str) -> None:
    names = ("tensor", "differ", "of", "largest absolute", "largest relative")
    table = make_table(title, names, left=("tensor",), no_wrap=True)
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
    times = f"plain {format_seconds(plain_s)}   tiled {format_seconds(tiled_s)} ({tiled_s / plain_s:.2f} x)"
    console.print(f"time of the step         {times}")


def verification_page(found: Verification, title: str) -> Page:
    """The verdict, every tensor, and where time and memory went in both steps."""
    facts = [Fact("verdict", "equal" if found.ok else "different", str(found))]
    if found.profiles is not None:
        for label, cost, profile in zip(("plain", "tiled"), (found.plain, found.tiled), found.profiles, strict=True):
            own = f"{format_bytes(cost.peak_bytes)} of it beyond parameters and inputs"
            facts.append(Fact(f"peak, {label}", format_bytes(drawn_bytes(profile)), own))
            facts.append(Fact(f"time, {label}", format_seconds(drawn_seconds(profile)), "while it is recorded"))
    columns = (
        Column("tensor"),
        Column("differ", "count"),
        Column("of", "count"),
        Column("largest absolute", "rate"),
        Column("largest relative", "rate"),
    )
    rows = [(d.name, d.differ, d.elements, d.max_absolute, d.max_relative) for d in found.differences]
    profiles: tuple[Drawn, ...] = ()
    if found.profiles is not None:
        profiles = (Drawn("tiled", found.profiles[1]), Drawn("plain", found.profiles[0]))
    return Page(
        title=title,
        summary="One training step, plain and tiled, compared tensor by tensor and recorded.",
        facts=tuple(facts),
        notes=found.notes,
        tables=(Table("Tensors", columns, rows, frozenset(i for i, d in enumerate(found.differences) if d.differ)),),
        profiles=profiles,
    )
