"""Programs on ranks end with code 0 and without a word, also those that forget to close."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port

PROGRAM = Path(__file__).parent / "train_and_leave.py"
ENDINGS = ("in order", "at once")


@pytest.fixture(scope="module")
def ended() -> dict[str, list[tuple[int, str]]]:
    """Exit codes and outputs of two ranks, by ending: all at the same time."""
    started = {ending: _start(ending) for ending in ENDINGS}
    return {ending: [_end(process) for process in each] for ending, each in started.items()}


def _start(ending: str) -> list[subprocess.Popen[str]]:
    port, found = free_port(), []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        found.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), ending],
                env={**os.environ, **place, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return found


def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize("ending", ENDINGS)
def test_ends_without_an_abort(ended: dict[str, list[tuple[int, str]]], ending: str) -> None:
    for code, said in ended[ending]:
        assert code == 0, said
        assert "Traceback" not in said and "terminate called" not in said, said
        if ending == "in order":
            assert not said.strip()
