"""`tilegrad tiles --mesh` and `tilegrad analyze` for graphs of rects: figures per worker, one message when wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilegrad
import tilegrad.errors
from tilegrad.cli import main

DATA = Path(__file__).parents[2] / "data"
VGG = ["tiles", "vgg16", "--input", "1x3x64x64"]


def test_workers_of_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VGG, "--mesh", "2x2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"h": 2, "w": 2} and len(found["workers"]) == 4
    boxes = [worker["boxes"][next(iter(worker["boxes"]))]["owned"] for worker in found["workers"]]
    assert sum((b[2][1] - b[2][0]) * (b[3][1] - b[3][0]) for b in boxes) == 64 * 64
    sent = sum(worker["sent_bytes"] for worker in found["workers"])
    assert sent == sum(worker["received_bytes"] for worker in found["workers"]) > 0


def test_workers_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VGG, "--mesh", "2", "--axes", "w", "--exchange", "segment"]) == 0
    out = capsys.readouterr().out
    assert "2 along w" in out and "imbalance" in out


def test_a_step_on_paper(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "vgg16", "--input", "1x3x256x256", "--mesh", "2x2"]
    assert main(words) == 0
    assert "ethernet" in capsys.readouterr().out
    assert main([*words, "--link", "infiniband", "--budget", "40GB", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["links"]
    assert found["link"] == "infiniband" and found["ranks"] == 4 and found["fits"] and found["step_s"] > 0
    assert main(["plan", str(DATA / "rect_graph.json"), "--mesh", "2x2"]) == 2
    assert "cannot be cut over ranks" in capsys.readouterr().err
    assert main([*words[:-1], "2x2x2"]) == 2
    assert "a mesh of 2x2x2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*VGG], "--grid or --mesh"),
        ([*VGG, "--grid", "2x2", "--mesh", "2x2"], "one of them"),
        ([*VGG, "--mesh", "2x2x2"], "3 sizes for 2 axes"),
        ([*VGG, "--mesh", "100x2"], "100 ranks along h"),
    ],
)
def test_bad_meshes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("file", ["rect_graph.json", "rect_drawing.txt"])
def test_rects(file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outputs = ["--dot", str(tmp_path / "step.dot"), "--rects", str(tmp_path / "step.json")]
    assert main(["analyze", str(DATA / file), "--json", *outputs]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] | {"kinds": None} == {"arrays": 34, "operators": 41, "edges": 100, "kinds": None}
    assert found["totals"]["parameters"] == 293_629_250
    assert found["totals"]["step_flops"] == 447_945_375_744
    assert bool(found["repairs"]) == (file == "rect_drawing.txt")
    graph, _ = tilegrad.load_rects(DATA / file)
    assert tilegrad.load_rects(tmp_path / "step.json")[0] == graph
    assert (tmp_path / "step.dot").read_text().startswith("digraph")


def test_rects_on_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(DATA / "rect_graph.json"), "--mesh", "2x2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["workers"]) == 4
    params = [worker["owned_bytes_by_role"]["param"] for worker in found["workers"]]
    assert max(params) < 1.2 * 4 * 293_629_250 / 4
    assert main(["analyze", str(DATA / "rect_graph.json"), "--mesh", "2"]) == 0
    assert "worker" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rect_graph.json", "--html", "x.html"], "--html needs times"),
        (["rect_graph.json", "--mesh", "2x2x2"], "two axes"),
        (["rect_graph.json", "--mesh", "99x1"], "workers"),
        (["resnet50_megengine.json", "--mesh", "2x2"], "are for graphs of rects"),
    ],
)
def test_bad_rects(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(DATA / words[0]), *words[1:]]) == 2
    assert message in capsys.readouterr().err


def test_load_says_what_it_is() -> None:
    with pytest.raises(tilegrad.errors.FormatError, match="rect graph"):
        tilegrad.load(DATA / "rect_graph.json")
    with pytest.raises(tilegrad.errors.FormatError, match="not a graph of rects"):
        tilegrad.load_rects(DATA / "unet_chainer.txt")
