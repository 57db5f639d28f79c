"""Plannings as tables: the candidates, and what is alive at the chosen one's peak; of several budgets a row each, and
time against memory drawn in characters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ..planners import Candidate, Planning
from ..units import format_bytes, format_extra, format_predicted
from .curve import Curve, in_words
from .terminal import make_table

MOST_ALIVE = 10
ROWS, MOST_COLUMNS = 12, 72  # of the curve
ASCII = str.maketrans({"●": "o", "·": ".", "─": "-", "│": "|", "┤": "+", "└": "+", "┐": "+"})


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
            format_predicted(item.time_s),
            format_extra(item.time_s / plain.time_s - 1) if plain.time_s else "",
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


def print_budgets(curve: Curve, console: Console) -> None:
    """What is chosen for each budget."""
    plain = curve.plain
    needs = f"{format_bytes(plain.peak_bytes)}, {format_predicted(plain.time_s)}"
    title = f"plans for {len(curve.asked)} budgets; plain needs {needs}"
    names = ("budget", "of plain", "planner", "what it does", "peak", "time", "extra time")
    table = make_table(title, names, left=names[2:4], no_wrap=True)
    table.columns[3].no_wrap = False
    for budget, found in curve.asked:
        cells = [format_bytes(budget), f"{budget / plain.peak_bytes:.0%}" if plain.peak_bytes else ""]
        if isinstance(found, Planning):
            plan, extra = found.chosen, curve.extra(found.chosen.time_s)
            cells += [plan.planner, in_words(plan), format_bytes(plan.peak_bytes), format_predicted(plan.time_s)]
            table.add_row(*map(Text, cells), "" if extra is None else format_extra(extra))
        else:
            least = f": the least is {format_bytes(found.least_bytes)}" if found.least_bytes else ""
            table.add_row(*cells, "-", f"nothing fits{least}", "", "", "", style="dim")
    console.print(table)


def print_curve(curve: Curve, console: Console) -> None:
    """Time against memory: the least time for so much memory as a line, all candidates as dots, chosen ones filled."""
    if len(curve.points) < 2:
        return
    (left, right), (low, high) = curve.memory, curve.times
    width = max(20, min(MOST_COLUMNS, console.width - 12))

    def column(size: int) -> int:
        return round((size - left) / (right - left) * (width - 1))

    def row(seconds: float) -> int:
        return min(ROWS - 1, round((seconds - low) / (high - low) * (ROWS - 1))) if seconds < high else ROWS - 1

    cells = [[" "] * width for _ in range(ROWS)]
    for before, after in zip(curve.front, (*curve.front[1:], None), strict=True):
        start, end = column(before.peak_bytes), width - 1 if after is None else column(after.peak_bytes)
        for at in range(start, end + 1):
            cells[row(before.time_s)][at] = "─" if at < end or after is None else "┐"
        for at in range(row(after.time_s) + 1, row(before.time_s)) if after is not None else ():
            cells[at][end] = "│"
    for point in sorted(curve.points, key=lambda c: bool(curve.budgets_of(c))):
        cells[row(point.time_s)][column(point.peak_bytes)] = "●" if curve.budgets_of(point) else "·"
    lines = ["time against memory: ─ the least time found, · candidates (slower ones at the top), ● chosen"]
    for at in reversed(range(ROWS)):
        extra = curve.extra(low + (high - low) * at / (ROWS - 1)) if at in (0, ROWS // 2, ROWS - 1) else None
        lines.append(f"{'' if extra is None else f'{extra:+.0%}':>8} ┤{''.join(cells[at]).rstrip()}")
    ticks, sizes = "└" + "─" * width, f"{format_bytes(left)}{format_bytes(right):>{width - len(format_bytes(left))}}"
    lines += [f"{'':>9}{ticks}", f"{'':>10}{sizes}"]
    text = "\n".join(lines)
    console.print(Text(text.translate(ASCII) if console.options.ascii_only else text), soft_wrap=True)
