"""The clean room is made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from clean_room import CleanRoom

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def clean_room(tmp_path_factory: pytest.TempPathFactory) -> CleanRoom:
    """Packages that tilegrad depends on are borrowed from the environment that runs the tests: torch is not fetched
    again. This tree is not, even where it is installed there as editable."""
    folder = tmp_path_factory.mktemp("clean")
    clone, environment = folder / "tilegrad", folder / "environment"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a clone")
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=clone, check=True)
    built = {suffix: next(folder.glob(f"*{suffix}")) for suffix in (".whl", ".tar.gz")}
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))  # paths alone: what is editable there stays there
    install = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(built[".whl"])], check=True)
    return CleanRoom(clone, environment, built)
