"""An analysis as tables on a terminal: time, groups, operators, memory, allocator, what could be better, plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from ..analysis import Analysis
from ..analysis.groups import OperatorGroup, TimeOf, format_shapes, operator_seconds
from ..analysis.live import alive_at, ticks_are_operators
from ..ir import Phase
from ..units import UNKNOWN, format_bytes, format_extra, format_predicted, format_rate, format_seconds
from .terminal import make_table, plain, print_line

if TYPE_CHECKING:
    from ..analysis.training import Training

ALIVE = 8  # rows of what is alive at the peak


def print_summary(analysis: Analysis, console: Console) -> None:
    """What it is, and how long it took."""
    profile, say = analysis.profile, _say_time(analysis)
    ran = f"{len(profile.operators)} operators" + (f", {len(profile.idle)} never ran" if profile.idle else "")
    print_line(console, f"{profile.name}: {profile.format}, {ran}, {len(profile.blocks)} blocks of memory")
    for name, side in (("device", analysis.device), ("host", analysis.host)):
        if side is not None:
            print_line(
                console,
                f"{name:<10}  span {say(side.span_s)}, operators {say(side.total_s)}, "
                f"kernels {say(side.kernel_s)}, "
                f"waits {UNKNOWN if side.wait_s is None else say(side.wait_s)}, "
                f"busy {side.busy_share:.1%}, {len(side.lanes)} lane{'s' * (len(side.lanes) != 1)}",
            )
    gaps = analysis.gaps.to_json(profile.operators)
    if gaps["count"] and gaps["total_s"]:
        print_line(
            console,
            f"gaps        {gaps['count']} of {say(gaps['total_s'])} in all, median "
            f"{say(gaps['median_s'])}, longest {say(gaps['max_s'])} after operator "
            f"{gaps['longest'][0]['before']}",
        )
    if (lag := analysis.lag) is not None:
        found = lag.to_json(profile.operators)
        least = "" if profile.one_clock else "at least "
        early = found["host_done_early_s"]
        done = f"the host had issued all {say(early)} before the device was done" if early > 0 else ""
        print_line(
            console,
            f"lag         {least}{say(found['median_s'])} (median) from issue to kernel, most "
            f"{say(found['max_s'])}" + (f"; {done}" if done else ""),
        )
    for note in profile.notes:
        print_line(console, f"note: {note}")


def _say_time(analysis: Analysis) -> Callable[[float], str]:
    return format_predicted if analysis.profile.predicted else format_seconds


def print_groups(analysis: Analysis, groups: Sequence[OperatorGroup], by: str, time: TimeOf, console: Console) -> None:
    say = _say_time(analysis)
    names = (by, "count", "kernel", "share", "with waits", "rate", "bandwidth", "of roofline", "bound by")
    table = make_table(plain(f"by {by}, most {time} time first"), names, left=(by, "bound by"), overflow="fold")
    for group in groups:
        rates = group.rates
        table.add_row(
            plain(group.key),
            str(group.count),
            say(rates.kernel_s),
            f"{group.share:.1%}",
            say(group.total_s),
            _rate(rates.flops_per_s, "FLOP/s"),
            _rate(rates.bytes_per_s, "B/s"),
            f"{rates.roof_share:.0%}" if rates.roof_share is not None else UNKNOWN,
            rates.bound or UNKNOWN,
        )
    console.print(table)


def _rate(per_second: float | None, what: str) -> str:
    return UNKNOWN if per_second is None else format_rate(per_second, what)


def print_operators(analysis: Analysis, places: Iterable[int], title: str, time: TimeOf, console: Console) -> None:
    say = _say_time(analysis)
    names = ("seq", "id", "type", "name", "shapes", time, "rate", "bandwidth")
    table = make_table(plain(title), names, left=("type", "name", "shapes"), overflow="fold")
    for at in places:
        op, row = analysis.operators[at], analysis.row(at)
        table.add_row(
            str(at),
            plain(op.id),
            plain(op.type),
            plain(op.module or op.name),
            f"{format_shapes(op.in_shapes)} -> {format_shapes(op.out_shapes)}" if op.in_shapes or op.out_shapes else "",
            say(operator_seconds(op, time)),
            _rate(row["flops_per_s"], "FLOP/s"),
            _rate(row["bytes_per_s"], "B/s"),
        )
    console.print(table)


def print_memory(analysis: Analysis, device: str, console: Console) -> None:
    """The peak and what it is made of, and how good the allocator was."""
    memory, layouts = analysis.memory[device], analysis.layouts[device]
    blocks = [b for b in analysis.profile.blocks if b.device == device and b.owned]
    outside = [(memory.weight_bytes, "weights"), (memory.input_bytes, "inputs")]
    beside = ", ".join(f"{format_bytes(count)} {what}" for count, what in outside if count)
    peak = f"{format_bytes(memory.owned.peak_bytes)} ({memory.owned.peak_bytes} bytes)"
    print_line(console, f"memory      {device or 'device'}: peak {peak}" + (f"; beside it {beside}" if beside else ""))
    if memory.owned.ticks:
        tick = memory.owned.ticks[0]
        alive = alive_at(blocks, tick)
        running = analysis.operators[tick].name if ticks_are_operators(analysis.profile) else ""
        title = f"alive at the peak{', at ' + running if running else ''}"
        texts = ("kind", "block", "made by")
        table = make_table(plain(title), ("bytes", *texts), left=texts, overflow="fold")
        for block in alive[:ALIVE]:
            maker = analysis.operators[block.maker] if block.maker is not None else None
            made = "" if maker is None else maker.module or maker.name
            table.add_row(format_bytes(block.bytes), str(block.kind), plain(block.name), plain(made))
        if len(alive) > ALIVE:
            rest = alive[ALIVE:]
            table.add_row(format_bytes(sum(b.bytes for b in rest)), "", f"{len(rest)} more", "")
        console.print(table)
    if layouts is not None and layouts.recorded_union is not None:
        excess = layouts.excess(layouts.recorded_union) or 0.0
        used = f"used {format_bytes(layouts.recorded_union)} of addresses ({excess:+.3%} over the most alive at once)"
        ours = ""
        if layouts.ours is not None:
            more = layouts.excess(layouts.ours) or 0.0
            ours = f"; our offsets need {format_bytes(layouts.ours)} ({more:+.3%})"
        print_line(console, f"allocator   {used}{ours}")
    if (addresses := analysis.addresses[device]) is not None:
        clash = f"; {len(addresses.conflicts)} blocks overlap while both are alive" if addresses.conflicts else ""
        arenas = f"{len(addresses.arenas)} arena{'s' * (len(addresses.arenas) != 1)}"
        print_line(console, f"reuse       every byte was handed out {addresses.reuse:.1f} times, {arenas}{clash}")
    if (savings := analysis.savings[device]) is not None:
        order = savings.order_bytes
        same = order is None or order == savings.peak_bytes
        better = "another order found none better" if same else f"another order {format_bytes(order or 0)}"
        in_place = f"in place {format_bytes(savings.in_place_bytes)} ({savings.in_place_nodes} operators could)"
        print_line(console, f"savings     {in_place}; {better}")
    trains = any(op.phase is Phase.BACKWARD for op in analysis.operators)
    if memory.kept_bytes > memory.owned.peak_bytes and analysis.profile.graph is not None and not trains:
        kept = format_bytes(memory.kept_bytes)
        print_line(console, f"training    {kept} if nothing were freed; --plans shows what is needed")


def print_training(training: Training, console: Console) -> None:
    """What tilegrad would do."""
    memory = training.plain.memory
    step = f"plain {format_bytes(training.plain.peak_bytes)} in {format_predicted(training.plain.time_s)} a step"
    anyway = format_bytes(memory.resident_bytes if memory else 0)
    kept = f"kept for backward {format_bytes(training.saved_bytes)}, there anyway {anyway}"
    print_line(console, f"training    {step}; {kept}")
    names = ("budget", "planner", "how", "peak", "time", "extra time")
    table = make_table(plain("what tilegrad would do (predicted)"), names, left=("planner", "how"), overflow="fold")
    for budget, found in training.plans:
        if isinstance(found, str):
            table.add_row(format_bytes(budget), UNKNOWN, plain(found), "", "", "", style="dim")
            continue
        plan = found.chosen
        table.add_row(
            format_bytes(budget),
            plan.planner,
            plain(plan.detail),
            format_bytes(plan.peak_bytes),
            format_predicted(plan.time_s),
            format_extra(plan.time_s / training.plain.time_s - 1),
        )
    console.print(table)
