"""Time against budget: one network from a small share of plain's memory to nearly all of it, as figures and a picture.

    python bench/dial.py                                            on the CPU
    python bench/dial.py --device cuda --net unet --json bench/results/h200_dial.json --svg docs/images/dial.svg

Times are ratios to eager plain PyTorch, the two in turns; budgets are shares of plain's peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from measure import write
from nets import NETS, prepared, side
from speed import Row, measure, print_row

COLOURS = {"recompute": "#0072b2", "segments": "#56b4e9", "mixed": "#009e73", "tile": "#e69f00", "offload": "#cc79a7"}
PLAIN = "#999999"  # by Okabe and Ito, as all of these


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--net", default="vgg16", choices=NETS)
    parser.add_argument("--size", type=int, help="side of the image (default: by network)")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument(
        "--shares", default="0.05,0.1,0.15,0.2,0.3,0.4,0.5,0.6,0.75,0.9", help="budgets, of plain's peak"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args(argv)
    net, image = prepared(args.net, side(args.net, args.device, args.size), args.device, args.width)
    rows: list[Row] = []
    for share in args.shares.split(","):
        found = measure(args.net, net, image, float(share), args.rounds)
        if found is not None:  # the planner has said why not
            rows.append(found)
            print_row(found)
    write(args.json, rows, args.device)
    if args.svg is not None:
        draw(rows, args.svg)


def draw(rows: Sequence[Row], path: Path) -> None:
    """What is allocated against the time it takes, coloured by the planner that found it."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([100 * row.share for row in rows], [row.ratio for row in rows], color=PLAIN, linewidth=1, zorder=1)
    for planner in dict.fromkeys(row.plan.partition(",")[0] for row in rows):
        own = [row for row in rows if row.plan.partition(",")[0] == planner]
        x, y = [100 * row.share for row in own], [row.ratio for row in own]
        axes.scatter(x, y, color=COLOURS.get(planner, PLAIN), label=planner, zorder=2)
    axes.axhline(1, color=PLAIN, linestyle=":")
    axes.set_xlabel("budget in % of plain PyTorch's peak")
    axes.set_ylabel("time of a step, times plain's")
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    if rows:
        axes.legend(fontsize="small")
        axes.set_title(f"{rows[0].net}, {rows[0].size}²", fontsize="medium")
    figure.savefig(path)


if __name__ == "__main__":
    main()
