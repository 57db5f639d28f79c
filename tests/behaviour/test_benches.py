"""The benches run, each on next to nothing, and the tables of the documentation are what their figures say."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # where a bench finds the others when it is run

import dial  # noqa: E402
import far  # noqa: E402
import kernels  # noqa: E402
import largest  # noqa: E402
import memory  # noqa: E402
import methods  # noqa: E402
import nets  # noqa: E402
import peers  # noqa: E402
import picture  # noqa: E402
import planning  # noqa: E402
import process  # noqa: E402
import ranks  # noqa: E402
import regret  # noqa: E402
import scaling  # noqa: E402
import slide  # noqa: E402
import speed  # noqa: E402
import tables  # noqa: E402
from measure import step, write  # noqa: E402

TINY = ["--width", "0.0625", "--size", "96"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    return tmp_path


def rows(path: Path) -> list[dict[str, Any]]:
    """What was written, which is also a table."""
    found = json.loads(path.read_text())
    lines = tables.table(path).strip().splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1 and len(lines) >= 5
    assert found["torch"] == torch.__version__
    listed: list[dict[str, Any]] = found["rows"]
    return listed


def test_regret(results: Path) -> None:
    path = results / "cpu_regret.json"
    regret.main(["--nets", "vgg16", "--plans", "5", "--shares", "0.6", "--steps", "1", *TINY, "--json", str(path)])
    (found,) = rows(path)
    assert len(found["plans"]) >= 5 and found["plans"][0]["words"] == "plain"
    assert found["figures"]["bytes"] < 2e-2  # of so small a network
    chosen = [choice for choice in found["choices"] if choice["chosen"] is not None]
    assert chosen and all(choice["regret"] >= 0 and choice["need"] <= 1 for choice in chosen)


def test_the_best_that_fits_counts() -> None:
    plans = [regret.Measured(name, 1.0, size, time, size) for name, size, time in [("a", 9, 1.0), ("b", 5, 2.0)]]
    choice = regret._choice([*plans, slow := regret.Measured("c", 1.0, 4, 3.0, 4)], 0.5, 6, slow)
    assert (choice.best, choice.regret, choice.need) == ("b", 0.5, 4 / 6)
    assert regret._choice(plans, 0.1, 2, None).best is None


def test_methods(results: Path) -> None:
    path, ways = results / "cpu_methods.json", "checkpoint,save_on_cpu,tilegrad"
    methods.main(
        ["--nets", "unet", "--ways", ways, "--shares", "0.8,0.01", "--rounds", "1", *TINY, "--json", str(path)]
    )
    found = {row["way"]: row for row in rows(path)}
    assert list(found) == ["plain", "checkpoint", "save_on_cpu", "tilegrad 80%", "tilegrad 1%"]
    assert found["checkpoint"]["peak"] < 1 and found["tilegrad 80%"]["peak"] <= 0.8
    assert "nothing fits" in found["tilegrad 1%"]["error"]


@pytest.mark.parametrize("name", ["vgg16", "unet", "resnet18_train", "convnext"])
def test_checkpoints_change_no_gradient(name: str) -> None:
    net, image = nets.prepared(name, 64, "cpu", 0.0625)
    other = nets.checkpointed(net)
    step(net, image), step(other, image)
    pairs = zip(net.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(p.grad, q.grad) for p, q in pairs if p.grad is not None and q.grad is not None)


def test_dial(results: Path) -> None:
    path, picture = results / "cpu_dial.json", results / "dial.svg"
    dial.main(["--shares", "0.9", "--rounds", "1", *TINY, "--json", str(path), "--svg", str(picture)])
    assert [row["share"] for row in rows(path)] == [0.9]
    assert "</svg>" in picture.read_text()


def test_largest(results: Path) -> None:
    path = results / "cpu_largest.json"
    largest.main(["--width", "0.0625", "--memory", "0.1", "--most", "1536", "--json", str(path)])
    found = {(row["way"], row["memory"]): row["side"] for row in rows(path)}
    assert found["plain", 0.1] <= found["checkpoint", 0.1] <= found["tilegrad", 0.1] == 1536
    for way in ("plain", "checkpoint", "save_on_cpu"):
        bytes_of = [largest.predicted("vgg16", way, found[way, 0.1] + more, 0.0625)[0] for more in (0, largest.STEP)]
        assert bytes_of[0] <= 0.1 * 2**30 < bytes_of[1]


@pytest.mark.parametrize("guess", [0, 512, 3000, 5120, 9000, 99999])
@pytest.mark.parametrize("truth", [0, 512, 4096, 5120, 8192])
def test_the_search_for_a_size(guess: int, truth: int) -> None:
    """Enough trials find it; too few find less, never more."""
    for left in (2, 99):
        trials = largest.Trials(lambda size: size <= truth, left)
        found = largest.largest(trials, 0, guess, 8192)
        assert found <= truth and trials.done <= left
    assert found == truth


class Stand(nn.Module):
    """Has the interface of a peer, and runs whole."""

    def __init__(self, net: nn.Module, tile_shape: tuple[int, ...]):
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.net(image)
            return found

    def backward(self, image: Tensor, grad: Tensor) -> None:
        self.net(image).backward(1.5 * grad)


def test_peers(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = results / "cpu_peers.json"
    monkeypatch.setattr(peers, "PEERS", {"nobody": "a_module_that_nobody_has"})
    assert peers.installed() == {} and "nobody is left out: No module named" in capsys.readouterr().out
    monkeypatch.setattr(peers, "installed", lambda: {"stand": Stand})
    peers.main([*TINY, "--tile", "32", "--rounds", "1", "--json", str(path)])
    found = {row["way"]: row["error"] for row in rows(path)}
    assert found["plain"] == 0 and found["tilegrad"] < 1e-4
    assert found["stand"] == pytest.approx(0.5, abs=1e-4)  # where it is wrong


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_are_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert tables.with_tables(text) == text, "python bench/tables.py"
    names = [name for _, name, _, _ in tables.MARKED.findall(text) if not (tables.RESULTS / f"{name}.json").exists()]
    assert {name.rpartition("_")[2] for name in names} <= {*tables.TABLES, "comparison"}


def test_slide(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TILEGRAD_MALLOC", "")
    monkeypatch.setattr(tempfile, "tempdir", str(results))
    path, threads = results / "512_slide.json", str(torch.get_num_threads())
    small = ["--size", "512", "--width", "0.125", "--budget", "8MiB", "--threads", threads, "--json", str(path)]
    slide.main([*small, "--check", "128"])
    said = capsys.readouterr().out
    assert "in all" in said and float(said.rpartition("off by ")[2]) < 1e-12
    (found,) = rows(path)
    assert found["off"] < 1e-12 and found["read_s"] > 0 and found["anonymous_bytes"] > 2**20


def test_planning(results: Path) -> None:
    path = results / "cpu_recompute.json"
    small = ["--only", "unet", "--size", "256", "--shares", "0.9,0.001", "--json"]
    planning.main([*small, str(path)])
    some, none = rows(path)
    assert 0 <= some["gap"] <= some["extra"] < 1 and none["extra"] is None and none["best"] == "none"
    path = results / "cpu_planning.json"
    planning.main(["--modules", *small, str(path)])
    some, none = rows(path)
    assert some["ratio"] >= 1 and some["capture_s"] > 0 and none["ratio"] is None and "nothing fits" in none["plan"]
    path, profile = results / "v100_searched.json", BENCH.parent / "tests" / "data" / "unet_chainer.txt"
    planning.main(["--profile", str(profile), "--budgets", "6GB", "--json", str(path)])
    (found,) = rows(path)
    assert found["found"] == pytest.approx(0.01, abs=5e-4) and found["quick"] >= found["found"] - 1e-9


def test_process(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which processes are measured. That they are is in `tests/exactness/test_process.py`."""
    figures = {"growth_bytes": 3 * 2**20, "faults": 5, "cpu_s": 0.1, "budget": None, "predicted_bytes": None}
    monkeypatch.setattr(process, "spawn", lambda *_: figures | {"predicted_process_bytes": None})
    path, library = results / "cpu_process.json", "/lib/libtcmalloc_minimal.so.4"
    words = ["--nets", "small", "--ways", "plain,tiled", "--malloc", ",keep", "--preload", f",{library}"]
    process.main([*words, "--json", str(path)])
    found = [(row["way"], row["allocator"], row["malloc"]) for row in rows(path)]
    glibc = [("plain", "glibc", ""), ("tiled", "glibc", ""), ("tiled", "glibc", "keep")]
    assert found == [*glibc, *((way, "libtcmalloc_minimal.so.4", "") for way in ("plain", "tiled"))]


def test_far(results: Path) -> None:
    path = results / "cpu_far.json"
    far.main(["--size", "256", "--slides", "4", "--test", "2", "--updates", "1", "--batch", "2", "--json", str(path)])
    assert [row["way"] for row in rows(path)] == ["whole", "patches"]


def test_scaling(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "COUNTS", (1, 4))
    path = results / "predicted_scaling.json"
    scaling.main(["--nets", "vgg16", "--sizes", "512", "--links", "nvlink,ethernet", "--json", str(path)])
    found = {(row["kind"], row["ranks"], row["link"]): row["efficiency"] for row in rows(path)}
    assert len(found) == 8 and all(found[kind, 1, "nvlink"] == 1 for kind in ("strong", "weak"))
    assert found["strong", 4, "ethernet"] <= found["strong", 4, "nvlink"]


def test_the_table_of_ranks(results: Path) -> None:
    """Ranks themselves are measured in `tests/distributed/`."""
    row = ranks.Row("vgg16", 256, "2", 2.0, 1.0, 2.0, 1.9, 0.1, 2000, 3000, 11, 1, 7, 10, 20)
    write(results / "cpu_ranks.json", [row], "cpu")
    assert rows(results / "cpu_ranks.json")[0]["speedup"] == 2


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(
        ["--device", "cpu", "--nets", "vgg16", "--size", "256", "--width", "0.125", "--shares", "0.5", "--most", "3"]
    )
    printed = capsys.readouterr().out
    assert "vgg16, plain: " in printed and "vgg16, 50%: " in printed
    assert printed.count(" ms ") == 8  # two steps, three kernels each


def test_speed(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--nets", "vgg16", "--size", "256", "--width", "0.125", "--shares", "0.5", "--rounds", "1"])
    speed.main(["--nets", "vgg16", "--size", "256", "--width", "0.125", "--tile", "h=64", "--rounds", "1"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 and all("x plain's" in row for row in rows) and "'h': 64" in rows[1]


def test_memory(results: Path) -> None:
    path = results / "cpu_memory.json"
    memory.main(["--nets", "unet", "--size", "64", "--tile", "16", "--rounds", "1", "--json", str(path)])
    (found,) = rows(path)
    assert found["measured_bytes"] == pytest.approx(found["predicted_bytes"], rel=1e-4) and found["error"] < 1e-12
    assert found["measured_bytes"] < found["plain_bytes"]


@pytest.mark.parametrize("name", ["unet"])
def test_the_bytes_that_the_readme_names(name: str) -> None:
    """Those of the file from which its table is made are those that are predicted now."""
    kept = json.loads((BENCH / "results" / "cpu_memory.json").read_text())["rows"]
    task = memory.TASKS[name]
    found = memory.planned_bytes(task, task.make(1.0), memory.inputs_of(task, None), task.options)
    assert found == next(row["predicted_bytes"] for row in kept if row["net"] == name)


def test_the_picture(results: Path) -> None:
    picture.main([str(results / "memory.svg"), "--size", "64"])
    assert "budget: 128 MiB" in (results / "memory.svg").read_text()
    shown = (BENCH.parent / "docs" / "memory.svg").read_text()
    kept = json.loads((BENCH / "results" / "cpu_memory.json").read_text())["rows"][0]
    assert all(f"peak {kept[key] / 2**20:.0f} MiB" in shown for key in ("plain_bytes", "measured_bytes"))
