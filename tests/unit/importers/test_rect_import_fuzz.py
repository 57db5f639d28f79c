"""Files changed at random: a graph that keeps all rules, or one error with a place, in bounded time. Nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rect_damage import draw
from thorough import often
from tilegrad.errors import FormatError
from tilegrad.importers.rects import load_drawing, load_rect_json
from tilegrad.ir import Graph, check_graph
from tilegrad.rects import check_rects, format_rect_json, training_step
from tilegrad.report.dot import format_rects_dot

GRAPH = training_step(batch=4, image=(12, 10), channels=2, layers=[(3, 4)], classes=5, workers=(2, 1))[1]
SCAN = Path(__file__).parents[2] / "data" / "rect_drawing.txt"
MOST_S = 3.0
ODD = ("-1", "1e999", "NaN", "9" * 30, "9" * 5000, '""', "null", "[]", "{}", "[[", "\0", "é", "->", "=", "Rect(", "<:")


def _load_drawing(path: Path) -> Graph:
    return load_drawing(path)[0]


READERS: dict[str, tuple[Callable[[Path], Graph], Callable[[], str], int]] = {
    "json": (load_rect_json, lambda: format_rect_json(GRAPH), often(150, 400)),
    "drawing": (_load_drawing, lambda: draw(GRAPH), often(80, 230)),
    "scan": (_load_drawing, SCAN.read_text, often(30, 80)),
}


def change(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        at = rng.randrange(len(text) + 1)
        size = rng.choice((1, 1, 2, 20, 300))
        how = rng.randrange(6)
        other = rng.randrange(len(text) + 1)
        piece = text[other : other + size]
        text = {
            0: lambda: text[:at] + chr(rng.randrange(32, 127)) + text[at + 1 :],
            1: lambda: text[:at] + text[at + size :],
            2: lambda: text[:at] + piece + text[at:],
            3: lambda: text[:at] + rng.choice(ODD) + text[at + 1 :],
            4: lambda: text[:at] + "\n" + text[at:],
            5: lambda: text[:at] + piece + text[at + size :],
        }[how]()
    return text


@pytest.mark.parametrize("name", READERS)
def test_changed_files(tmp_path: Path, name: str) -> None:
    load, make, times = READERS[name]
    good = make()
    path = tmp_path / "changed"
    rng = random.Random(7)
    seen: dict[str, Any] = {"read": 0, "refused": 0}
    for _ in range(times):
        path.write_text(change(good, rng), errors="replace")
        start = time.process_time()
        try:
            graph = load(path)
        except FormatError as error:
            assert error.where and len(str(error)) < 2000
            seen["refused"] += 1
        else:
            check_graph(graph)
            check_rects(graph)
            assert format_rects_dot(graph) and format_rect_json(graph)
            seen["read"] += 1
        assert time.process_time() - start < MOST_S
    assert seen["read"] and seen["refused"]
