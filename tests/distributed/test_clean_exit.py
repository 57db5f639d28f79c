"""Programs on ranks end with code 0 and without a word, also those that forget to close."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_pool import free_port
from train_and_restart import plain

PROGRAM = Path(__file__).parent / "train_and_leave.py"
ENDINGS = ("in order", "at once")
FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else ranks that start again may find the addresses of the dead


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


def test_torchrun_starts_again_and_goes_on(tmp_path: Path) -> None:
    """The others say why before they are ended, and all steps are those of one process."""
    program = Path(__file__).parent / "train_and_restart.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=1", str(program), str(tmp_path / "state")]
    env = {**os.environ, **FRESH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    losses = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loss")]
    assert [int(step) for step, _ in losses] == [0, 1, 2, 3]
    assert [float(loss) for _, loss in losses] == pytest.approx(plain(), rel=1e-10)
    assert "rank 1 stops: ValueError: a mistake of one rank alone" in done.stderr
