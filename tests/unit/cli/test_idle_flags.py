"""No option of the command line is ignored silently: each, in several companies, changes what is printed or written, or
is refused. What may change nothing, for it depends on the data, is listed with its reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilegrad.cli import _parser, main

ROOT = Path(__file__).parents[3]
NET = """
from torch import nn
def net():
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1)]
    return nn.Sequential(*layers)
"""
COMPANIES = {
    "analyze": [
        "analyze profile.json",
        "analyze profile.json --json",
        "analyze rects.json",
        "analyze rects.json --json",
    ],
    "compare": [
        "compare profile.json other.json",
        "compare profile.json other.json --json",
        "compare plan.json more.json",
        "compare plan.json more.json --json",
    ],
    "tiles": ["tiles small.py:net --input 1x1x16x16 --grid 2x2", "tiles small.py:net --input 1x1x16x16 --mesh 2x2"],
    "plan": ["plan graph.txt --budget 4GB --planner segments", "plan graph.txt --budget 4GB --planner segments --json"],
}
SAMPLES = {
    "top": "1", "sort": "name", "by": "module", "type": "relu", "name": "bn", "min_time": "1ms", "time": "total",
    "machine": "a100", "plans": "", "budget": "1GB", "json": "", "csv": "o.csv", "html": "o.html", "dot": "o.dot",
    "chrome_trace": "o.trace", "mesh": "2x2", "rects": "o.rects", "plot": "o.svg", "grid": "2x2", "exchange": "layer",
    "mode": "gather", "axes": "w,h", "train": "", "input": "1x1x16x16", "planner": "keep", "device": "cuda",
    "effort": "7", "link": "ethernet",
}  # fmt: skip
UNSEEN = {
    ("tiles", "train"): "the geometry of tiles is that of the layers",
    ("tiles", "axes"): "h and w of a square",
    ("tiles", "exchange"): "of two halos",
    ("tiles", "input"): "a second input is refused by the model",
    ("compare", "top"): "there may be fewer groups",
    ("analyze rects.json", "top"): "nothing had to be repaired",
}
COMMON = {"help", "debug", "quiet", "log_level"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = ROOT / "tests" / "data"
    for name, place in (
        ("profile.json", "resnet50_megengine.json"),
        ("other.json", "resnet50_megengine.json"),
        ("rects.json", "rect_graph.json"),
        ("graph.txt", "unet_chainer.txt"),
    ):
        shutil.copy(data / place, name)
    Path("small.py").write_text(NET)
    for at, name in enumerate(("plan.json", "more.json"), start=1):
        plan = {"planner": "keep", "detail": "", "peak_bytes": at, "time_s": at, "extra_time": 0, "host_bytes": 0}
        parts = {"schema": 1, "network": "n", "machine": "m", "budget_bytes": 9, "plain": plan, "plan": plan}
        Path(name).write_text(json.dumps({**parts, "candidates": [{**plan, "fits": True}]}))


def outcome(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and all that is printed and written."""
    code = main(words)
    printed = capsys.readouterr()
    written = sorted((path.name, path.read_bytes()) for path in Path().glob("o.*"))
    for path in Path().glob("o.*"):
        path.unlink()
    return code, printed.err, printed.out + str(written)


def flags(command: str) -> Iterator[tuple[str, list[str]]]:
    parser = _parser(command).command
    assert parser is not None
    for action in parser.actions():
        if action.option_strings and action.dest not in COMMON and action.help != "==SUPPRESS==":
            assert action.dest in SAMPLES, f"a sample for --{action.dest} of tilegrad {command}"
            yield action.dest, [action.option_strings[-1], *SAMPLES[action.dest].split()]


@pytest.mark.parametrize("company", [words for each in COMPANIES.values() for words in each])
def test_it_changes_something_or_is_refused(company: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = company.split()
    code, _, usual = outcome(words, capsys)
    assert code == 0
    idle = []
    for name, flag in flags(words[0]):
        if (words[0], name) in UNSEEN or (company, name) in UNSEEN or flag[0] in words:
            continue
        code, error, found = outcome([*words, *flag], capsys)
        if code == 2:
            assert "Traceback" not in error and "  try  " in error, error
        elif found == usual:
            idle.append(flag)
    assert idle == []
