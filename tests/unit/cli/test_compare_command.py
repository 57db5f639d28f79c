"""`tilegrad compare`: two profiles or two plans, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profile_samples import snapshot, write_json
from tilegrad.cli import main
from tilegrad.profile import Block, Operator, Profile, Span
from tilegrad.report.chrome_trace import save_chrome_trace

Capture = pytest.CaptureFixture[str]


def save(path: Path, peak: int, **seconds: float) -> str:
    operators, now = [], 0.0
    for at, (kind, taken) in enumerate(seconds.items()):
        operators.append(Operator(str(at), kind, kind, Span(now, now + taken), module=f"net.{kind}"))
        now += taken
    blocks = (Block("b", peak, 0, 1, device="cpu"),)
    save_chrome_trace(Profile(path.stem, "recorded", tuple(operators), blocks, (0.0,)), path)
    return str(path)


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    one = save(tmp_path / "one.json", 2**20, conv=2, relu=1)
    return [one, save(tmp_path / "two.json.gz", 2**19, conv=0.5, gelu=1)]


def plan(budget: int, seconds: float) -> dict[str, Any]:
    found = {"planner": "recompute", "peak_bytes": budget, "time_s": seconds, "host_bytes": 0, "offset_bytes": budget}
    plain = found | {"planner": "keep", "peak_bytes": 9 << 20, "time_s": 1.0}
    candidates = [found | {"fits": True}, plain | {"fits": False}]
    return {"schema": 1, "budget_bytes": budget, "plain": plain, "plan": found, "candidates": candidates}


def printed(capsys: Capture, *args: str) -> str:
    assert main(["compare", *args]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refuse(capsys: Capture, *args: str) -> str:
    assert main(["compare", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("Error: ") == 1
    assert "Traceback" not in captured.err
    return captured.err


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_profiles_as_tables(both: list[str], capsys: Capture) -> None:
    out = printed(capsys, *both)
    assert "\x1b" not in out
    rows = [cells(line) for line in out.splitlines() if line.startswith("│")]
    assert ["peak", "█" * 20, "1.00MiB", "512KiB", "-512KiB", "0.500 x"] in rows
    assert ["host span", "█" * 20, "3.00 s", "1.50 s", "-1.50 s", "0.500 x"] in rows
    assert ["host waits", "", "–", "–", "–", "–"] in rows  # nobody knows: that is not 0
    assert rows[rows.index(next(row for row in rows if row[0] == "peak")) + 1] == ["", "█" * 10, "", "", "", ""]
    names = [row[0] for row in rows if row[0]]
    assert names[-3:] == ["conv", "relu", "gelu"]  # the largest change first


def test_profiles_as_json(both: list[str], capsys: Capture) -> None:
    found = json.loads(printed(capsys, *both, "--json"))
    assert (found["schema"], found["kind"], found["by"]) == (1, "comparison", "type")
    assert found["groups"][0] == {"name": "conv", "unit": "seconds", "before": 2, "after": 0.5, "ratio": 0.25}
    assert found["groups"][-1]["before"] is None


def test_options(both: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = printed(capsys, *both, "--by", "module", "--top", "1", "--json", str(tmp_path / "c.json"))
    assert "net.conv" in out
    assert "net.relu" not in out
    assert len(json.loads((tmp_path / "c.json").read_text())["groups"]) == 3


def test_a_report_of_both(both: list[str], tmp_path: Path, capsys: Capture) -> None:
    printed(capsys, *both, "--html", str(tmp_path / "c.html"))
    assert "one \\u2192 two" in (tmp_path / "c.html").read_text()


def test_plans(tmp_path: Path, capsys: Capture) -> None:
    files = [str(write_json(tmp_path / f"{at}.json", plan(at << 20, 2.0 / at))) for at in (2, 4)]
    rows = [cells(line) for line in printed(capsys, *files).splitlines() if line.startswith("│")]
    assert [row[:1] + row[2:] for row in rows if row[0] == "budget"] == [
        ["budget", "2.00MiB", "4.00MiB", "+2.00MiB", "2.00 x"]
    ]
    assert [row[0] for row in rows if row[0]][-2:] == ["recompute", "keep"]
    assert json.loads(printed(capsys, *files, "--json"))["by"] == "planner"
    printed(capsys, *files, "--html", str(tmp_path / "p.html"))
    assert "Two plans, side by side" in (tmp_path / "p.html").read_text()


def test_plans_are_told_as_their_budgets_were_given_and_in_two_figures(tmp_path: Path, capsys: Capture) -> None:
    plans = [plan(at * 10**6, 1.2345 / at) | {"decimal": True} for at in (2, 4)]
    files = [str(write_json(tmp_path / f"{at}.json", found)) for at, found in enumerate(plans)]
    rows = [cells(line) for line in printed(capsys, *files, "--html", str(tmp_path / "p.html")).splitlines()]
    assert ["2.00MB", "4.00MB", "+2.00MB", "2.00 x"] in [row[2:] for row in rows if row[:1] == ["budget"]]
    assert ["620 ms", "310 ms", "-310 ms", "0.50 x"] in [row[2:] for row in rows if row[:1] == ["plan time"]]
    assert '"decimal":true' in (tmp_path / "p.html").read_text()


def test_a_change_is_that_of_what_is_shown(tmp_path: Path, capsys: Capture) -> None:
    files = [str(write_json(tmp_path / f"{at}.json", plan(2, time))) for at, time in enumerate((0.604, 0.585))]
    rows = [cells(line) for line in printed(capsys, *files).splitlines()]
    assert ["600 ms", "580 ms", "-20 ms", "0.97 x"] in [row[2:] for row in rows if row[:1] == ["plan time"]]


def test_what_cannot_be_compared(both: list[str], tmp_path: Path, capsys: Capture) -> None:
    a_plan = str(write_json(tmp_path / "plan.json", plan(2, 1.0)))
    assert "a plan and a profile cannot be compared" in refuse(capsys, both[0], a_plan)
    assert "the file cannot be read" in refuse(capsys, both[0], str(tmp_path / "missing"))
    assert "--top -1 is not possible" in refuse(capsys, *both, "--top", "-1")
    assert "there is no folder" in refuse(capsys, *both, "--json", str(tmp_path / "no" / "c.json"))


@pytest.mark.parametrize("change", [{"candidates": 7}, {"plan": None}, {"plain": []}, {"candidates": [3]}])
def test_broken_plans(change: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    good, broken = plan(2, 1.0), plan(2, 1.0) | change
    files = [str(write_json(tmp_path / name, data)) for name, data in (("good.json", good), ("bad.json", broken))]
    assert "bad.json" in refuse(capsys, *files)


@pytest.mark.parametrize("planner", [["a", "list"], {"an": "object"}, None, 7, "\x1b[31m"])
def test_plans_with_odd_planners(planner: Any, tmp_path: Path, capsys: Capture) -> None:
    odd = plan(2, 1.0)
    odd["candidates"][0]["planner"] = planner
    path = str(write_json(tmp_path / "odd.json", odd))
    code = main(["compare", path, path])
    captured = capsys.readouterr()
    assert code in (0, 2)
    assert "\x1b" not in captured.out
    assert (code == 2) == ("Error: " in captured.err)


def test_profiles_without_operators(tmp_path: Path, capsys: Capture) -> None:
    path = str(write_json(tmp_path / "s.json", snapshot()))
    assert "peak" in printed(capsys, path, path)


@pytest.mark.parametrize("figures", [{}, {"time_s": 10**400}, {"time_s": "1 s"}, {"time_s": 1, "peak_bytes": 10**400}])
def test_plans_with_odd_figures(figures: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    odd = plan(2, 1.0)
    odd["plan"] = odd["candidates"][0] = {"planner": "recompute", "fits": True} | figures
    path = str(write_json(tmp_path / "odd.json", odd))
    assert main(["compare", path, path]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
