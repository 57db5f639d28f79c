"""`tilegrad record`: steps that are tried, their report, and one clear message for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tilegrad.cli import main

NET = """
import torch
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
class Fixed(nn.Module):
    def forward(self, x):
        return x.detach() + 1
class Explodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
    def forward(self, x):
        return (self.weight * 3e38 * 10).sum() + 0 * x.sum()
"""
SIZE = ("--input", "1x1x64x64")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(NET)
    return f"{tmp_path}/tiny.py"


def record(capsys: Capture, *args: str) -> str:
    assert main(["record", *args]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refuse(capsys: Capture, *args: str) -> str:
    assert main(["record", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("Error: ") == 1
    assert "Traceback" not in captured.err
    return captured.err


def test_the_loss_falls(model: str, capsys: Capture) -> None:
    found = json.loads(record(capsys, f"{model}:net", *SIZE, "--lr", "0.1", "--json"))
    losses = [step["loss"] for step in found["steps"]]
    assert (found["schema"], found["plan"], len(losses)) == (1, None, 3)
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    assert all(step["peak_bytes"] > 0 for step in found["steps"])


def test_the_same_steps_in_tiles(model: str, capsys: Capture) -> None:
    plain = json.loads(record(capsys, f"{model}:net", *SIZE, "--json"))
    tiled = json.loads(record(capsys, f"{model}:net", *SIZE, "--json", "--budget", "120KiB"))
    whole = max(step["peak_bytes"] for step in plain["steps"])
    assert max(step["peak_bytes"] for step in tiled["steps"]) <= 120 * 1024 < whole
    assert tiled["plan"] is not None
    for one, two in zip(plain["steps"], tiled["steps"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)  # float32, summed in another order


def test_a_seed_repeats_a_run(model: str, capsys: Capture) -> None:
    runs = [json.loads(record(capsys, f"{model}:net", *SIZE, "--json", "--seed", seed)) for seed in ("5", "5", "6")]
    losses = [[step["loss"] for step in run["steps"]] for run in runs]
    assert losses[0] == losses[1] != losses[2]


def test_as_a_table_with_a_report(model: str, tmp_path: Path, capsys: Capture) -> None:
    args = (*SIZE, "--tile", "16", "--steps", "2", "--optimizer", "adam", "--html", str(tmp_path / "t.html"))
    out = record(capsys, f"{model}:net", *args)
    assert "\x1b" not in out
    assert out.count("KiB │") == 2
    assert "plan for Sequential" in out
    assert "2 training steps, inside a memory budget" in (tmp_path / "t.html").read_text()


def test_a_loss_that_is_not_finite_is_json_all_the_same(model: str, capsys: Capture) -> None:
    text = record(capsys, f"{model}:Explodes", *SIZE, "--steps", "1", "--json")

    def refuse_constant(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(text, parse_constant=refuse_constant)


BAD = {
    "steps": (["--steps", "0"], "0 steps are not possible"),
    "both": (["--tile", "16", "--budget", "1MiB"], "give --tile or --budget, not both"),
    "budget": (["--budget", "much"], "'much'"),
    "too little": (["--budget", "1KB"], "nothing fits"),
    "tile": (["--tile", "wide"], "'wide' is not a tile size"),
    "report": (["--html", "/no/such/folder/t.html"], "there is no folder"),
    "learning rate": (["--lr", "-1"], "learning rate"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str, model: str, capsys: Capture) -> None:
    args, message = BAD[case]
    assert message in refuse(capsys, f"{model}:net", *SIZE, *args)


def test_bad_models(model: str, capsys: Capture) -> None:
    assert "there is nothing to train" in refuse(capsys, f"{model}:Fixed", *SIZE)
    assert "is not a model" in refuse(capsys, "nosuch", *SIZE)
    if not torch.cuda.is_available():
        assert "there is no CUDA device" in refuse(capsys, f"{model}:net", *SIZE, "--device", "cuda")
