"""Programs on ranks end with code 0 and without a word, also those that forget to close."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ranks import free_port

PROGRAM = Path(__file__).parent / "train_and_leave.py"
ENDINGS = ("in order", "at once")


def test_ends_without_an_abort() -> None:
    started = {ending: _start(ending) for ending in ENDINGS}
    for ending, processes in started.items():
        for code, said in map(_end, processes):
            assert code == 0, said
            assert "Traceback" not in said and "terminate called" not in said, said
            assert ending != "in order" or not said.strip()


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
