"""Manners of the command line: what was meant, what has no effect, how wide, how loud, and who has stopped reading."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from tilegrad.cli import COMMANDS, _parser, main
from tilegrad.cli.parser import Parser
from tilegrad.units import format_bytes, format_seconds

ROOT = Path(__file__).parents[3]
GRAPH, PROFILE = "unet_chainer.txt", "resnet50_megengine.json"
RUN = [sys.executable, "-c", "import sys; from tilegrad.cli import main; sys.exit(main())"]
NET = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))
"""
SUMMED = """
class Summed(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 2)
"""
SCRIPT = """
import sys
import torch
import beside
print("heard", sys.argv[1:], __name__)
(torch.nn.Conv2d(1, beside.WIDTH, 3)(torch.randn(1, 1, 16, 16))).sum().backward()
if "fail" in sys.argv:
    raise ValueError("not today")
sys.exit(3 if "three" in sys.argv else 0)
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(NET)
    Path("beside.py").write_text("WIDTH = 4\n")
    Path("script.py").write_text(SCRIPT)
    Path("run.toml").write_text("")
    for name, place in (("graph.txt", GRAPH), ("profile.json", PROFILE)):
        shutil.copy(ROOT / "tests" / "data" / place, name)


def refuse(capsys: Capture, *words: str) -> str:
    assert main(list(words)) == 2
    found = capsys.readouterr()
    assert found.out == "" and "Traceback" not in found.err and "\n  try  " in found.err
    return found.err


TILES = ("tiles", "small.py:net", "--input", "1x1x16x16", "--grid", "2x2")
MEANT = {
    "a command": (["plna"], "did you mean 'plan'?"),
    "an option": ([*TILES, "--jsn"], "did you mean '--json'?"),
    "a required option": (["tiles", "small.py:net", "--inptu", "1x1x16x16"], "did you mean '--input'?"),
    "an option that is cut short": ([*TILES, "--js"], "did you mean '--json'?"),
    "a choice": ([*TILES, "--mode", "gathr"], "did you mean 'gather'?"),
    "a network": (["tiles", "resnet81", *TILES[2:]], "did you mean 'resnet18'?"),
    "a network to plan": (["plan", "resnet5", "--input", "1x3x8x8"], "did you mean 'resnet50'?"),
    "a function": (["tiles", "small.py:nte", *TILES[2:]], "did you mean 'net'?"),
    "a file of code": (["tiles", "smal.py:net", *TILES[2:]], "did you mean 'small.py'?"),
    "a graph": (["plan", "graph.tx"], "did you mean 'graph.txt'?"),
    "a profile": (["analyze", "profile.jsn"], "did you mean 'profile.json'?"),
    "a script": (["record", "scrip.py"], "did you mean 'script.py'?"),
    "an image": (["predict", "small.py:net", "profil.json", "--out", "o.npy"], "did you mean 'profile.json'?"),
    "a measurement": (["bench", "machin"], "did you mean 'machine'?"),
    "a configuration": (["train", "runn.toml"], "did you mean 'run.toml'?"),
    "nothing near": (["xyzzy"], "one of tiles, plan"),
    "an option of another command": ([*TILES, "--tile", "64"], "one of -h, --help, --debug"),
    "an axis": ([*TILES, "--axes", "q"], "has no axis 'q'"),
    "a network with options": (["plan", "resnt18(width=0.5)", "--input", "1x3x8x8"], "did you mean 'resnet18'?"),
    "a file for JSON": ([*TILES, "--json", "tiles.json"], "--json > tiles.json"),
    "one word too many": ([*TILES, "more"], "'more' is one word too many"),
    "no number": (["record", "small.py:net", "--input", "1x1x8x8", "--steps", "few"], "invalid int value: 'few'"),
    "a shape that does not fit": (
        ["tiles", "small.py:net", "--input", "1x3x16x16", "--grid", "2x2"],
        "does not run on",
    ),
}


@pytest.mark.parametrize("case", MEANT)
def test_what_was_meant(case: str, capsys: Capture) -> None:
    words, hint = MEANT[case]
    assert hint in refuse(capsys, *words)


MODEL = ("small.py:net", "--input", "1x1x16x16")
IDLE = {
    "--exchange": ["tiles", *MODEL, "--grid", "2x2", "--exchange", "layer"],
    "--mode": ["tiles", *MODEL, "--mesh", "2x2", "--mode", "gather"],
    "--input": ["plan", "graph.txt", "--input", "1x3x8x8"],
    "--device": ["plan", "graph.txt", "--device", "cuda"],
    "--effort": ["plan", "graph.txt", "--planner", "keep", "--effort", "3"],
    "--by": ["compare", "plan.json", "plan.json", "--by", "shape"],
    "--top": ["compare", "profile.json", "profile.json", "--json", "--top", "3"],
    "--sort": ["analyze", "profile.json", "--json", "--sort", "name"],
    "--time": ["analyze", "profile.json", "--json", "--html", "x.html", "--time", "total"],
    "--steps": ["record", "--steps", "3", "script.py"],
    "--budget": ["record", "--budget", "1MiB", "script.py"],
    "axes": ["verify", *MODEL, "--tile", "8", "--axes", "q"],
}


@pytest.mark.parametrize("option", IDLE)
def test_what_has_no_effect_is_refused(option: str, capsys: Capture) -> None:
    parts = {"schema": 1, "plain": {}, "plan": {}, "candidates": [], "budget_bytes": 1}
    Path("plan.json").write_text(json.dumps(parts))
    found = refuse(capsys, *IDLE[option])
    assert f"{option} has no effect" in found or "there is no axis 'q'" in found


def test_options_of_a_graph_of_rects(capsys: Capture) -> None:
    file = next(str(path) for path in (ROOT / "tests" / "data").glob("*.json") if "rect" in path.name)
    for option in ("--sort name", "--by name", "--type conv", "--name conv", "--time total", "--machine v100"):
        assert option.split()[0] in refuse(capsys, "analyze", file, *option.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_is_given_once(command: str) -> None:
    found = _parser(command).command
    assert isinstance(found, Parser)
    texts = [text for action in found.actions() for text in action.option_strings if action.help != "==SUPPRESS=="]
    assert {"--debug", "--quiet", "--log-level"} <= set(texts)
    assert all(action.help for action in found.actions() if action.option_strings)


def test_bytes_are_printed_as_they_were_given(capsys: Capture) -> None:
    for budget, other in (("9GB", "iB"), ("9GiB", "MB ")):
        assert main(["plan", "graph.txt", "--budget", budget, "--planner", "keep"]) == 0
        out = capsys.readouterr().out
        assert f"plans for a budget of 9.00{budget[1:]}" in out and other not in out


def test_a_pipe_is_as_wide_as_columns_says(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    for columns in ("", "60", "0", "wide"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main([*TILES]) == 0
        widths.append(max(map(len, capsys.readouterr().out.splitlines())))
    assert widths[1] == 60 and widths[0] == widths[2] == widths[3] > 60


def test_quiet(capsys: Capture) -> None:
    for words in ([*TILES], ["verify", *MODEL, "--tile", "8"], ["plan", "graph.txt", "--budget", "9GiB"]):
        assert main([*words, "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")
    assert main(["--quiet", *TILES, "--json"]) == 0  # before the command, too
    assert json.loads(capsys.readouterr().out)["grid"] == [2, 2]


def test_the_log(capsys: Capture) -> None:
    Path("small.py").write_text("import torch\n" + NET.replace("nn.ReLU()", "Summed()") + SUMMED)
    words = ("verify", *MODEL, "--tile", "8", "--axes", "h")
    for more, said in ((), True), (("--log-level", "error"), False), (("--quiet",), False):
        assert main([*words, *more]) == 0
        assert capsys.readouterr().err.startswith("WARNING: cumsum") == said
    assert "one of debug, info, warning, error" in refuse(capsys, *words, "--log-level", "xyzzy")


def test_a_script_is_recorded(capsys: Capture) -> None:
    before = (sys.argv, list(sys.path))
    assert main(["record", "--html", "page.html", "script.py", "--epochs", "3", "--html"]) == 0
    out = capsys.readouterr().out
    assert "heard ['--epochs', '3', '--html'] __main__" in out
    assert "aten.convolution_backward" in out and "alive at the peak" in out
    assert "script.py" in Path("page.html").read_text()
    assert (sys.argv, sys.path) == before


def test_a_script_that_ends_otherwise(capsys: Capture) -> None:
    assert main(["record", "script.py", "three"]) == 3
    assert main(["record", "script.py", "fail"]) == 2
    error = capsys.readouterr().err
    assert "'script.py' failed: ValueError: not today" in error and "script.py:8" in error
    Path("script.py").write_text("print(1)")
    assert "ran no operator" in refuse_script(capsys)


def refuse_script(capsys: Capture) -> str:
    assert main(["record", "script.py"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("words", [["analyze", "profile.json"], ["analyze", "profile.json", "--json"], ["--help"]])
def test_a_reader_that_goes_is_no_error(words: list[str]) -> None:
    with subprocess.Popen([*RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ours:
        assert ours.stdout is not None and ours.stderr is not None
        ours.stdout.close()
        assert ours.stderr.read() == b""
    assert ours.returncode == 0


def test_a_terminal_without_colours() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*RUN, "analyze", "profile.json", "--top", "2"], stdout=slave, stderr=slave, env=environment, check=False
    )
    os.close(slave)
    printed = os.read(master, 1 << 16)
    os.close(master)
    assert done.returncode == 0
    assert b"top 2 by time" in printed and b"\x1b" not in printed


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_words_are_completed(capsys: Capture) -> None:
    assert main(["completion", "bash"]) == 0
    Path("complete.sh").write_text(capsys.readouterr().out)
    cases = {
        "pl": "plan",
        "verify --mo": "--mode",
        "verify --mode sc": "scatter",
        "tiles resnet5": "resnet50",
        "completion f": "fish",
    }
    for typed, expected in cases.items():
        words = ["tilegrad", *typed.split()]
        quoted = " ".join(words)
        ask = (
            f"source complete.sh; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tilegrad; echo ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected], (typed, done)
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "resnet50" in capsys.readouterr().out


def drawn_by(page: str) -> tuple[dict[str, str], float, int]:
    """The figures of a page, and how long and how high its chart is."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', Path(page).read_text(), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    profile, blocks = data["profile"], data["profile"]["blocks"]
    ends = [0] * (max(blocks["stop"], default=0) + 2)
    for size, birth, death in zip(blocks["bytes"], blocks["start"], blocks["stop"], strict=True):
        ends[birth] += size
        ends[death] -= size
    facts = {term: value for term, value, _ in data["facts"]}
    return facts, profile["end"] * profile["unit_s"], max(accumulate(ends))


def test_figures_of_a_page_are_those_of_its_chart(capsys: Capture) -> None:
    runs = {
        ("time", "peak gpu0:0"): ["analyze", "profile.json"],
        ("time of the last step", "peak of the last step"): ["record", *MODEL, "--tile", "8"],
        ("time, tiled", "peak, tiled"): ["verify", *MODEL, "--tile", "8"],
    }
    for (time, peak), words in runs.items():
        assert main([*words, "--quiet", "--html", "page.html"]) == 0
        facts, seconds, most = drawn_by("page.html")
        assert facts[time] == format_seconds(seconds)
        assert facts[peak] == format_bytes(most)
