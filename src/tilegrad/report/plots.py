"""Figures for papers, drawn by matplotlib: memory over time by kind of block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..analysis.live import find_live
from ..errors import InputError
from ..files import whole_file
from ..profile import BlockKind, Profile
from ..units import printable

FORMATS = ("svg", "pdf", "png")
COLOURS = {  # by Okabe and Ito: told apart by all kinds of colour vision
    BlockKind.WEIGHT: "#999999",
    BlockKind.INPUT: "#f0e442",
    BlockKind.ACTIVATION: "#56b4e9",
    BlockKind.GRADIENT: "#009e73",
    BlockKind.WORKSPACE: "#e69f00",
    BlockKind.UNKNOWN: "#cc79a7",
}
MIB = 2**20


def save_memory_plot(profile: Profile, path: str | Path) -> None:
    """Memory over time of the device with most of it; the ending of `path` says the format."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(f"a plot cannot be written as {ending!r}", where=str(path), hint="memory.svg, .pdf or .png")
    if not profile.blocks:
        raise InputError("there is no memory to plot in this profile", where=profile.name)
    figure = _figure()
    axes = figure.subplots()
    _draw(axes, profile)
    with whole_file(path, "the plot") as file:
        figure.savefig(file, format=ending, dpi=200)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # takes a second, and is an extra
    except ImportError:
        what = "plots need matplotlib, which is not installed"
        raise InputError(what, hint="pip install 'tilegrad[plot]'") from None
    return Figure(figsize=(7, 3.2), layout="constrained")


def _draw(axes: Any, profile: Profile) -> None:
    import numpy as np

    device, first = profile.devices[0], profile.clock[0] if profile.clock else 0.0
    curves, labels, colours = [], [], []
    for kind, colour in COLOURS.items():
        blocks = (b for b in profile.blocks if b.kind is kind and b.device == device)
        curve = np.array(find_live(blocks, profile.ticks).curve) / MIB
        if curve.any():
            curves.append(curve)
            labels.append(str(kind))
            colours.append(colour)
    times = (np.array(profile.clock) - first) * 1e3
    axes.stackplot(times, *curves, labels=labels, colors=colours, step="post", linewidth=0)
    axes.set_xlabel("time in ms")
    axes.set_ylabel("memory in MiB")
    axes.set_xlim(times.min(), times.max() if times.max() > times.min() else times.min() + 1)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize="small", framealpha=0.9)
    axes.set_title(printable(profile.name).replace("$", r"\$"), fontsize="medium")
