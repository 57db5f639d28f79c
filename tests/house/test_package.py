"""The package as it is handed out: what is in it, that it runs where nothing else of ours is, what it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from clean_room import CleanRoom

import tilegrad
from tilegrad.cli.model import load_model
from tilegrad.errors import ModelError
from tilegrad.extras import EXTRAS, install_hint

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MADE = """
import torch, tilegrad
net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())
tilegrad.tile(net, tile=8)(torch.randn(1, 1, 32, 32)).mean().backward()
print(tilegrad.__version__, tilegrad.__file__)
"""


def test_the_wheel_has_all_files_and_no_others(clean_room: CleanRoom) -> None:
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "tilegrad").rglob("*.*") if p.is_file()}
    with zipfile.ZipFile(clean_room.built[".whl"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        facts = Parser().parsestr(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode())
    assert names == {name for name in source if "__pycache__" not in name} and "tilegrad/py.typed" in names
    assert facts["Version"] == tilegrad.__version__ and set(facts.get_all("Provides-Extra", [])) >= set(EXTRAS)


def test_a_wheel_can_be_built_from_the_source_archive(clean_room: CleanRoom, tmp_path: Path) -> None:
    with tarfile.open(clean_room.built[".tar.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.iterdir())
    for name in ("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "tests/conftest.py", "docs/README.md"):
        assert (folder / name).exists(), name
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=folder, check=True
    )
    wheels = [next(tmp_path.glob("*.whl")), clean_room.built[".whl"]]
    first, second = ({item.filename: item.CRC for item in zipfile.ZipFile(wheel).infolist()} for wheel in wheels)
    assert first == second


def test_it_runs_where_nothing_else_of_ours_is(clean_room: CleanRoom, tmp_path: Path) -> None:
    done = clean_room.run("python", "-c", MADE, folder=tmp_path)
    version, _, place = done.stdout.strip().partition(" ")
    assert version == tilegrad.__version__ and place.startswith(str(clean_room.environment)), done.stdout
    for words in (("tilegrad",), ("python", "-m", "tilegrad")):
        assert clean_room.run(*words, "--version", folder=tmp_path).stdout == f"tilegrad {tilegrad.__version__}\n"


def test_extras_are_those_of_the_project() -> None:
    listed = PROJECT["optional-dependencies"]
    assert set(EXTRAS) | {"dev"} == set(listed)
    assert not [(extra, name) for extra, names in EXTRAS.items() for name in names if not _offers(listed[extra], name)]


def _offers(requirements: list[str], name: str) -> bool:
    sold_as = {"PIL": "pillow", "openslide": "openslide-python"}.get(name, name).replace("_", "-")
    return any(re.match(rf"{sold_as}\b(?!-)", requirement) for requirement in requirements)


@pytest.mark.parametrize("library", [name for names in EXTRAS.values() for name in names])
def test_a_library_that_is_missing_is_one_message(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / f"needs_{library}.py").write_text(f"import {library}\n")
    with pytest.raises(ModelError) as caught:
        load_model(f"{tmp_path}/needs_{library}.py:net")
    extra = next(extra for extra, names in EXTRAS.items() if library in names)
    assert caught.value.hint == f"pip install 'tilegrad[{extra}]'" and library in caught.value.what


def test_what_is_no_extra_has_no_hint() -> None:
    assert install_hint(ImportError("no", name="nobody")) is None
    assert install_hint(ImportError("no", name="zarr.core")) == "pip install 'tilegrad[images]'"


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {tilegrad.__version__}\n" in citation and f"\nlicense: {PROJECT['license']}\n" in citation
    assert f"version = {{{tilegrad.__version__}}}" in (ROOT / "README.md").read_text()
    assert f"## {tilegrad.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_reference_names_all_that_is_public(tmp_path: Path) -> None:
    """`make docs` builds it; pages that lead nowhere are an error there."""
    pytest.importorskip("pdoc")
    done = subprocess.run(
        [sys.executable, "docs/make_api.py", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    pinned = ast.literal_eval(
        re.search(r"^PUBLIC = (\{.*?^\})", (ROOT / "tests/house/test_style.py").read_text(), re.M | re.S)[1]
    )  # type: ignore[index]
    for module, names in pinned.items():
        page = (tmp_path / f"{module.replace('.', '/')}.html").read_text()
        assert not [name for name in names if f'id="{name}"' not in page]
