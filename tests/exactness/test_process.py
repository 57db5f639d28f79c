"""`TILEGRAD_MALLOC`: how much a process grows, its page faults, and that nothing is computed otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilegrad
from tilegrad.errors import BudgetError, InputError
from tilegrad.execution import heap
from tilegrad.testing import assert_same_step, integer_module, integer_tensor
from tilegrad.units import parse_bytes

BENCH = Path(__file__).parents[2] / "bench" / "process.py"
STEPS = "--steps=5"
LITTLE = 1.05  # pages at the edges of blocks, and what libraries do on their own
glibc = pytest.mark.skipif(heap._library() is None, reason="for glibc")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    if heap._library() is not None:
        heap._set(heap.SETTLED)


@cache
def grown(malloc: str, *words: str) -> dict[str, Any]:
    environment = {**os.environ, "TILEGRAD_MALLOC": malloc, "TILEGRAD_CACHE": "off"}
    if malloc == "":
        environment["GLIBC_TUNABLES"] = heap.NO_FENCES
    command = [sys.executable, str(BENCH), "--here", "--nets=small", *words]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout.splitlines()[-1]))


@glibc
def test_the_process_keeps_the_budget() -> None:
    found = grown("exact", STEPS)
    assert found["predicted_bytes"] < found["predicted_process_bytes"] <= parse_bytes(found["budget"])
    assert found["growth_bytes"] <= LITTLE * parse_bytes(found["budget"])


@glibc
def test_no_faults_where_memory_is_kept() -> None:
    assert grown("keep", STEPS)["faults"] < grown("exact", STEPS)["faults"] / 10


@glibc
def test_without_fences_memory_is_reused_within_the_budget() -> None:
    found = grown("")  # nothing is asked for
    assert found["predicted_bytes"] < found["predicted_process_bytes"] <= parse_bytes(found["budget"])
    assert found["growth_bytes"] <= LITTLE * parse_bytes(found["budget"])


@glibc
@pytest.mark.parametrize("mode", heap.MODES)
def test_same_numbers(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("TILEGRAD_MALLOC", mode)
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3))
    assert_same_step(integer_module(net), integer_tensor((1, 2, 96, 96)), tile=32)


@glibc
def test_left_as_it_was_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setenv("TILEGRAD_MALLOC", "exact")
    monkeypatch.setattr(heap, "_set", set_to.append)
    with pytest.raises(ZeroDivisionError), heap.served(torch.device("cpu")), heap.served(torch.device("cpu")):
        raise ZeroDivisionError
    assert set_to == [heap.MODES["exact"], heap.SETTLED]


@pytest.mark.parametrize("kind", ["meta", "cuda"])
def test_only_on_the_cpu(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TILEGRAD_MALLOC", "exact")
    monkeypatch.setattr(heap, "_set", lambda _: pytest.fail("another device"))
    with heap.served(torch.device(kind)):
        pass


def test_a_word_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_MALLOC", "sometimes")
    with pytest.raises(InputError, match="exact or keep or reuse"):
        heap.asked_for()


@glibc
def test_a_budget_without_room_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAD_MALLOC", "exact")
    net = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)))
    image = torch.randn(1, 8, 64, 64)
    with pytest.raises(BudgetError):
        tilegrad.tile(net, budget="1MiB").plan_for(image)
