"""Ranks on a CUDA device: one over NCCL, and some that share a card over gloo, which goes through the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
PROGRAM = Path(__file__).parent / "ranks_on_a_card.py"
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(("backend", "axes", "ranks"), [("nccl", "h=1", 1), ("gloo", "h=2", 2), ("gloo", "h=2,w=2", 4)])
def test_they_equal_one_process(backend: str, axes: str, ranks: int, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "cuda", backend, axes]
    path = [str(TESTS), str(TESTS / "distributed"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    crew = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=env)
        for rank in range(ranks)
    ]
    said = [each.communicate(timeout=500)[0].splitlines() for each in crew]
    assert [each.returncode for each in crew] == [0] * ranks, said
    assert all(len(lines) == 1 and lines[0].endswith(" networks") for lines in said), said
    assert int(said[0][0].split()[0]) > 40
