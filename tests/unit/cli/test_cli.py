"""The command line: output, exit codes, and one clear error for each kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilegrad.cli import main

SMALL = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 1, 3, padding=1))
def fails():
    raise ValueError("no weights here")
def number():
    return 7
not_callable = 3
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(SMALL)
    return str(tmp_path / "small.py")


def test_tiles_as_json_is_half_open_and_clipped(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiles", f"{model}:net", "--input", "1x1x16x12", "--grid", "2x3", "--mode", "scatter", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["grid"], found["input_shape"]) == ("scatter", [2, 3], [1, 1, 16, 12])
    assert [t["tile"] for t in found["tiles"]] == [[i, j] for i in range(2) for j in range(3)]
    first = found["tiles"][0]
    assert first["output"] == {"h": [0, 4], "w": [0, 2]}
    assert [n["op"] for n in first["nodes"]] == ["conv2d", "relu", "max_pool2d", "conv2d"]
    last = first["nodes"][-1]
    assert (last["out"], last["reads"]) == ({"h": [0, 4], "w": [0, 2]}, {"h": [0, 5], "w": [0, 3]})
    assert last["pad"] == {"h": [1, 0], "w": [1, 0]}
    assert first["nodes"][0]["reads"] == {"h": [0, 11], "w": [0, 7]}


def test_gather_owns_boxes_of_the_input(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiles", f"{model}:net", "--input", "1x1x16x16", "--grid", "4x4", "--mode", "gather", "--json"]) == 0
    tiles = json.loads(capsys.readouterr().out)["tiles"]
    assert [t["input"]["h"] for t in tiles[::4]] == [[0, 4], [4, 8], [8, 12], [12, 16]]


@pytest.mark.parametrize("mode", ["gather", "scatter", "stream"])
def test_tiles_as_a_table(model: str, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiles", f"{model}:net", "--input", "1x1x32x32", "--grid", "4x4", "--mode", mode]) == 0
    out = capsys.readouterr().out
    assert "max_pool2d" in out
    assert "work against untiled" in out
    assert ("1.000" in out) == (mode == "stream")


BAD = {
    "no such model": (["nosuch"], "'nosuch' is not a model"),
    "no such file": (["missing.py:net"], "there is no file 'missing.py'"),
    "no such module": (["no.such.module:net"], "does not import: ModuleNotFoundError"),
    "no such factory": (["{model}:nothing"], "has no 'nothing'"),
    "factory fails": (["{model}:fails"], "failed: ValueError: no weights here"),
    "not a module": (["{model}:number"], "gave a int, not a torch.nn.Module"),
    "not callable": (["{model}:not_callable"], "cannot be called"),
    "wrong channels": (["{model}:net", "--input", "1x3x16x16"], "the model does not run on these inputs"),
    "not a shape": (["{model}:net", "--input", "1x1xax16"], "is not a shape"),
    "too many tiles": (["{model}:net", "--grid", "99x2"], "99 tiles along h, but"),
    "unknown axis": (["{model}:net", "--axes", "h,q"], "has no axis 'q'"),
    "axis twice": (["{model}:net", "--axes", "h,h"], "named twice"),
    "grid and axes": (["{model}:net", "--grid", "2x2x2"], "a grid of 3 sizes for 2 axes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_error(case: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    given, message = BAD[case]
    args = ["tiles", *(part.format(model=model) for part in given)]
    args += [] if "--input" in args else ["--input", "1x1x16x16"]
    args += [] if "--grid" in args else ["--grid", "2x2"]
    assert main(args) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_file_that_does_not_import_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nimport nothing_like_this\n")
    assert main(["tiles", f"{tmp_path}/broken.py:net", "--input", "1x1x8x8", "--grid", "2x2"]) == 2
    assert "broken.py:2" in capsys.readouterr().err


def test_debug_shows_the_traceback(model: str) -> None:
    with pytest.raises(Exception, match="no weights here"):
        main(["tiles", f"{model}:fails", "--input", "1x1x8x8", "--grid", "2x2", "--debug"])


def test_verify_agrees_and_says_so(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{model}:net", "--input", "1x1x20x18", "--tile", "6"]) == 0
    assert "0 / " in capsys.readouterr().out


def test_verify_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{model}:net", "--input", "1x1x20x18", "--tile", "6x9", "--mode", "gather", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["differ"] == 0
    names = [t["name"] for t in found["tensors"]]
    assert {"output", "gradient of input 0", "gradient of 0.weight", "gradient of 3.bias"} <= set(names)
    assert found["plain"]["peak_bytes"] > 0 and found["tiled"]["step_s"] > 0


def test_verify_exits_1_when_gradients_differ(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tilegrad.execution.seam as seam

    broken = seam.Seam.assemble
    monkeypatch.setattr(seam.Seam, "assemble", lambda self, own: broken(self, own) * 1.001)
    assert main(["verify", f"{model}:net", "--input", "1x1x20x18", "--tile", "6", "--mode", "stream"]) == 1
    assert "elements differ" in capsys.readouterr().out


def test_verify_wants_a_tile_or_a_budget(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{model}:net", "--input", "1x1x20x18"]) == 2
    assert "--tile or --budget" in capsys.readouterr().err


def test_a_budget_that_nothing_fits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{model}:net", "--input", "1x1x64x64", "--budget", "1kB"]) == 2
    assert "the smallest plan found needs" in capsys.readouterr().err
