"""A class name stands for one thing, and torch's private names are in one file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import reduce
from pathlib import Path

import pytest
import torch

from tilegrad import torch_private

SOURCE = Path(__file__).parents[2] / "src" / "tilegrad"
FILES = sorted(SOURCE.rglob("*.py"))
PRIVATE = re.compile(r"\btorch(?:\.[a-z]\w*)*\._(?!_)\w+")  # torch._C, torch.utils._pytree


def test_a_class_name_once() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_of_tests_and_benches_has_a_name_of_its_own() -> None:
    """All of them are imported by name into one process."""
    root = SOURCE.parents[1]
    names = Counter(path.stem for folder in ("tests", "bench", "examples") for path in (root / folder).rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "conftest"] == []


def test_one_file_touches_what_is_private_of_torch() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{number}: {match.group()}"
        for path in FILES
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if not line.lstrip().startswith(("#", '"""'))
        for match in PRIVATE.finditer(line)
    }
    # a command for the user to run, and a module that is loaded early so that nobody waits for it later
    allowed = ("torch.cuda.memory._snapshot", "torch._dynamo")
    assert {line for line in found if not line.endswith(allowed)} == set()


@pytest.mark.parametrize("name", torch_private.NAMES)
def test_this_torch_has_it(name: str) -> None:
    reduce(getattr, name.split("."), torch)


def test_storages_are_told_apart() -> None:
    one, other = torch.empty(2), torch.empty(2)
    assert one.untyped_storage()._cdata == one[1:].untyped_storage()._cdata != other.untyped_storage()._cdata


@pytest.mark.parametrize("name", torch_private.__all__)
def test_it_is_used(name: str) -> None:
    used = any(re.search(rf"\b{name}\b", path.read_text()) for path in FILES if path.name != "torch_private.py")
    assert used
