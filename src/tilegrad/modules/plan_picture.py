"""A plan as a picture for a notebook: the tiles over the image, and memory over time under the budget. Inline SVG, no
script: it stays as it is in a saved notebook, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..bounds import Tiling
from ..region import Interval
from ..schedule import Schedule
from ..sim.memory import Memory
from ..units import format_bytes

SIDE, WIDTH, HEIGHT = 180, 420, 180  # pixels: of the image's longer side, and of the chart
MOST_LINES = 64  # of a grid along an axis: more of them would be a grey area
POINTS = 210  # of the curve
TILE, CURVE, BUDGET = "#4c78a8", "#4c78a8", "#c0392b"
NOTE = 'font-size="11" fill="currentColor"'


def draw_plan(schedule: Schedule, text: str, memory: Memory | None, budget: int | None) -> str:
    """HTML: the plan in words, and below it what can be drawn of it."""
    drawn = [*_draw_tiles(schedule), *_draw_memory(schedule, memory, budget)]
    figures = "".join(f'<div style="margin:4px 16px 4px 0">{figure}</div>' for figure in drawn)
    words = f'<pre style="margin:0;white-space:pre-wrap">{escape(text)}</pre>'
    return f'<div>{words}<div style="display:flex;flex-wrap:wrap">{figures}</div></div>'


def _svg(width: float, height: float, label: str, parts: Iterator[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}"><title>{escape(label)}</title>{"".join(parts)}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, more: str = 'stroke="currentColor"') -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


# -- tiles over the image ----------------------------------------------------------------------------------------------


def _draw_tiles(schedule: Schedule) -> Iterator[str]:
    """The first walk over an input: where it is cut, and what the tile in the middle reads beyond its own."""
    for phase in schedule.phases:
        source = next((v for v in phase.boxed if v in schedule.graph.inputs), None)
        if phase.forward is not None and source is not None:
            tiling = phase.forward
            grid = " x ".join(f"{n} along {axis}" for n, axis in zip(tiling.grid, tiling.tiled, strict=True))
            yield _svg(SIDE + 2, SIDE + 20, f"tiles of {source}: {grid}", _tiles(tiling, source, grid))
            return


def _tiles(tiling: Tiling, source: str, grid: str) -> Iterator[str]:
    dims, shape = tiling.axes.dims[source], tiling.graph.shape(source)
    high, wide = (shape[dims[axis]] if axis in dims else 1 for axis in ("h", "w"))
    scale = SIDE / max(high, wide)
    height, width = max(8.0, high * scale), max(8.0, wide * scale)  # a signal has one axis
    middle = tuple(n // 2 for n in tiling.grid)
    rows, columns = (_spans(tiling, source, axis, n) for axis, n in (("h", high), ("w", wide)))
    yield f'<rect x="1" y="1" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="currentColor"/>'
    for spans, length, n in ((rows, height, high), (columns, width, wide)):
        for span in spans[1:] if len(spans) <= MOST_LINES else ():
            at = 1 + span.lo / n * length
            x1, y1, x2, y2 = (1, at, 1 + width, at) if spans is rows else (at, 1, at, 1 + height)
            yield _line(x1, y1, x2, y2, 'stroke="currentColor" stroke-opacity=".45"')
    for which, look in (("share", f'fill="{TILE}" fill-opacity=".35"'), ("held", f'fill="none" stroke="{TILE}"')):
        box = tiling.box(which, source, middle)
        top, left = (box[dims[axis]] if axis in dims else Interval(0, 1) for axis in ("h", "w"))
        x, y = 1 + left.lo / wide * width, 1 + top.lo / high * height
        size = f'width="{left.size / wide * width:.1f}" height="{top.size / high * height:.1f}"'
        yield f'<rect x="{x:.1f}" y="{y:.1f}" {size} {look}/>'
    yield f'<text x="1" y="{height + 16:.0f}" {NOTE}>{escape(grid)}</text>'


def _spans(tiling: Tiling, source: str, axis: str, whole: int) -> list[Interval]:
    if axis not in tiling.tiled or axis not in tiling.axes.dims[source]:
        return [Interval(0, whole)]
    return [tiling.side("share", source, axis, t) for t in range(tiling.spans[axis].count)]


# -- memory over time --------------------------------------------------------------------------------------------------


def _draw_memory(schedule: Schedule, memory: Memory | None, budget: int | None) -> Iterator[str]:
    if memory is not None and memory.device:
        copies = int(schedule.predicted.get("recorded_bytes", 0))
        yield _svg(WIDTH, HEIGHT, "bytes of tensors, step by step", _memory(schedule, memory, copies, budget))


def _memory(schedule: Schedule, memory: Memory, copies: int, budget: int | None) -> Iterator[str]:
    each = -(-len(memory.device) // POINTS)
    most = [max(memory.device[at : at + each]) + copies for at in range(0, len(memory.device), each)]
    peak = memory.peak_bytes + copies
    top, left, right, low, high = 1.1 * max(peak, budget or 0), 2.0, WIDTH - 2.0, HEIGHT - 20.0, 4.0

    def y(count: float) -> float:
        return low - count / top * (low - high)

    step = (right - left) / len(most)
    points = " ".join(f"{left + (k + d) * step:.1f},{y(n):.1f}" for k, n in enumerate(most) for d in (0, 1))
    area = f"{left:.1f},{low:.1f} {points} {right:.1f},{low:.1f}"
    yield f'<polygon points="{area}" fill="{CURVE}" fill-opacity=".25" stroke="none"/>'
    yield f'<polyline points="{points}" fill="none" stroke="{CURVE}"/>'
    yield _line(left, low, right, low)
    if schedule.trains and schedule.turn < len(memory.device):
        turn = left + schedule.turn / len(memory.device) * (right - left)
        yield _line(turn, high, turn, low, 'stroke="currentColor" stroke-opacity=".3" stroke-dasharray="2 3"')
        yield f'<text x="{turn + 3:.0f}" y="{low - 4:.0f}" {NOTE} fill-opacity=".6">backward</text>'
    if budget is not None:
        yield _line(left, y(budget), right, y(budget), f'stroke="{BUDGET}" stroke-dasharray="5 3"')
        place = f'x="{right:.0f}" y="{y(budget) - 3:.0f}" text-anchor="end"'
        yield f'<text {place} font-size="11" fill="{BUDGET}">budget {format_bytes(budget)}</text>'
    yield f'<text x="{left:.0f}" y="{HEIGHT - 6}" {NOTE}>tensors, step by step; peak {format_bytes(peak)}</text>'
