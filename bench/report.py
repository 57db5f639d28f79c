"""The HTML report of a large profile in a real browser: how large the file is, how fast it opens, hovers and zooms.

python bench/report.py                                        one line of JSON
python bench/report.py --operators 20000 --blocks 5000 --keep page.html
python bench/report.py --picture docs/images/report.png       the report of a plan instead, for the docs
python bench/report.py --tiles docs/images/tiles.png          the tiles of a network
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

import tilegrad
from tilegrad.bounds import tile_graph
from tilegrad.importers import load
from tilegrad.ir import Phase
from tilegrad.models import resnet18
from tilegrad.planners import Effort, Problem, TrainingStep, plan_step
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span, check_profile
from tilegrad.report.html import save_page
from tilegrad.report.page import Drawn, Page
from tilegrad.report.plan_html import plan_page
from tilegrad.report.tiles_html import tiles_page
from tilegrad.sim.machine import find_machine
from tilegrad.units import is_decimal, parse_bytes, units_like

ARGUMENTS = ["--no-sandbox", "--disable-gpu"]
BUDGET = "4GB"
DUMP = Path(__file__).parent.parent / "tests" / "data" / "unet_chainer.txt"
TYPES = [f"aten.{name}" for name in ("convolution", "relu", "add", "native_batch_norm", "max_pool2d", "cat", "mm")]
ARENAS = (0x7F3A_0000_0000, 0x7F3B_4000_0000, 0x7F52_0000_0000)  # far apart, as a caching allocator has them
KINDS = (BlockKind.ACTIVATION, BlockKind.GRADIENT, BlockKind.WORKSPACE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--operators", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=15_000)
    parser.add_argument("--keep", metavar="PAGE.html", help="keep the page there")
    parser.add_argument("--picture", metavar="OUT.png", help="draw the report of a plan for a U-Net, and no more")
    parser.add_argument("--tiles", metavar="OUT.png", help="draw the tiles of a ResNet-18, and no more")
    args = parser.parse_args()
    if args.picture:
        draw_plan(Path(args.picture))
    if args.tiles:
        draw_tiles(Path(args.tiles))
    if args.picture or args.tiles:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.keep or Path(folder) / "page.html").resolve()
        page = large_page(args.operators, args.blocks)
        begin = time.perf_counter()
        save_page(page, path)
        write_s = time.perf_counter() - begin
        figures = {"operators": args.operators, "blocks": args.blocks, "file_bytes": path.stat().st_size}
        print(json.dumps(figures | {"write_s": round(write_s, 3)} | measure(path)))
    return 0


def large_page(operators: int, blocks: int) -> Page:
    profile = large_profile(operators, blocks)
    check_profile(profile)
    return Page("a large profile", f"{operators:,} operators, {blocks:,} blocks", profiles=(Drawn("all", profile),))


def large_profile(operators: int, blocks: int) -> Profile:
    """Operators on two threads and three streams, blocks in three arenas; the same every time."""
    dice, found, now = random.Random(0), list[Operator](), 0.0
    for i in range(operators):
        length, kind = dice.expovariate(1 / 20e-6), TYPES[i % len(TYPES)]
        launch = now + 5e-6
        found.append(
            Operator(
                str(i),
                f"{kind}_{i}",
                kind,
                host=Span(now, now + 4e-6),
                thread=f"thread {1 + (i % 5 == 0)}",
                device=Span(launch, launch + length, launch + length / 10),
                stream=f"stream {(7, 7, 7, 20, 24)[i % 5]}",
                flops=dice.randrange(10**6, 10**9),
                bytes=dice.randrange(10**4, 10**8),
                out_shapes=((1, 64, 1 << i % 8, 1 << i % 8),),
                module=f"layer{i // 100 % 50}.block{i // 10 % 10}",
                phase=Phase.FORWARD if i < operators // 2 else Phase.BACKWARD,
                kernel=f"kernel_{i % 200}",
            )
        )
        now += length
    ticks = 2 * blocks
    clock = tuple(now * i / max(1, ticks) for i in range(ticks))
    tops = [0] * len(ARENAS)
    memory = list[Block]()
    for i in range(blocks):
        start = dice.randrange(ticks)
        stop, arena, size = min(ticks, start + dice.randrange(1, 400)), i % 3, dice.randrange(1, 2**22)
        tops[arena] = (tops[arena] + size) % 2**31
        address, maker = ARENAS[arena] + tops[arena], start * operators // ticks
        memory.append(Block(f"tensor {i}", size, start, stop, KINDS[i % 3], address, "cuda:0", maker))
    return Profile("large", "torch trace", tuple(found), tuple(memory), clock)


def draw_plan(picture: Path) -> None:
    """Candidates and charts."""
    steps = TrainingStep(load(DUMP), find_machine("v100"), Effort(nodes=0))
    with units_like(is_decimal(BUDGET)):
        page = plan_page(plan_step(Problem(parse_bytes(BUDGET), steps)))
    draw(page, "timeline", picture)


def draw_tiles(picture: Path) -> None:
    graph = tilegrad.capture(resnet18().eval(), (1, 3, 1024, 1024))
    draw(tiles_page(tile_graph(graph, "stream", {"h": 4, "w": 4})), "tiles", picture)


def draw(page: Page, last: str, picture: Path) -> None:
    """A page up to the end of this section, light."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        path = Path(folder) / "page.html"
        save_page(page, path)
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        tab = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
        tab.goto(path.as_uri())
        tab.evaluate(NEXT_FRAME)
        tab.set_viewport_size({"width": 1400, "height": tab.evaluate(END_OF, last)})
        tab.evaluate(NEXT_FRAME)
        tab.screenshot(path=picture)
        browser.close()


def measure(path: Path) -> dict[str, Any]:
    """Milliseconds are from an event to the frame after it: what a reader waits."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        begin = time.perf_counter()
        page.goto(path.as_uri())
        page.evaluate(NEXT_FRAME)
        open_s = time.perf_counter() - begin
        found: dict[str, Any] = {"open_s": round(open_s, 3)}
        for name in ("memory", "map", "timeline"):
            page.locator(f"#{name}-chart").scroll_into_view_if_needed()
            found[f"{name}_hover_ms"] = summary(page.evaluate(HOVER, name))
            found[f"{name}_zoom_ms"] = summary(page.evaluate(ZOOM, name))
        found["search_ms"] = summary([page.evaluate(SEARCH, word) for word in ("layer3", "conv 123", "")])
        browser.close()
    return found


def summary(times: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(times), 1), "most": round(max(times), 1)}


END_OF = "(id) => Math.ceil(document.getElementById(id).getBoundingClientRect().bottom) + 24"

NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

HOVER = """async (name) => {
  const chart = document.getElementById(`${name}-chart`), box = chart.getBoundingClientRect(), times = [];
  for (let i = 0; i < 30; i += 1) {
    const x = box.left + 80 + (box.width - 100) * ((i * 7) % 30) / 30, y = box.top + box.height * (0.2 + (i % 6) / 10);
    const begin = performance.now();
    chart.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
    chart.querySelector(".tip").getBoundingClientRect();
    times.push(performance.now() - begin);
    await new Promise(requestAnimationFrame);
  }
  return times;
}"""

ZOOM = """async (name) => {
  const chart = document.getElementById(`${name}-chart`), times = [];
  chart.focus();
  for (const key of ["+", "+", "+", "-", "+", "+", "+", "+", "Escape"]) {
    const begin = performance.now();
    chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - begin);
  }
  return times;
}"""

SEARCH = """(word) => {
  const input = document.querySelector("#operators-table input"), begin = performance.now();
  input.value = word;
  input.dispatchEvent(new Event("input", { bubbles: true }));
  document.querySelector("#operators-table table").getBoundingClientRect();
  return performance.now() - begin;
}"""


if __name__ == "__main__":
    raise SystemExit(main())
