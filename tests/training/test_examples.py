"""The examples run as they are, and frameworks change nothing: the same model on the same slides has equal losses."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def losses(name: str, folder: Path) -> list[str]:
    words = [sys.executable, str(EXAMPLES / f"with_{name}.py")]
    done = subprocess.run(words, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return re.findall(r"slides/\d\.(?:tif|zarr): loss (\d\.\d+)", done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'tilegrad[examples]'")


def test_pytorch(folder: Path) -> None:
    assert len(losses("pytorch", folder)) == 4


@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_frameworks(library: str, folder: Path) -> None:
    needs(library)
    assert losses(library, folder) == losses("pytorch", folder)


def test_monai(folder: Path) -> None:
    needs("monai")
    found = [float(loss) for loss in losses("monai", folder)]
    assert found == sorted(found, reverse=True) and len(found) == 4  # one direction: it learns
