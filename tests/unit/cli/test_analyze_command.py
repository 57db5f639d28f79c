"""`tilegrad analyze`: its options, its outputs alone and together, odd names, and one clear message for bad input."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profile_samples import snapshot, write_json
from tilegrad.cli import main
from tilegrad.importers import load_profile
from tilegrad.ir import format_graph
from tilegrad.profile import Block, BlockKind, Operator, Profile, Span
from tilegrad.report.chrome_trace import save_chrome_trace
from trace_schema import check_trace
from training_graphs import chain_graph

SOURCE = str(Path(__file__).parents[2] / "data" / "resnet50_megengine.json")
MS = 1e-3
HOSTILE = ('=HYPERLINK("http://x")', '"]; evil [label="<script>alert(1)</script>', "two\nlines", "[bold]no markup[/]")
Capture = pytest.CaptureFixture[str]


def op(id: str, type: str, module: str, span: Span, flops: int | None, bytes: int, **more: Any) -> Operator:
    return Operator(id, f"op {id}", type, None, "", span, "s", flops, bytes, module=module, **more)


def small_profile(*names: str) -> Profile:
    """Kernels of 3, 2 and 1 ms; with waits 4, 2 and 5. `names`: of further operators."""
    operators = [
        op("0", "conv", "net.b", Span(0, 4 * MS, 1 * MS), 30, 300, writes=("y",)),
        op("1", "relu", "net.c", Span(4 * MS, 6 * MS), None, 1000, reads=("y",), writes=("z",)),
        op("2", "conv", "net.a", Span(6 * MS, 11 * MS, 10 * MS), 90, 10, reads=("z",)),
    ]
    operators += [
        Operator(f"h{at}", name, name, device=Span((20 + at) * MS, (21 + at) * MS), stream="s", module=name)
        for at, name in enumerate(names)
    ]
    blocks = [Block(name, 2**20, 0, 2, BlockKind.ACTIVATION, 0, "gpu", 0) for name in ("y", *names)]
    return Profile("small", "recorded", tuple(operators), tuple(blocks[:1]), (0.0, 4 * MS, 6 * MS, 11 * MS))


@pytest.fixture
def file(tmp_path: Path) -> str:
    save_chrome_trace(small_profile(), tmp_path / "small.json")
    return str(tmp_path / "small.json")


@pytest.fixture
def rows(file: str, tmp_path: Path, capsys: Capture) -> Callable[..., list[dict[str, str]]]:
    def get(*args: str) -> list[dict[str, str]]:
        assert main(["analyze", file, *args, "--csv", str(tmp_path / "out.csv")]) == 0
        assert capsys.readouterr().err == ""
        with open(tmp_path / "out.csv", newline="") as found:
            return list(csv.DictReader(found))

    return get


def printed(capsys: Capture, *args: str) -> str:
    assert main(["analyze", *args]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refuse(capsys: Capture, *args: str) -> str:
    """The message of bad input: one, on standard error, exit code 2."""
    assert main(["analyze", *args]) == 2
    captured = capsys.readouterr()
    assert len(re.findall(r"^\w*Error: ", captured.err, re.MULTILINE)) == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        ([], "012"),
        (["--time", "total"], "201"),
        (["--sort", "seq"], "012"),
        (["--sort", "count"], "012"),
        (["--sort", "name"], "201"),
        (["--sort", "type"], "021"),
        (["--sort", "flops"], "201"),
        (["--sort", "bytes"], "102"),
        (["--sort", "rate"], "201"),
        (["--sort", "bandwidth"], "102"),
        (["--type", "CONV"], "02"),
        (["--name", "net.C"], "1"),
        (["--name", "op 2"], "2"),
        (["--min-time", "2ms"], "01"),
        (["--min-time", "2.5ms", "--time", "total"], "20"),
        (["--type", "conv", "--min-time", "2ms"], "0"),
        (["--type", "nothing like this"], ""),
        (["--top", "1"], "012"),  # of the table that is printed only
    ],
)
def test_which_operators_in_which_order(args: list[str], ids: str, rows: Callable[..., Any]) -> None:
    assert "".join(row["id"] for row in rows(*args)) == ids


def test_a_row_of_csv(rows: Callable[..., Any]) -> None:
    row = rows()[0]
    assert (row["seq"], row["type"], row["module"], row["stream"]) == ("0", "conv", "net.b", "s")
    assert float(row["kernel_s"]) == pytest.approx(3 * MS)
    assert float(row["total_s"]) == pytest.approx(4 * MS)
    assert float(row["flops_per_s"]) == pytest.approx(30 / (3 * MS))
    assert (row["flops"], row["bytes"], row["host_start_s"]) == ("30", "300", "")


@pytest.mark.parametrize(
    ("by", "keys"), [("type", ["conv", "relu"]), ("module", ["net.b", "net.c", "net.a"]), ("phase", ["(unknown)"])]
)
def test_groups_as_csv(by: str, keys: list[str], rows: Callable[..., Any]) -> None:
    found = rows("--by", by)
    assert [row[by] for row in found] == keys
    assert sum(int(row["count"]) for row in found) == 3
    assert sum(float(row["share"]) for row in found) == pytest.approx(1)


def test_top_bounds_the_printed_table(file: str, capsys: Capture) -> None:
    assert "top 2 by time" in printed(capsys, file, "--top", "2")
    out = printed(capsys, file, "--top", "0")
    assert "top" not in out
    assert "by type" in out


def test_nothing_is_like_that(file: str, capsys: Capture) -> None:
    assert "no operator is like that" in printed(capsys, file, "--name", "nothing")


def test_a_roofline_where_a_machine_is_named(file: str, capsys: Capture) -> None:
    assert json.loads(printed(capsys, file, "--json"))["rates"]["roof_share"] is None
    found = json.loads(printed(capsys, file, "--machine", "v100", "--json"))
    assert found["machine"] == "v100"
    least = max(30 / 15.7e12, 300 / 900e9)
    assert found["operators"][0]["roof_share"] == pytest.approx(least / (3 * MS))
    assert found["by"]["type"]["relu"]["bound"] == "memory"


def test_json_is_all_that_is_printed(capsys: Capture) -> None:
    found = json.loads(printed(capsys, SOURCE, "--json"))
    assert (found["schema"], found["kind"], found["format"]) == (1, "profile", "megengine profile")
    assert found["file"]["bytes"] == Path(SOURCE).stat().st_size
    assert len(found["operators"]) == found["counts"]["operators"] == 234


@pytest.mark.parametrize("option", ["--type relu", "--top 1", "--by shape", "--sort name", "--min-time 1us"])
def test_filters_would_not_change_the_json(option: str, file: str, capsys: Capture) -> None:
    assert main(["analyze", file, "--json", *option.split()]) == 2
    assert f"{option.split()[0]} has no effect on JSON" in capsys.readouterr().err


def test_piped_output_is_plain(capsys: Capture) -> None:
    out = printed(capsys, SOURCE)
    assert "\x1b" not in out
    for part in ("22.8 ms", "69.8%", "96337920 bytes", "+0.087%", "6 never ran"):
        assert part in out


def test_several_outputs_in_one_run(file: str, tmp_path: Path, capsys: Capture) -> None:
    names = ("a.json", "a.csv", "a.html", "trace.json.gz", "a.dot", "a.svg")
    flags = ("--json", "--csv", "--html", "--chrome-trace", "--dot", "--plot")
    args = [word for flag, name in zip(flags, names, strict=True) for word in (flag, str(tmp_path / name))]
    assert "by type" in printed(capsys, file, *args)
    assert {path.name for path in tmp_path.iterdir()} == {"small.json", *names}
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == 1
    assert (tmp_path / "a.html").read_text().startswith("<!")
    assert (tmp_path / "a.dot").read_text().startswith('digraph "small"')
    assert "<svg" in (tmp_path / "a.svg").read_text()
    check_trace(json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_read_again(file: str, name: str, tmp_path: Path, capsys: Capture) -> None:
    printed(capsys, file, "--chrome-trace", str(tmp_path / name))
    assert load_profile(tmp_path / name) == load_profile(file) == small_profile()


def test_dot_has_the_values_that_are_handed_on(file: str, tmp_path: Path, capsys: Capture) -> None:
    printed(capsys, file, "--dot", str(tmp_path / "a.dot"))
    text = (tmp_path / "a.dot").read_text()
    assert '  n0 -> n1 [label="1.00MiB"];\n  n1 -> n2;\n' in text
    assert "conv\\nnet.b\\n3.00 ms" in text


def test_a_snapshot_has_memory_alone(tmp_path: Path, capsys: Capture) -> None:
    out = printed(capsys, str(write_json(tmp_path / "s.json", snapshot())))
    assert "cuda memory snapshot, 0 operators" in out
    assert "peak 19.1MiB (20002512 bytes)" in out


def test_a_graph_is_simulated(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "g.txt").write_text(format_graph(chain_graph([8, 8, 8, 8])))
    out = printed(capsys, str(tmp_path / "g.txt"), "--machine", "a100")
    assert "simulated" in out
    assert "times are predicted for a100" in out


def test_hostile_names(tmp_path: Path, capsys: Capture) -> None:
    save_chrome_trace(small_profile(*HOSTILE), tmp_path / "h.json")
    outputs = {flag: str(tmp_path / f"out.{flag}") for flag in ("csv", "json", "dot", "html")}
    args = [word for flag, path in outputs.items() for word in (f"--{flag}", path)]
    out = printed(capsys, str(tmp_path / "h.json"), *args)
    assert "[bold]no markup[/]" in out
    with open(outputs["csv"], newline="") as found:
        names = {row["name"] for row in csv.DictReader(found)}
    assert names >= {"'" + HOSTILE[0], *HOSTILE[1:]}  # a formula is marked as text
    assert [row["name"] for row in json.loads(Path(outputs["json"]).read_text())["operators"]][3:] == list(HOSTILE)
    assert "<script>alert" not in Path(outputs["html"]).read_text()
    check_dot(Path(outputs["dot"]).read_text(), nodes=3 + len(HOSTILE))


def check_dot(text: str, nodes: int) -> None:
    """Every line is a statement of ours: names cannot end a label, a line or a node."""
    inside = r'"(?:[^"\\\n]|\\.)*"'
    node = re.compile(rf"  n\d+ \[label={inside}\];")
    edge = re.compile(rf"  n\d+ -> n\d+( \[label={inside}\])?;")
    lines = text.split("\n")
    assert re.fullmatch(rf"digraph {inside} \{{", lines[0]) and lines[-2:] == ["}", ""]
    assert sum(node.fullmatch(line) is not None for line in lines[2:-2]) == nodes
    assert all(node.fullmatch(line) or edge.fullmatch(line) for line in lines[2:-2])


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_begins_a_formula(start: str, tmp_path: Path, capsys: Capture) -> None:
    save_chrome_trace(small_profile(start), tmp_path / "h.json")
    for by in ([], ["--by", "module"], ["--by", "type"]):
        printed(capsys, str(tmp_path / "h.json"), "--csv", str(tmp_path / "out.csv"), *by)
        with open(tmp_path / "out.csv", newline="") as found:
            cells = [cell for row in csv.reader(found) for cell in row]
        assert f"'{start}" in cells
        assert start not in cells


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    save_chrome_trace(small_profile("\x1b[31mred\x1b[0m\x9b31m"), tmp_path / "h.json")
    out = printed(capsys, str(tmp_path / "h.json"))
    assert not {"\x1b", "\x9b"} & set(out)


def test_a_name_that_is_no_unicode(tmp_path: Path, capsys: Capture) -> None:
    save_chrome_trace(small_profile("lone \ud800"), tmp_path / "h.json")
    printed(capsys, str(tmp_path / "h.json"), "--csv", str(tmp_path / "h.csv")).encode()
    assert (tmp_path / "h.csv").read_bytes()


BAD_ARGUMENTS = {
    "top": (["--top", "-1"], "--top -1 is not possible"),
    "least time": (["--min-time", "soon"], "'soon' is not a time"),
    "machine": (["--machine", "abacus"], "'abacus' is not a machine"),
    "plot format": (["--plot", "memory.gif"], "a plot cannot be written as 'gif'"),
    "no folder": (["--html", "no/such/folder/a.html"], "there is no folder"),
    "a folder": (["--csv", "."], "the CSV cannot be written: it is a folder"),
    "plans of no graph": (["--plans"], "does not tell which operator reads what: nothing can be planned"),
    "budget": (["--budget", "much"], "'much'"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    args, message = BAD_ARGUMENTS[case]
    assert message in refuse(capsys, file, *args)
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


BAD_FILES = {
    "nothing": (b"", "the file is empty"),
    "something else": (b"once upon a time", "the file has no format that is known here"),
    "a pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.", "a pickle"),
    "cut": (b'{"profiler": {"host": {', "p.json"),
    "deep": (b'{"profiler": {"newer": ' + b"[" * 100_000, "p.json"),
    "not whole": (b'{"profiler": {}, "graph_exec": {"var": {}}}', "no 'graph_exec.operator'"),
    "a trace of nonsense": (b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "p.json"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case: str, tmp_path: Path, capsys: Capture) -> None:
    raw, message = BAD_FILES[case]
    (tmp_path / "p.json").write_bytes(raw)
    assert message in refuse(capsys, str(tmp_path / "p.json"))


def test_no_file(tmp_path: Path, capsys: Capture) -> None:
    assert "the file cannot be read" in refuse(capsys, str(tmp_path / "missing.json"))
    assert "it is a folder" in refuse(capsys, str(tmp_path))
    assert capsys.readouterr().out == ""
