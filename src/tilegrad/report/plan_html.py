"""A planning as a page: the candidates, and the chosen plan and plain as profiles that never ran."""

from __future__ import annotations

import math
from pathlib import Path

from ..analysis.simulated import is_timed, plan_profile
from ..planners import Candidate, Planning
from .html import save_page
from .html_text import format_mib, format_seconds, format_share
from .page import Column, Drawn, Fact, Page, Table


def save_plan_html(planning: Planning, path: str | Path) -> None:
    """Write the report, whole or not at all."""
    save_page(plan_page(planning), path)


def plan_page(planning: Planning) -> Page:
    """All figures of it are predicted."""
    chosen, plain = planning.chosen, planning.plain
    plans = [("chosen plan", chosen)] + ([] if plain is chosen else [("plain", plain)])
    drawn = [
        Drawn(label, plan_profile(plan, planning.machine, addresses=plan is chosen), is_timed(plan))
        for label, plan in plans
        if plan.memory is not None
    ]
    return Page(
        title=planning.graph.name,
        summary=f"The fastest plan found for a training step on {planning.machine.name} in a budget of "
        f"{format_mib(planning.budget)}. All figures are predicted.",
        facts=tuple(_facts(planning)),
        notes=tuple(_notes(chosen)),
        tables=(_candidates(planning),),
        profiles=tuple(d for d in drawn if d.timed is drawn[0].timed),  # seconds and steps share no axis
        budget_bytes=planning.budget,
    )


def _facts(planning: Planning) -> list[Fact]:
    chosen, plain, time = planning.chosen, planning.plain, planning.chosen.time
    waits = (
        f", {format_seconds(time.stall_s)} of it waiting for copies" if time is not None and time.stall_s > 0 else ""
    )
    extra = chosen.time_s / plain.time_s - 1 if plain.time_s else math.nan
    against = f"{extra:+.1%} against plain" if math.isfinite(extra) else "plain is unknown"
    found = [
        Fact("machine", planning.machine.name),
        Fact("budget", format_mib(planning.budget), f"{planning.budget:,} bytes"),
        Fact("planner", chosen.planner, chosen.detail),
        Fact(
            "predicted peak",
            format_mib(chosen.peak_bytes),
            f"{format_share(chosen.peak_bytes / planning.budget)} of the budget; plain {format_mib(plain.peak_bytes)}",
        ),
        Fact("predicted time", format_seconds(chosen.time_s), against + waits),
        Fact("to and from host", format_mib(chosen.host_bytes) if chosen.host_bytes else "none"),
    ]
    layout = chosen.layout
    if layout is not None:
        exact = "as small as can be" if layout.exact else f"{layout.excess:.2%} over what is alive at once"
        found.append(Fact("addresses", format_mib(layout.range_bytes), f"would do for what comes and goes: {exact}"))
    return found


def _notes(chosen: Candidate) -> list[str]:
    notes = list(chosen.notes)
    if chosen.memory is None:
        notes.append("Of this plan only peak and time are predicted: there is no memory by steps to draw.")
    elif chosen.layout is None:
        notes.append("Addresses are left to the allocator: there is no address map.")
    return notes


def _candidates(planning: Planning) -> Table:
    budget, plain = planning.budget, planning.plain
    order = sorted(planning.candidates, key=lambda c: (c.peak_bytes > budget, c.time_s))
    rows = [
        (
            f"{c.planner} (plain)" if c is plain else c.planner,
            c.detail,
            c.peak_bytes,
            "yes" if c.peak_bytes <= budget else f"{format_mib(c.peak_bytes - budget)} over",
            c.time_s,
            c.time_s / plain.time_s - 1 if plain.time_s else None,
            c.host_bytes or None,
        )
        for c in order
    ]
    columns = (
        Column("planner"),
        Column("how"),
        Column("peak", "bytes"),
        Column("fits"),
        Column("time", "seconds"),
        Column("extra time", "share"),
        Column("to and from host", "bytes"),
    )
    caption = f"What was tried for {format_mib(budget)}. Extra time is against plain."
    marked = frozenset(i for i, c in enumerate(order) if c is planning.chosen)
    return Table("Candidates", columns, rows, marked, caption, mark="chosen")
