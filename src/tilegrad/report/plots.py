"""Figures for papers, drawn by matplotlib: memory over time by kind of block, and a step's time against its memory."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from ..analysis.live import find_live
from ..errors import InputError
from ..extras import install_hint
from ..files import whole_file
from ..profile import BlockKind, Profile
from ..units import chart_unit, printable
from .curve import Curve

FORMATS = ("svg", "pdf", "png")
COLOURS = {  # by Okabe and Ito: told apart by all kinds of colour vision
    BlockKind.WEIGHT: "#999999",
    BlockKind.INPUT: "#f0e442",
    BlockKind.ACTIVATION: "#56b4e9",
    BlockKind.GRADIENT: "#009e73",
    BlockKind.WORKSPACE: "#e69f00",
    BlockKind.UNKNOWN: "#cc79a7",
}


def save_memory_plot(profile: Profile, path: str | Path) -> None:
    """Memory over time of the device with most of it; the ending of `path` says the format."""
    ending = check_plot(path)
    if not profile.blocks:
        raise InputError("there is no memory to plot in this profile", where=profile.name)
    figure = _figure()
    _draw(figure.subplots(), profile)
    _save(figure, path, ending)


def save_curve_plot(curve: Curve, path: str | Path) -> None:
    """Time against memory: all candidates, the least time found, and what is chosen for each budget."""
    ending, figure = check_plot(path), _figure()
    _draw_curve(figure.subplots(), curve)
    _save(figure, path, ending)


def check_plot(path: str | Path) -> str:
    """The format that the ending of a path names, if it is one and there is something to draw it with."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(f"a plot cannot be written as {ending!r}", where=str(path), hint="memory.svg, .pdf or .png")
    _figure()
    return ending


def _save(figure: Any, path: str | Path, ending: str) -> None:
    with whole_file(path, "the plot") as file:
        figure.savefig(file, format=ending, dpi=200)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # takes a second, and is an extra
    except ImportError as error:
        raise InputError("plots need matplotlib, which is not installed", hint=install_hint(error)) from None
    return Figure(figsize=(7, 3.2), layout="constrained")


def _draw(axes: Any, profile: Profile) -> None:
    import numpy as np

    size, unit = chart_unit()
    device, first = profile.devices[0], profile.clock[0] if profile.clock else 0.0
    curves, labels, colours = [], [], []
    for kind, colour in COLOURS.items():
        blocks = (b for b in profile.blocks if b.kind is kind and b.device == device)
        curve = np.array(find_live(blocks, profile.ticks).curve) / size
        if curve.any():
            curves.append(curve)
            labels.append(str(kind))
            colours.append(colour)
    times = (np.array(profile.clock) - first) * 1e3
    axes.stackplot(times, *curves, labels=labels, colors=colours, step="post", linewidth=0)
    axes.set_xlabel("time in ms")
    axes.set_ylabel(f"memory in {unit}")
    axes.set_xlim(times.min(), times.max() if times.max() > times.min() else times.min() + 1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small", framealpha=0.9)
    axes.set_title(printable(profile.name).replace("$", r"\$"), fontsize="medium")


def _draw_curve(axes: Any, curve: Curve) -> None:
    (low, high), (size, unit) = curve.times, chart_unit()
    planners = dict.fromkeys(c.planner for c in curve.points)
    for planner, colour in zip(planners, cycle(COLOURS.values())):
        points = [c for c in curve.points if c.planner == planner]
        for slow, marker in ((False, "o"), (True, "^")):  # what is too slow for the axis stands at its end
            shown = [(c.peak_bytes / size, min(c.time_s, high) * 1e3) for c in points if (c.time_s > high) is slow]
            label = planner if slow is (points[0].time_s > high) else None
            if shown:
                style = {"label": label, "color": colour, "markeredgecolor": "#333333", "clip_on": False}
                axes.plot(*zip(*shown, strict=True), marker, **style)
    front = [(c.peak_bytes / size, c.time_s * 1e3) for c in curve.front]
    front.append((curve.memory[1] / size, front[-1][1]))
    axes.step(*zip(*front, strict=True), where="post", color="#333333", linewidth=1, zorder=0)
    chosen = {(p.chosen.peak_bytes / size, p.chosen.time_s * 1e3) for p in curve.plannings}
    axes.plot(*zip(*sorted(chosen), strict=True), "o", markersize=12, fillstyle="none", color="#d55e00", label="chosen")
    axes.set_ylim(low * 1e3 - 0.04 * (high - low) * 1e3, high * 1e3)
    axes.set_xlabel(f"peak memory in {unit}")
    axes.set_ylabel("time of a step in ms")
    axes.legend(fontsize="small", framealpha=0.9)
    name = curve.tightest.graph.name
    axes.set_title(printable(name).replace("$", r"\$"), fontsize="medium")
