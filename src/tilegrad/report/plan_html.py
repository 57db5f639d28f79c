"""Plannings as a page: time against memory, what is chosen for each budget, all candidates, and the plans that were
chosen and plain as profiles that never ran."""

from __future__ import annotations

import math
from pathlib import Path

from ..analysis.simulated import is_timed, plan_profile
from ..planners import Candidate, Planning
from ..units import format_bytes, format_extra, format_predicted
from .curve import Curve, in_words, make_curve
from .html import save_page
from .page import Column, Drawn, Fact, Page, Point, Scatter, Table


def save_plan_html(planning: Planning, path: str | Path, curve: Curve | None = None) -> None:
    """Write the report, whole or not at all."""
    save_page(plan_page(planning, curve), path)


def plan_page(planning: Planning, curve: Curve | None = None) -> Page:
    """All figures of it are predicted. `curve`: what else was asked for; of several budgets this one is drawn whole."""
    curve = curve or make_curve([planning.budget], [planning])
    several = len(curve.asked) > 1
    place = f"a budget of {format_bytes(planning.budget)}"
    told = f"{place}, and for {len(curve.asked) - 1} other budgets" if several else place
    drawn = _drawn(planning, curve)
    return Page(
        title=planning.graph.name,
        summary=f"The fastest plan found for a training step on {planning.machine.name} in {told}. "
        "All figures are predicted.",
        facts=tuple(_facts(planning)),
        notes=tuple(_notes(planning.chosen)),
        tables=(*([_budgets(curve)] if several else []), _candidates(planning, curve)),
        profiles=tuple(d for d in drawn if d.timed is drawn[0].timed),  # seconds and steps share no axis
        budget_bytes=planning.budget,
        scatter=_scatter(curve),
    )


def _drawn(planning: Planning, curve: Curve) -> list[Drawn]:
    """The chosen plan, those of other budgets, plain."""
    plans = {"chosen plan": planning.chosen}
    for other in sorted(curve.plannings, key=lambda p: p.budget):
        if not any(other.chosen is plan for plan in (*plans.values(), planning.plain)):
            plans[f"plan for {format_bytes(other.budget)}"] = other.chosen
    if planning.plain is not planning.chosen:
        plans["plain"] = planning.plain
    return [
        Drawn(label, plan_profile(plan, planning.machine, addresses=plan is planning.chosen), is_timed(plan))
        for label, plan in plans.items()
        if plan.memory is not None
    ]


def _scatter(curve: Curve) -> Scatter | None:
    if len(curve.points) < 2 or not curve.front:
        return None
    front = {id(c) for c in curve.front}
    points = [
        Point(c.peak_bytes, c.time_s, f"{c.planner}: {c.detail}", _chosen_for(curve, c), id(c) in front)
        for c in curve.points
    ]
    caption = (
        "Each mark is a plan that was tried; the line is the least time found for so much memory. Filled: chosen for "
        "one of the budgets, which are dashed. A triangle is slower than the axis goes."
    )
    budgets = [budget for budget, _ in curve.asked]
    return Scatter(caption, points, budgets, curve.memory, curve.times, curve.plain.time_s)


def _chosen_for(curve: Curve, plan: Candidate) -> str:
    budgets = curve.budgets_of(plan)
    return f"chosen for {', '.join(map(format_bytes, budgets))}" if budgets else ""


def _budgets(curve: Curve) -> Table:
    plain, rows = curve.plain, list[tuple[str | int | float | None, ...]]()
    for budget, found in curve.asked:
        share = budget / plain.peak_bytes if plain.peak_bytes else None
        if isinstance(found, Planning):
            plan = found.chosen
            figures = (plan.peak_bytes, plan.time_s, curve.extra(plan.time_s))
            rows.append((budget, share, plan.planner, in_words(plan), *figures))
        else:
            least = f", the least is {format_bytes(found.least_bytes)}" if found.least_bytes else ""
            rows.append((budget, share, None, f"nothing fits{least}", None, None, None))
    columns = (
        Column("budget", "bytes"),
        Column("of plain", "share"),
        Column("planner"),
        Column("what it does"),
        Column("peak", "bytes"),
        Column("time", "predicted"),
        Column("extra time", "extra"),
    )
    return Table("Budgets", columns, rows, caption="What is chosen for each budget. Extra time is against plain.")


def _facts(planning: Planning) -> list[Fact]:
    chosen, plain, time = planning.chosen, planning.plain, planning.chosen.time
    waits = (
        f", {format_predicted(time.stall_s)} of it waiting for copies" if time is not None and time.stall_s > 0 else ""
    )
    extra = chosen.time_s / plain.time_s - 1 if plain.time_s else math.nan
    against = f"{format_extra(extra)} against plain" if math.isfinite(extra) else "plain is unknown"
    found = [
        Fact("machine", planning.machine.name),
        Fact("budget", format_bytes(planning.budget), f"{planning.budget:,} bytes"),
        Fact("planner", chosen.planner, chosen.detail),
        Fact(
            "predicted peak",
            format_bytes(chosen.peak_bytes),
            f"{chosen.peak_bytes / planning.budget:.1%} of the budget; plain {format_bytes(plain.peak_bytes)}",
        ),
        Fact("predicted time", format_predicted(chosen.time_s), against + waits),
        Fact("to and from host", format_bytes(chosen.host_bytes)),
    ]
    layout = chosen.layout
    if layout is not None:
        exact = "as small as can be" if layout.exact else f"{layout.excess:.2%} over what is alive at once"
        found.append(Fact("addresses", format_bytes(layout.range_bytes), f"would do for what comes and goes: {exact}"))
    return found


def _notes(chosen: Candidate) -> list[str]:
    notes = list(chosen.notes)
    if chosen.memory is None:
        notes.append("Of this plan only peak and time are predicted: there is no memory by steps to draw.")
    elif chosen.layout is None:
        notes.append("Addresses are left to the allocator: there is no address map.")
    return notes


def _candidates(planning: Planning, curve: Curve) -> Table:
    """All that was tried, for whichever budget."""
    budget, plain = planning.budget, planning.plain
    order = sorted(curve.points, key=lambda c: (c.peak_bytes > budget, c.time_s))
    rows = [
        (
            f"{c.planner} (plain)" if c is plain else c.planner,
            c.detail,
            c.peak_bytes,
            "yes" if c.peak_bytes <= budget else f"{format_bytes(c.peak_bytes - budget)} over",
            c.time_s,
            curve.extra(c.time_s),
            c.host_bytes,
            *([_chosen_for(curve, c).removeprefix("chosen for ")] if len(curve.asked) > 1 else []),
        )
        for c in order
    ]
    columns = [
        Column("planner"),
        Column("how"),
        Column("peak", "bytes"),
        Column("fits"),
        Column("time", "predicted"),
        Column("extra time", "extra"),
        Column("to and from host", "bytes"),
    ]
    if len(curve.asked) > 1:
        columns.append(Column("chosen for"))
    caption = f"What was tried. Fits: {format_bytes(budget)}. Extra time is against plain."
    marked = frozenset(i for i, c in enumerate(order) if curve.budgets_of(c))
    return Table("Candidates", tuple(columns), rows, marked, caption, mark="chosen")
