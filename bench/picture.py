"""The picture of the README: bytes alive over one training step, plain and tiled, with the budget as a line.

    python bench/picture.py docs/memory.svg

The step is `unet` of bench/memory.py. Both are recorded, so that they take a little longer than they do otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import tilegrad
from memory import TASKS, inputs_of
from tilegrad.profile import Profile
from tilegrad.report.html_data import memory_curve
from tilegrad.units import parse_bytes

MIB = 2**20
LEFT, RIGHT, TOP, BOTTOM = 64, 740, 46, 286  # of the frame, in pixels
PLAIN, TILED, BUDGET = "#b0503c", "#1f6f8b", "#333"
Curve = list[tuple[float, float]]  # second, MiB


def recorded(run: nn.Module, inputs: Sequence[Tensor]) -> Curve:
    """The second of two steps: in the first one the module is captured, and a plan is made."""
    with tilegrad.record() as rec:
        begin = time.perf_counter()
        run(*inputs).mean().backward()
        run.zero_grad(set_to_none=True)
        first_s = time.perf_counter() - begin
        run(*inputs).mean().backward()
    return curve(rec.profile, first_s)


def curve(profile: Profile, start_s: float) -> Curve:
    """From this second on, where anything changes."""
    found: Curve = []
    for second, count in zip(profile.clock, memory_curve(profile, profile.devices[0]), strict=True):
        if second >= start_s and (not found or found[-1][1] != count / MIB):
            found.append((second - start_s, count / MIB))
    return [*found, (profile.clock[-1] - start_s, found[-1][1])]


def draw(plain: Curve, tiled: Curve, budget: float, title: str) -> str:
    most = 100 * (int(max(peak(plain), budget) // 100) + 1)

    def x(share: float) -> float:
        return LEFT + share * (RIGHT - LEFT)

    def y(mib: float) -> float:
        return BOTTOM - mib / most * (BOTTOM - TOP)

    def line(points: Curve) -> str:
        steps = [f"H{x(second / points[-1][0]):.1f}V{y(mib):.1f}" for second, mib in points]
        return f"M{x(0):.1f},{y(points[0][1]):.1f}{''.join(steps)}"

    words = f"Plain PyTorch climbs to {peak(plain):.0f} MiB; tilegrad stays at or below {peak(tiled):.0f} MiB"
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 330" width="760" height="330" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13" fill="#333" '
        'role="img" aria-labelledby="t d">',
        '<title id="t">Memory of one training step over time: plain PyTorch against tilegrad</title>',
        f'<desc id="d">{title}. {words}, under the budget of {budget:.0f} MiB.</desc>',
        '<rect width="760" height="330" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">Bytes alive in one training step: {title}</text>',
        f'<text x="{LEFT - 8}" y="38" text-anchor="end">MiB</text>',
    ]
    for mib in range(0, most + 1, 100):
        parts.append(f'<path d="M{LEFT},{y(mib):.1f}H{RIGHT}" stroke="#e4e4e4"/>'
                     f'<text x="{LEFT - 8}" y="{y(mib) + 4:.1f}" text-anchor="end">{mib}</text>')  # fmt: skip
    parts += [f'<text x="{x(share / 100):.1f}" y="304" text-anchor="middle">{share} %</text>'
              for share in range(0, 101, 20)]  # fmt: skip
    parts.append(f'<text x="{RIGHT}" y="322" text-anchor="end">of the time of the step, each its own</text>')
    for points, colour in ((plain, PLAIN), (tiled, TILED)):
        area = f"{line(points)}V{BOTTOM}H{LEFT}Z"
        parts.append(f'<path d="{area}" fill="{colour}" opacity="0.15"/>')
        parts.append(f'<path d="{line(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    parts.append(f'<path d="M{LEFT},{y(budget):.1f}H{RIGHT}" stroke="{BUDGET}" stroke-dasharray="6 4"/>')
    labels = (
        (LEFT + 8, y(peak(plain)) + 14, "start", PLAIN, f"plain PyTorch: peak {peak(plain):.0f} MiB"),
        (RIGHT - 4, y(budget) - 25, "end", TILED, f"tilegrad: peak {peak(tiled):.0f} MiB"),
        (RIGHT - 4, y(budget) - 7, "end", BUDGET, f"budget: {budget:.0f} MiB"),
    )
    halo = 'stroke="#fff" stroke-width="4" paint-order="stroke"'
    for at, down, side, colour, said in labels:
        parts.append(f'<text x="{at}" y="{down:.1f}" text-anchor="{side}" fill="{colour}" font-weight="600" {halo}>'
                     f"{said}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


def peak(points: Curve) -> float:
    return max(mib for _, mib in points)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=int, help="side of the image")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = TASKS["unet"]
    model, inputs = task.make(1.0), inputs_of(task, args.size)
    curves = recorded(model, inputs), recorded(tilegrad.tile(model, **task.options), inputs)
    shape = " × ".join(map(str, inputs[0].shape))
    args.path.write_text(draw(*curves, parse_bytes(task.options["budget"]) / MIB, f"U-Net, {shape}, float32"))


if __name__ == "__main__":
    main()
