"""An analysis as a page: its figures, its tables, and the profile to draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..analysis import Analysis
from ..analysis.comparison import Comparison
from ..analysis.groups import By, group_operators
from ..units import UNKNOWN, format_bytes, format_predicted, format_seconds
from .html_data import drawn_bytes, drawn_seconds
from .page import Bar, Bars, Column, Drawn, Fact, Page, Table, Unit

if TYPE_CHECKING:
    from ..analysis.training import Training

ROWS = 200  # of a table of groups
BARS = 12  # of groups


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


def comparison_page(found: Comparison, both: tuple[Analysis, Analysis] | None = None) -> Page:
    """Bars first, then the tables of what differs, and of profiles both memory curves: the second is drawn whole."""
    tables = []
    for unit in ("seconds", "bytes", "share", "count"):
        rows = [(p.name, p.before, p.after, p.ratio) for p in found.totals if p.unit == unit]
        shown = _time_unit(found.predicted) if unit == "seconds" else unit
        columns = (Column("figure"), *_sides(shown))
        tables += [Table(f"Totals: {unit}", columns, rows)] if rows else []
    time = _time_unit(found.predicted)
    columns = (Column(found.by), *_sides(time))
    groups = [(p.name, p.before, p.after, p.ratio) for p in found.groups[:ROWS]]
    tables += [Table(found.what, columns, groups, caption="Largest change first.")] if groups else []
    labels = (f"before: {found.before}", f"after: {found.after}")
    drawn = [Drawn(label, side.profile) for label, side in zip(labels, both, strict=True)] if both else []
    return Page(
        title=f"{found.before} → {found.after}",
        summary="Two profiles, side by side." if both else "Two plans, side by side.",
        tables=tuple(tables),
        profiles=tuple(reversed(drawn)),
        bars=tuple(_bars(found)),
    )


def _bars(found: Comparison) -> Iterator[Bars]:
    """What has a length: seconds and bytes, and the groups that changed most."""
    time = _time_unit(found.predicted)
    units: tuple[tuple[str, str, Unit], ...] = (("Time", "seconds", time), ("Memory", "bytes", "bytes"))
    for title, unit, shown in units:
        rows = [p for p in found.totals if p.unit == unit]
        if rows:
            yield Bars(title, shown, [Bar(p.name, p.before, p.after) for p in rows])
    if found.groups:
        rows, most = list(found.groups[:BARS]), len(found.groups)
        caption = f"The {BARS} with the largest change of {most}." if most > BARS else "Largest change first."
        yield Bars(found.what, time, [Bar(p.name, p.before, p.after) for p in rows], caption)


def _sides(unit: Unit) -> tuple[Column, Column, Column]:
    ratio: Unit = "predicted ratio" if unit == "predicted" else "ratio"
    return Column("before", unit), Column("after", unit), Column("ratio", ratio)


def _time_unit(predicted: bool) -> Unit:
    return "predicted" if predicted else "seconds"


def _facts(analysis: Analysis) -> list[Fact]:
    found, say = [], format_predicted if analysis.profile.predicted else format_seconds
    side = analysis.device or analysis.host
    if side is not None:
        busy = f"{say(side.span_s)} on the {analysis.side}, busy for {side.busy_share:.1%} of it"
        found.append(Fact("time", say(drawn_seconds(analysis.profile)), busy))
        waits = UNKNOWN if side.wait_s is None else say(side.wait_s)
        found.append(Fact("kernels", say(side.kernel_s), f"waits {waits}"))
    for device, memory in analysis.memory.items():
        own = f"{format_bytes(memory.owned.peak_bytes)} ({memory.owned.peak_bytes:,} bytes) of it allocated meanwhile"
        found.append(Fact(f"peak {device}".strip(), format_bytes(drawn_bytes(analysis.profile, device)), own))
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
    found, time = [], _time_unit(analysis.profile.predicted)
    if groups:
        columns = (
            Column(by), Column("count", "count"), Column("kernel", time), Column("share", "share"),
            Column("with waits", time), Column("GFLOP/s", "rate"), Column("GB/s", "rate"),
            Column("of roofline", "share"),
        )  # fmt: skip
        rows = [
            (g.key, g.count, g.rates.kernel_s, g.share, g.total_s, _giga(g.rates.flops_per_s),
             _giga(g.rates.bytes_per_s), g.rates.roof_share)
            for g in groups[:ROWS]
        ]  # fmt: skip
        more = f"the {ROWS} with most kernel time of {len(groups)}" if len(groups) > ROWS else ""
        found.append(Table(f"By {by}", columns, rows, caption=more))
    if training is not None:
        found.append(_plans(training))
    return found


def _giga(per_second: float | None) -> float | None:
    return None if per_second is None else per_second / 1e9


def _plans(training: Training) -> Table:
    columns = (
        Column("budget", "bytes"), Column("planner"), Column("how"), Column("peak", "bytes"),
        Column("time", "predicted"), Column("extra time", "extra"),
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
