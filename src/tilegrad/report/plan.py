"""A planning as tables: the candidates, the chosen plan, and what is alive at its peak."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..planners import Candidate
from ..units import format_bytes
from .terminal import make_table

MOST_ALIVE = 10


def print_candidates(
    items: Sequence[Candidate], chosen: Candidate, plain: Candidate, budget: int, console: Console
) -> None:
    """All that was tried, the fastest that fits marked."""
    names = ("", "planner", "how", "peak", "time", "extra time", "to and from host")
    table = make_table(f"plans for a budget of {format_bytes(budget)}", names, left=names[:3], no_wrap=True)
    table.columns[2].no_wrap = False
    for item in sorted(items, key=lambda i: (i.peak_bytes > budget, i.time_s)):
        fits = item.peak_bytes <= budget
        mark = "->" if item is chosen else "" if fits else "x"
        table.add_row(
            mark,
            item.planner,
            Text(item.detail),
            format_bytes(item.peak_bytes),
            _seconds(item.time_s),
            f"{item.time_s / plain.time_s - 1:+.1%}" if plain.time_s else "",
            format_bytes(item.host_bytes) if item.host_bytes else "-",
            style="bold" if item is chosen else "" if fits else "dim",
        )
    console.print(table)


def print_peak(chosen: Candidate, console: Console) -> None:
    """What is alive at the peak, and the addresses."""
    memory = chosen.memory
    if memory is None:
        return
    table = make_table("alive at the peak", ("value", "bytes"), left=("value",), no_wrap=True)
    table.add_column("made by")
    table.add_row("(inputs, parameters and what else is always there)", format_bytes(memory.resident_bytes), "")
    for item in memory.alive[:MOST_ALIVE]:
        table.add_row(Text(item.value), format_bytes(item.bytes), Text(item.source))
    rest = memory.alive[MOST_ALIVE:]
    if rest:
        table.add_row(f"({len(rest)} more)", format_bytes(sum(item.bytes for item in rest)), "")
    console.print(table)
    layout = chosen.layout
    if layout is not None:
        exact = "as small as can be" if layout.exact else f"{layout.excess:.2%} over what is alive at once"
        range_bytes = format_bytes(layout.range_bytes)
        console.print(f"addresses   {range_bytes} would do for what comes and goes: {exact}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"
