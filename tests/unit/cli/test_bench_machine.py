"""`tilegrad bench machine`, and the measuring behind it: what is measured, kept, reused, and what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tilegrad.cli import main
from tilegrad.errors import InputError
from tilegrad.sim import measure
from tilegrad.sim.machine import Machine, find_machine, load_machine, save_machine
from tilegrad.sim.measure import host_bytes, kept_path, measure_machine, recall_machine, this_machine


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's real measurement is read or written."""
    monkeypatch.delenv("TILEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tilegrad" / "machine-cpu.toml"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measuring takes no time, and is counted."""
    calls: list[str] = []

    def fake(device: str = "cpu", *, seconds: float = 0.0) -> Machine:
        calls.append(device)
        name = measure._name(torch.device("cpu"))
        rates = {"float64": 52.3e9, "bfloat16": 226e9}
        return Machine(name, 113e9, 31e9, 15.4e9, 14.1e9 + len(calls), 2**34, 2**34, 2.9e-6, rates)

    monkeypatch.setattr(measure, "measure_machine", fake)
    monkeypatch.setattr(measure, "host_bytes", lambda: 2**34)
    return calls


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real measuring of next to nothing."""
    monkeypatch.setattr(measure, "CONVOLUTIONS", {"cpu": ((1, 4, 8),)})
    monkeypatch.setattr(measure, "PRODUCTS", {"cpu": (32,)})
    monkeypatch.setattr(measure, "BUFFER_BYTES", (2**20, 2**20))
    monkeypatch.setattr(measure, "TURN_S", 1e-3)


def test_the_table(measured: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "machine"]) == 0
    out = capsys.readouterr().out
    cells = dict(tuple(part.strip() for part in line.split("│")[1:3]) for line in out.splitlines() if "│" in line)
    assert cells == {
        "arithmetic, float32": "113 GFLOP/s",
        "arithmetic, float64": "52.3 GFLOP/s",
        "arithmetic, bfloat16": "226 GFLOP/s",
        "memory, read and written": "31.0 GB/s",
        "link, device to host": "15.4 GB/s",
        "link, host to device": "14.1 GB/s",
        "overhead of an operator": "2.9 µs",
        "device memory": "16.0GiB",
        "host memory": "16.0GiB",
    }
    assert out.rstrip().endswith(f"measured now, kept in {cache}")
    assert load_machine(cache).flops_per_s == 113e9


def test_measured_once_and_again_when_told(measured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first = this_machine()
    assert this_machine() == first and len(measured) == 1
    assert main(["bench", "machine"]) == 0
    assert "as measured before, kept in" in capsys.readouterr().out and len(measured) == 1
    assert main(["bench", "machine", "--force"]) == 0
    assert len(measured) == 2
    assert this_machine() != first and len(measured) == 2


def test_memory_is_that_of_now(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next container may have another limit than the one that measured."""
    this_machine()
    monkeypatch.setattr(measure, "host_bytes", lambda: 2**31)
    found = this_machine()
    assert (found.device_bytes, found.host_bytes, len(measured)) == (2**31, 2**31, 1)
    monkeypatch.setattr(measure, "host_bytes", lambda: None)
    assert this_machine().device_bytes is None
    assert main(["bench", "machine"]) == 0
    assert capsys.readouterr().out.count("not known") == 2


def test_json_and_nothing_else(measured: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "machine", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert (found["device"], found["measured"], found["kept"], found["note"]) == ("cpu", True, str(cache), None)
    assert Machine(**found["machine"]) == this_machine()


def test_out_is_a_machine_file(measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    assert main(["bench", "machine", "--out", str(path)]) == 0
    assert f"written to {path}" in capsys.readouterr().out
    assert find_machine(str(path)) == find_machine("this", this_machine)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--out", "{tmp}/no/mine.toml"], "cannot be written: No such file or directory"),
        (["--out", "{tmp}/mine.txt"], "a machine file is called something.toml"),
    ],
)
def test_bad_input_is_one_clear_error(
    args: list[str], message: str, measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "machine", *(arg.format(tmp=tmp_path) for arg in args)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_such_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "machine", "--device", "cuda"]) == 2
    assert "there is no device 'cuda' here" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meta", "cpu:1", "abacus", ""])
def test_what_cannot_be_measured(device: str) -> None:
    with pytest.raises(InputError, match=r"is not a device|cannot be measured"):
        recall_machine(device)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_a_time_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(InputError, match="cannot be measured in"):
        measure_machine(seconds=seconds)


def test_a_file_that_cannot_be_used_is_measured_again(measured: list[str], cache: Path) -> None:
    recall_machine()
    cache.write_text("version = 99\n")
    found = recall_machine()
    assert found.measured and len(measured) == 2
    assert found.note and "cannot be used: machine file: key 'version' must be 1, not 99" in found.note
    assert recall_machine().note is None and len(measured) == 2


def test_a_file_of_another_machine_is_measured_again(
    measured: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A home folder may be shared by many machines, and threads change from run to run."""
    cache.parent.mkdir(parents=True)
    save_machine(find_machine("v100"), cache)
    assert main(["bench", "machine"]) == 0
    assert "note: measured again, since the file kept before is of v100" in capsys.readouterr().out
    assert not recall_machine().measured


def test_a_cache_that_cannot_be_written(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Go on with the measurement, and say so."""
    (tmp_path / "cache").write_text("a file in the way")
    assert this_machine().flops_per_s == 113e9
    assert main(["bench", "machine"]) == 0
    out = capsys.readouterr().out
    assert "note: not kept:" in out and "kept in" not in out
    assert recall_machine().path is None and len(measured) == 3


@pytest.mark.parametrize("value", ["", "relative/folder", None])
def test_the_cache_is_in_the_home_folder_by_default(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert kept_path("cuda:1") == tmp_path / ".cache" / "tilegrad" / "machine-cuda-1.toml"


def test_no_home_at_all(measured: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", homeless)
    found = recall_machine()
    assert (found.path, found.measured, found.note) == (None, True, "not kept: there is no folder for it")


def test_a_real_measurement(quick: None) -> None:
    state = torch.random.get_rng_state()
    found = measure_machine(seconds=0.01)
    assert torch.equal(torch.random.get_rng_state(), state)  # the program's random numbers are its own
    assert set(found.rates) == {"float64", "bfloat16"}
    assert found.name.endswith("1 thread")  # conftest.py
    assert found.device_bytes == found.host_bytes == host_bytes()
    assert 0 < found.launch_s < 0.1  # wide: the machine may be busy
    assert min(found.flops_per_s, found.bytes_per_s, found.to_host_per_s, found.from_host_per_s) > 1e6


def test_the_programs_settings_stay_and_do_not_matter(quick: None) -> None:
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    try:
        assert measure._ones((2,), torch.device("cpu")).dtype == torch.float32
        found = measure_machine(seconds=0.01)
        assert torch.get_num_threads() == 2 and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert found.name.endswith("2 threads")


@pytest.mark.gpu
def test_a_real_measurement_of_a_gpu() -> None:
    found = measure_machine("cuda", seconds=0.1)
    assert set(found.rates) == {"tfloat32", "float64", "bfloat16", "float16"}
    assert found.rates["bfloat16"] > found.flops_per_s
    assert found.bytes_per_s > found.to_host_per_s
    assert found.device_bytes == torch.cuda.get_device_properties("cuda").total_memory


def test_measuring_more_than_memory_holds(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(device: torch.device) -> list[object]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "_probes", full)
    with pytest.raises(InputError, match="too little memory is free on cpu"):
        measure_machine()


def test_the_best_call_of_the_best_shape_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shapes of one kind; one call in four is disturbed, the first ones all."""
    now, calls = [0.0], [0]

    def work(took: float) -> None:
        calls[0] += 1
        now[0] += took * (1 if calls[0] > 4 and calls[0] % 4 else 50)

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    probes = [measure._Probe("a", 6.0, lambda: work(3.0)), measure._Probe("a", 6.0, lambda: work(2.0))]
    probes.append(measure._Probe("b", 1.0, lambda: work(0.5)))
    assert measure._take_turns(probes, torch.device("cpu"), 1000.0) == {"a": 3.0, "b": 2.0}


def test_memory_of_a_container(tmp_path: Path) -> None:
    """Its limit, or that of a group above it; the machine's own memory where there is none."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    inner = groups / "slice" / "job"
    inner.mkdir(parents=True)
    assert host_bytes(groups, own) == physical
    (groups / "memory.max").write_text("max\n")
    assert host_bytes(groups, own) == physical
    (groups / "memory.max").write_text("3000000\n")
    assert host_bytes(groups, own) == 3000000
    own.write_text("0::/slice/job\n")
    (inner.parent / "memory.max").write_text("2000000\n")
    (inner / "memory.max").write_text("max\n")
    assert host_bytes(groups, own) == 2000000
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert host_bytes(groups, own) == 2000000
    (groups / "memory" / "memory.limit_in_bytes").write_text("1000000\n")
    assert host_bytes(groups, own) == 1000000


def test_a_damaged_list_of_groups_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("\nnonsense\n0::\n0::/../../etc\n")
    assert host_bytes(tmp_path, tmp_path / "own") == host_bytes(tmp_path, tmp_path / "none")
