"""An analysis as a page: its figures, its tables, and the profile to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis import Analysis
from ..analysis.comparison import Comparison
from ..analysis.groups import By, group_operators
from ..units import format_bytes, format_seconds
from .page import Column, Drawn, Fact, Page, Table

if TYPE_CHECKING:
    from ..analysis.training import Training

ROWS = 200  # of a table of groups


def profile_page(analysis: Analysis, by: By = "type", training: Training | None = None) -> Page:
    profile = analysis.profile
    return Page(
        title=profile.name,
        summary=f"A {profile.format} of {len(profile.operators)} operators and {len(profile.blocks)} blocks of memory.",
        facts=tuple(_facts(analysis)),
        notes=profile.notes,
        tables=tuple(_tables(analysis, by, training)),
        profiles=(Drawn(profile.name, profile),),
    )


def comparison_page(found: Comparison, before: Analysis, after: Analysis) -> Page:
    """Both memory curves, and the tables of what differs. The first is drawn whole."""
    tables = []
    for unit in ("seconds", "bytes", "share", "count"):
        rows = [(p.name, p.before, p.after, p.ratio) for p in found.totals if p.unit == unit]
        columns = (Column("figure"), Column("before", unit), Column("after", unit), Column("ratio", "rate"))
        tables += [Table(f"Totals: {unit}", columns, rows)] if rows else []
    columns = (Column(found.by), Column("before", "seconds"), Column("after", "seconds"), Column("ratio", "rate"))
    groups = [(p.name, p.before, p.after, p.ratio) for p in found.groups[:ROWS]]
    tables.append(Table(f"Kernel time by {found.by}", columns, groups, caption="Largest change first."))
    return Page(
        title=f"{found.before} -> {found.after}",
        summary="Two profiles, side by side.",
        tables=tuple(tables),
        profiles=(Drawn(f"after: {found.after}", after.profile), Drawn(f"before: {found.before}", before.profile)),
    )


def _facts(analysis: Analysis) -> list[Fact]:
    found = []
    side = analysis.device or analysis.host
    if side is not None:
        found.append(Fact("time", format_seconds(side.span_s), f"{side.busy_share:.1%} busy on the {analysis.side}"))
        found.append(Fact("kernels", format_seconds(side.kernel_s), f"waits {format_seconds(side.wait_s)}"))
    for device, memory in analysis.memory.items():
        found.append(
            Fact(f"peak {device}".strip(), format_bytes(memory.owned.peak_bytes), f"{memory.owned.peak_bytes} bytes")
        )
        if memory.weight_bytes:
            found.append(Fact(f"weights {device}".strip(), format_bytes(memory.weight_bytes)))
        layouts = analysis.layouts[device]
        if layouts is not None and (excess := layouts.excess(layouts.recorded_union)) is not None:
            ours = layouts.excess(layouts.ours)
            more = "" if ours is None else f"our offsets {ours:+.3%}"
            found.append(Fact("allocator", f"{excess:+.3%}", f"over the most alive at once; {more}"))
    return found


def _tables(analysis: Analysis, by: By, training: Training | None) -> list[Table]:
    groups = group_operators(analysis.operators, by, analysis.machine)
    found = []
    if groups:
        columns = (
            Column(by), Column("count", "count"), Column("kernel", "seconds"), Column("share", "share"),
            Column("with waits", "seconds"), Column("GFLOP/s", "rate"), Column("GB/s", "rate"),
            Column("of roofline", "share"),
        )  # fmt: skip
        rows = [
            (g.key, g.count, g.rates.kernel_s, g.share, g.total_s, g.rates.flops_per_s / 1e9,
             g.rates.bytes_per_s / 1e9, g.rates.roof_share)
            for g in groups[:ROWS]
        ]  # fmt: skip
        more = f"the {ROWS} with most kernel time of {len(groups)}" if len(groups) > ROWS else ""
        found.append(Table(f"By {by}", columns, rows, caption=more))
    if training is not None:
        found.append(_plans(training))
    return found


def _plans(training: Training) -> Table:
    columns = (
        Column("budget", "bytes"), Column("planner"), Column("how"), Column("peak", "bytes"), Column("time", "seconds"),
        Column("extra time", "share"),
    )  # fmt: skip
    rows: list[tuple[str | int | float | None, ...]] = []
    for budget, plan in training.plans:
        if isinstance(plan, str):
            rows.append((budget, None, plan, None, None, None))
            continue
        found = plan.chosen
        extra = found.time_s / training.plain.time_s - 1
        rows.append((budget, found.planner, found.detail, found.peak_bytes, found.time_s, extra))
    plain = f"Plain training needs {format_bytes(training.plain.peak_bytes)}. All figures are predicted."
    return Table("What tilegrad would do", columns, rows, caption=plain)
