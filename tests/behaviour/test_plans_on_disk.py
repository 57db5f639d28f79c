"""Plans on disk: the second run starts without planning, and nothing that is wrong with the file is an error."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tilegrad
from tilegrad.modules import plan_file
from tilegrad.modules.plan_file import NAME
from tilegrad.modules.planned import Ask
from tilegrad.sim.machine import CPU, save_machine

SCRIPT = """
import json, sys, torch, tilegrad
from tilegrad.modules.planned import Ask
from torch import nn

planned, made = [], Ask.plan
Ask.plan = lambda ask: planned.append(1) or made(ask)
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
net = tilegrad.tile(nn.Sequential(*layers).double(), budget=int(sys.argv[1]))
image = torch.randint(-3, 4, (1, 4, 48, 48)).double()
net(image).sum().backward()
grads = [p.grad.sum().item() for p in net.parameters()]
print(json.dumps({"planned": len(planned), "plan": str(net.plan), "data": net.plan.to_json(), "grads": grads}))
"""
BUDGET, LARGER = 330_000, 560_000  # tiles, and whole nodes


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers).double()


def image() -> Tensor:
    torch.manual_seed(1)
    return torch.randint(-3, 4, (1, 4, 48, 48)).double()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in a cache of the test's own."""
    monkeypatch.delenv("TILEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tilegrad" / NAME


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each planning."""
    made: Callable[..., Any] = Ask.plan
    calls: list[int] = []
    monkeypatch.setattr(Ask, "plan", lambda ask: calls.append(1) or made(ask))
    return calls


def plan(**options: Any) -> tilegrad.Plan:
    """Of tiles, which takes no time."""
    return tilegrad.tile(network(), **(options or {"tile": 24})).plan_for(image())


def rows(path: Path, what: str = "key") -> list[Any]:
    with sqlite3.connect(path) as file:
        found = [row[0] for row in file.execute(f"SELECT {what} FROM plans ORDER BY used")]
    file.close()
    return found


def change(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as file:
        file.execute(statement, values)
    file.close()


def start(*budgets: int) -> list[dict[str, Any]]:
    """Programs of their own, all at once."""
    env = {**os.environ, "PYTHONPATH": str(Path(tilegrad.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = sys.executable, "-c", SCRIPT
    programs = [
        subprocess.Popen([*command, str(b)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for b in budgets
    ]
    ends = [program.communicate(timeout=300) for program in programs]
    assert not any(program.returncode for program in programs), ends
    return [json.loads(out) for out, _ in ends]


def test_two_programs_at_once_and_a_third(path: Path) -> None:
    """Both plan, or one waits for the other's file: neither minds, and the file is sound. The third does not plan."""
    found = start(LARGER, LARGER)
    assert found[0]["grads"] == found[1]["grads"]
    assert len(rows(path)) == 1
    (third,) = start(LARGER)
    assert (max(each.pop("planned") for each in found), third.pop("planned")) == (1, 0)
    assert third in found  # the plan to the letter, and the gradients to the bit


OPTIONS: dict[str, dict[str, Any]] = {
    "budget": {"budget": BUDGET},
    "tiles": {"budget": BUDGET, "planner": "tile"},
    "mixed": {"budget": LARGER, "planner": "mixed"},
    "segments": {"budget": LARGER, "planner": "segments"},
    "recompute": {"budget": LARGER, "planner": "recompute"},
    "offload": {"budget": LARGER, "planner": "offload"},
    "sizes": {"tile": 16},
    "sizes and a budget": {"tile": 16, "budget": 2 * BUDGET},
    "gather": {"tile": 16, "mode": "gather"},
    "on disk": {"tile": 16, "halos": "disk"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_kind_of_plan(path: Path, planned: list[int], options: dict[str, Any]) -> None:
    """The same to read, and the same to run: integers, so not a bit may differ."""
    results = []
    for _ in range(2):
        net = tilegrad.tile(network(), **options)
        net(image()).sum().backward()
        results.append((net.plan, [p.grad for p in net.parameters()]))
    (first, grads), (second, again) = results
    assert len(planned) == 1
    assert str(first) == str(second) and first.to_json() == second.to_json()
    assert all(map(torch.equal, grads, again))
    plain = network()
    plain(image()).sum().backward()
    for expected, grad in zip(plain.parameters(), again, strict=True):
        assert torch.allclose(grad, expected.grad, rtol=1e-12)  # type: ignore[arg-type]


def test_candidates_are_told_with_their_figures(path: Path, planned: list[int]) -> None:
    first, second = (plan(budget=BUDGET).planning for _ in range(2))
    assert first is not None and second is not None and len(planned) == 1
    assert [(c.planner, c.detail, c.peak_bytes, c.time_s, c.notes) for c in first.candidates] == [
        (c.planner, c.detail, c.peak_bytes, c.time_s, c.notes) for c in second.candidates
    ]
    assert first.candidates.index(first.chosen) == second.candidates.index(second.chosen)
    assert second.plain is second.candidates[first.candidates.index(first.plain)]
    offsets = {"plain": 0, "plan": 0}  # addresses are found from memory over time, which is not kept
    assert first.to_json() | offsets == second.to_json() | offsets


def test_plain_is_not_kept(path: Path, planned: list[int]) -> None:
    for _ in range(2):
        assert plan(budget="1GiB").schedule.mode == "none"
    assert len(planned) == 2 and not path.exists()


def test_off(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_CACHE", "off")
    plan(), plan()
    assert len(planned) == 2 and not path.exists()


def test_what_is_another_plan(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget, planner, the network, gradients, torch, our source and the machine all count."""
    plan()
    plan(tile=24, budget=4 * BUDGET)
    plan(tile=24, budget=4 * BUDGET + 1)
    plan(tile=24, axes="h")
    tilegrad.tile(network(), tile=24).plan_for(image().requires_grad_())
    tilegrad.tile(network(), tile=24).plan_for((1, 4, 48, 50))
    monkeypatch.setattr(torch, "__version__", "9.9")
    plan()
    monkeypatch.undo()
    monkeypatch.delenv("TILEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parents[1]))
    assert len(planned) == 7 and len(set(rows(path))) == 7


def test_another_version(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    monkeypatch.setattr(plan_file, "_version", lambda: "another")
    plan()
    assert len(planned) == 2


def test_another_machine(path: Path, planned: list[int]) -> None:
    plan()
    save_machine(replace(CPU, name="mine", flops_per_s=1e12), path.with_name("machine-cpu.toml"))
    plan()
    assert len(planned) == 2


def damage(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def broken_rule(text: bytes) -> bytes:
    data = damage(text)
    data["schedule"]["steps"] = data["schedule"]["steps"].replace("turn\n", "")
    return json.dumps(data).encode()


DAMAGES: dict[str, Callable[[bytes], Any]] = {
    "half written": lambda text: text[: len(text) // 2],
    "no JSON": lambda text: b"\xff\x00",
    "nothing": lambda text: b"",
    "other data": lambda text: b"[1, 2]",
    "a number": lambda text: 7,
    "deep": lambda text: b"[" * 100_000,
    "a rule is broken": broken_rule,
    "a key is missing": lambda text: json.dumps({**damage(text), "schedule": {}}).encode(),
}


@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("kind", DAMAGES.values(), ids=DAMAGES)
def test_a_plan_that_cannot_be_used(
    path: Path, planned: list[int], caplog: pytest.LogCaptureFixture, kind: Callable[[bytes], Any], vouched: bool
) -> None:
    """`vouched`: with a digest that says that this is what was written."""
    plan()
    (text,) = rows(path, "plan")
    new = kind(text)
    change(path, "UPDATE plans SET plan = ?", new)
    if vouched and isinstance(new, bytes):
        change(path, "UPDATE plans SET digest = ?", plan_file._digest(new))
    with caplog.at_level(logging.DEBUG, "tilegrad"):
        plan()
    assert len(planned) == 2
    assert sum("cannot be used" in message for message in caplog.messages) == 1
    plan()
    assert len(planned) == 2  # it is mended


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be looked at" * 100, b"", b"SQLite format 3\0"]
)
def test_a_file_that_is_no_database(path: Path, planned: list[int], content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for _ in range(3):
        plan()
    assert len(planned) <= 2  # it is gone by then


def test_a_database_that_is_torn(path: Path, planned: list[int]) -> None:
    plan()
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xaa" * 4096 + data[8192:])
    for _ in range(3):
        plan()
    assert len(planned) <= 3


def test_another_layout(path: Path, planned: list[int]) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE plans (name TEXT)")
    file.close()
    plan(), plan()
    assert len(planned) == 2


def test_a_folder_that_cannot_be_written(path: Path, planned: list[int]) -> None:
    path.parent.write_text("a file in the way")
    plan(), plan()
    assert len(planned) == 2


def test_a_folder_in_its_place(path: Path, planned: list[int]) -> None:
    path.mkdir(parents=True)
    plan(), plan()
    assert len(planned) == 2


def test_a_file_that_can_only_be_read(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is used. Permissions do not bind root, so SQLite is told to open it for reading."""
    plan()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda p, **more: connect(f"file:{p}?mode=ro", uri=True, **more))
    plan()
    assert len(planned) == 1
    plan(tile=16)
    assert len(planned) == 2 and len(rows(path)) == 1


@pytest.mark.parametrize("error", [sqlite3.OperationalError("database or disk is full"), OSError(28, "No space left")])
def test_a_full_disk(
    path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: Any, **more: Any) -> sqlite3.Connection:
        raise error

    monkeypatch.setattr(sqlite3, "connect", full)
    with caplog.at_level(logging.DEBUG, "tilegrad"):
        plan()
    assert len(planned) == 1 and "no plan is kept" in caplog.text


def test_a_locked_file(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "WAIT_S", 0.01)
    plan()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    plan()
    assert len(planned) == 2
    holder.execute("ROLLBACK")
    holder.close()
    plan()
    assert len(planned) == 2


def test_the_oldest_go(path: Path, planned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """By last use."""
    monkeypatch.setattr(plan_file, "MOST_PLANS", 2)
    plan(tile=24), plan(tile=16)
    first, _ = rows(path)
    plan(tile=24)
    plan(tile=12)
    assert len(planned) == 3 and len(rows(path)) == 2 and first in rows(path)


def test_they_take_so_many_bytes_at_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(tile=24)
    monkeypatch.setattr(plan_file, "MOST_BYTES", len(rows(path, "plan")[0]) + 10)
    size = path.stat().st_size
    for tile in (23, 22, 21, 20):
        plan(tile=tile)
    assert len(rows(path)) <= 1 and path.stat().st_size <= 2 * size


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class WithFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(Twice.apply(x))  # type: ignore[no-any-return, no-untyped-call]


def test_code_of_the_users_is_not_vouched_for(path: Path, planned: list[int]) -> None:
    for _ in range(2):
        tilegrad.tile(WithFunction().double(), tile=16).plan_for(image())
    assert len(planned) == 2 and not path.exists()
