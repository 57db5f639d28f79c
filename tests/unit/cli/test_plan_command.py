"""`tilegrad plan`: its table and its JSON, several budgets, and one clear message for each kind of bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tilegrad.cli import main
from tilegrad.errors import InputError
from tilegrad.ir import format_graph
from tilegrad.sim.training import forward_part
from training_graphs import chain_graph, seeded_graph

UNET = str(Path(__file__).parents[2] / "data" / "unet_chainer.txt")
UNIT = 1 << 16  # bytes: worth a copy
SMALL = """
from torch import nn
def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 1, 3, padding=1))
"""
COST = {"planner", "detail", "peak_bytes", "time_s", "extra_time", "host_bytes", "offset_bytes", "gap", "notes"}


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """Plain needs 5.2 MB, segments 4.6, recompute 3.9, copies 3.7."""
    path = tmp_path / "graph.txt"
    path.write_text(format_graph(seeded_graph(19, unit=UNIT)))
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(SMALL)
    return f"{tmp_path}/small.py:net"


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """What `--json` prints: nothing else is on standard output."""
    assert main(["plan", *args, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def refuse(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The message of bad input: one, on standard error, exit code 2."""
    assert main(["plan", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(re.findall(r"^\w*Error: ", captured.err, re.MULTILINE)) == 1
    assert "Traceback" not in captured.err
    return captured.err


def test_json(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, graph, "--budget", "4.5MB")
    assert found.keys() == {"schema", "network", "machine", "budget_bytes", "decimal", "plain", "plan", "candidates"}
    assert (found["schema"], found["network"], found["machine"]) == (1, "random", "v100")
    assert found["budget_bytes"] == 4_500_000 and found["decimal"] is True
    assert found["plain"].keys() == found["plan"].keys() == COST
    assert all(item.keys() == COST | {"fits"} for item in found["candidates"])
    assert {c["planner"] for c in found["candidates"]} == {"keep", "segments", "recompute", "offload"}
    chosen = found["plan"]
    assert chosen["peak_bytes"] <= 4_500_000 < found["plain"]["peak_bytes"]
    assert chosen["extra_time"] == chosen["time_s"] / found["plain"]["time_s"] - 1
    assert chosen["peak_bytes"] <= chosen["offset_bytes"]
    assert chosen["time_s"] == min(c["time_s"] for c in found["candidates"] if c["fits"])


def test_the_unet_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, UNET, "--budget", "5GB", "--planner", "recompute", "--effort", "0", "--machine", "v100")
    assert found["plain"]["peak_bytes"] == 7_448_949_264
    assert found["plan"]["planner"] == "recompute"
    assert found["plan"]["offset_bytes"] == found["plan"]["peak_bytes"] <= 5_000_000_000
    assert 0.02 < found["plan"]["extra_time"] < 0.09


@pytest.mark.parametrize(
    ("planner", "budget"), [("keep", 6), ("segments", 5), ("recompute", 4.5), ("offload", 4), ("auto", 4)]
)
def test_planners_of_whole_nodes(planner: str, budget: float, graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, graph, "--budget", f"{budget}MB", "--planner", planner)
    assert found["plan"]["peak_bytes"] <= budget * 1e6
    if planner != "auto":
        assert found["plan"]["planner"] == planner
    assert (found["plan"]["host_bytes"] > 0) == (found["plan"]["planner"] == "offload")


@pytest.mark.parametrize("planner", ["tile", "auto"])
def test_tiles_of_a_model(planner: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--input", "1x1x64x64", "--machine", "v100", "--planner", planner)
    found = plan(capsys, model, "--budget", "60kB", *args)
    assert found["plan"]["planner"] == "tile"
    assert found["plan"]["offset_bytes"] is None  # the allocator's business
    assert found["plan"]["peak_bytes"] <= 60_000 < found["plain"]["peak_bytes"]


def test_the_table(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", graph, "--budget", "4.5MB"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].strip() == "plans for a budget of 4.50MB"
    for title in ("planner", "how", "peak", "time", "extra time", "to and from host"):
        assert title in lines[2]
    assert sum("->" in line for line in lines) == 1
    (keep,) = [line for line in lines if "everything" in line]
    assert re.match(r"│ x +│ keep +│ everything +│ 5\.24MB │", keep)
    assert any(line.startswith("alive at the peak") for line in lines)
    assert any("for what comes and goes: as small as can be" in line for line in lines)
    assert lines[-1] == "machine     v100"


def test_a_missing_solver_is_noted(
    graph: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert main(["plan", graph, "--budget", "4.5MB", "--planner", "recompute"]) == 0
    assert "note: the recompute planner needs the solver highspy" in capsys.readouterr().out
    (note,) = plan(capsys, graph, "--budget", "4.5MB", "--planner", "recompute")["plan"]["notes"]
    assert note == "the recompute planner needs the solver highspy: this is the heuristic's plan"


def test_several_budgets(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    budgets = ["5MB", "4MB", "0.5 of device", "5MB", "4.5MB"]
    found = plan(capsys, graph, *(part for text in budgets for part in ("--budget", text)))
    assert found.keys() == {"schema", "front", "sweep"}
    assert [p["budget_bytes"] for p in found["sweep"]] == [5_000_000, 4_000_000, 8_000_000_000, 5_000_000, 4_500_000]
    for planning in found["sweep"]:
        assert planning["plan"]["peak_bytes"] <= planning["budget_bytes"]
    ordered = sorted(found["sweep"], key=lambda p: p["budget_bytes"])
    times = [p["plan"]["time_s"] for p in ordered]
    assert times == sorted(times, reverse=True)
    assert ordered[-1]["plan"] == ordered[-1]["plain"]


def test_several_budgets_as_a_table(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", graph, "--budget", "5MB", "--budget", "4MB", "--budget", "1kB"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == "" and lines[0].strip().startswith("plans for 3 budgets; plain needs 5.24MB, ")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert [row[0] for row in rows] == ["5.00MB", "4.00MB", "1.00kB"]
    for row in rows[:2]:
        assert re.fullmatch(r"(\d+ nodes run again, )?\S+ to and from the host", row[3]) and row[6].startswith("+")
    assert re.fullmatch(r"nothing fits: the least is 3\.\d+MB", rows[2][3]) and rows[2][4:] == ["", "", ""]
    assert sum("┤" in line for line in lines) == 12 and lines[-1] == "machine     v100"


def test_without_a_budget_the_curve_is_planned(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, graph, "--effort", "0")
    plain = found["sweep"][-1]["plain"]["peak_bytes"]
    assert [p["budget_bytes"] / plain for p in found["sweep"]] == pytest.approx(
        [k / 10 for k in range(1, 10)], abs=1e-6
    )
    refused, planned = found["sweep"][0], found["sweep"][-1]
    assert refused.keys() == {"budget_bytes", "plan", "least_bytes", "why", "try"} and refused["plan"] is None
    assert planned["budget_bytes"] >= planned["plan"]["peak_bytes"] and refused["least_bytes"] > refused["budget_bytes"]
    peaks, times = ([c[key] for c in found["front"]] for key in ("peak_bytes", "time_s"))
    assert peaks == sorted(set(peaks)) and times == sorted(set(times), reverse=True)
    every = [c for p in found["sweep"] if p["plan"] for c in p["candidates"]]
    assert times[-1] == min(c["time_s"] for c in every) and peaks[0] == min(c["peak_bytes"] for c in every)


def test_a_range_in_which_nothing_fits(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing fits 4.00kB: the smallest plan found" in refuse(capsys, graph, "--budget", "1kB..4kB")


def test_a_plot_and_a_report_of_several_budgets(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "curve.svg", tmp_path / "plans.html"]
    plan(capsys, graph, "--budget", "60%..90%", "--plot", str(files[0]), "--html", str(files[1]), "--effort", "0")
    assert "peak memory in MiB" in files[0].read_text() and '"Budgets"' in files[1].read_text()
    assert sorted(tmp_path.iterdir()) == sorted([Path(graph), *files])  # no draft is left
    plan(capsys, graph, "--budget", "4.5MB", "--plot", str(files[0]), "--html", str(files[1]), "--effort", "0")
    assert "peak memory in MB" in files[0].read_text() and '"decimal":true' in files[1].read_text()


@pytest.mark.parametrize(
    ("name", "message"), [("a.gif", "a plot cannot be written as 'gif'"), ("no/a.svg", "no folder")]
)
def test_plots_that_cannot_be(name: str, message: str, graph: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        main(["plan", graph, "--budget", "90%", "--plot", str(tmp_path / name), "--debug"])


BUDGETS = {
    "4XB": "'4XB' is not a number of bytes",
    "-1": "'-1' is not a number of bytes",
    "nan": "'nan' is not a number of bytes",
    "inf": "'inf' is not a number of bytes",
    "0": "a size of 0 bytes is not possible",
    "": "'' is not a number of bytes",
    "0 of device": "a budget of 0 of device is not possible",
    "2 of device": "a budget of 2 of device is not possible",
    "-0.5 of device": "is not a number of bytes",
    "200% of device": "a budget of 200% of device is not possible",
    "half of device": "'half of device' is not a number of bytes",
    "0%": "a budget of 0% is not possible",
    "4GB..2GB": "the budgets 4GB..2GB do not go from less to more",
}


@pytest.mark.parametrize("text", BUDGETS)
def test_bad_budgets(text: str, graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert BUDGETS[text] in refuse(capsys, graph, f"--budget={text}")


BAD = {
    "no input": (["unet"], "a model needs the shape of its input\n  try  --input 1x3x512x512"),
    "no such file": (["missing.txt"], "'missing.txt' is neither a file nor a model"),
    "no such model": (["nosuch", "--input", "1x3x8x8"], "'nosuch' is neither a file nor a model"),
    "a folder": (["/tmp"], "'/tmp' is neither a file nor a model"),
    "no such factory": (["{model}ted", "--input", "1x1x8x8", "--machine", "v100"], "has no 'netted'"),
    "another format": (["{small}"], "the file has no format that is known here"),
    "unknown machine": (["{graph}", "--machine", "abacus"], "'abacus' is not a machine\n  try  this, v100"),
    "no such machine file": (["{graph}", "--machine", "x.toml"], "the machine file cannot be read"),
    "negative effort": (["{graph}", "--effort", "-1"], "an effort of -1 is not possible\n  try  --effort 200"),
    "endless effort": (["{graph}", "--effort", "9" * 99], "9 is not possible\n  try  --effort 200"),
    "seconds": (["{graph}", "--seconds", "0"], "--seconds is gone\n  try  --effort 0, or --effort 200"),
    "not a shape": (["{model}", "--input", "1x1xq"], "'1x1xq' is not a shape"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, graph: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    given, message = BAD[case]
    args = [part.format(graph=graph, model=model, small=model.removesuffix(":net")) for part in given]
    assert message in refuse(capsys, *args, "--budget", "4GB")


def test_bad_options(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--planner fastest is not possible" in refuse(capsys, graph, "--budget", "4GB", "--planner", "fastest")


@pytest.mark.parametrize("planner", ["keep", "segments", "recompute", "offload", "auto"])
def test_too_small_a_budget_names_one_that_works(planner: str, graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refuse(capsys, graph, "--budget", "1kB", "--planner", planner)
    assert message.startswith("BudgetError: nothing fits 1.00kB: the smallest plan found needs ")
    (least,) = re.findall(r"\((\d+) bytes\)", message)
    (hint,) = re.findall(r'try  budget="(\w+)"', message)
    for budget in (least, hint):
        found = plan(capsys, graph, "--budget", budget, "--planner", planner)
        assert found["plan"]["peak_bytes"] <= found["budget_bytes"]


def test_too_small_a_budget_for_tiles_names_one_that_works(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = (model, "--input", "1x1x24x24", "--machine", "v100")
    (least,) = re.findall(r"\((\d+) bytes\)", refuse(capsys, *args, "--budget", "1kB"))
    found = plan(capsys, *args, "--budget", least)
    assert (found["plan"]["planner"], found["plan"]["peak_bytes"]) == ("tile", int(least))


IMAGES = """graph images
value x: float32[1, 3, 64, 64] input
value y: float32[1, 3, 64, 64] activation
value g: float32[1, 3, 64, 64] gradient
node a = relu(self: x) -> y {} @ {"target": "aten.no_such.operator"}
node b = relu_backward(result: y as retained_output) -> g {"of": "a"} @ {"phase": "backward"}
"""
UNKNOWN = {
    "no operator": format_graph(chain_graph([UNIT] * 4)),
    "several outputs": format_graph(seeded_graph(19, unit=UNIT)),
    "no such operator": IMAGES,
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_torch_does_not_know_is_planned_whole(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(UNKNOWN[case])
    assert "the planner 'tile' has no plan" in refuse(capsys, str(path), "--budget", "100kB", "--planner", "tile")
    assert "the smallest plan found needs" in refuse(capsys, str(path), "--budget", "100kB")


def test_a_graph_without_a_backward_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(format_graph(forward_part(chain_graph([UNIT] * 4))))
    assert plan(capsys, str(path), "--budget", "1MB")["plan"]["planner"] == "keep"
    assert f"({2 * UNIT + 1} bytes)" in refuse(capsys, str(path), "--budget", "1kB")


def test_a_report_too(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, graph, "--budget", "4.5MB", "--html", str(tmp_path / "plan.html"))
    assert found["plan"]["planner"] != "keep"
    assert (tmp_path / "plan.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_network_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    narrow, wide = (
        plan(capsys, f"unet(depth=1, base={base})", "--input", "1x1x16x16", "--budget", "1GB")["plain"]["peak_bytes"]
        for base in (2, 4)
    )
    assert 0 < narrow < wide
