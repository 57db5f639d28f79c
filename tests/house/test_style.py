"""The house rules, as tests: sizes of files and functions, names of modules, docstrings, and the public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tilegrad
import tilegrad.ops

SOURCE = Path(tilegrad.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 400, 60
VAGUE = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc"}

# What a user may import. Adding a name is a decision: add it here too.
PUBLIC = {
    "tilegrad": {
        "ImageSource",
        "Plan",
        "Profile",
        "Replay",
        "TiledModule",
        "Verification",
        "capture",
        "distribute",
        "load",
        "load_profile",
        "load_rects",
        "open",
        "predict",
        "record",
        "replay",
        "save_chrome_trace",
        "tile",
        "verify",
    },
    "tilegrad.ops": {"Call", "Op", "Place", "Read", "Reduction", "Sample", "find", "local", "op", "registered"},
}

every_file = pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SOURCE)) for p in FILES])


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


@every_file
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES


@every_file
def test_functions_are_short(path: Path) -> None:
    long = {f.name: length(f) for f in functions(ast.parse(path.read_text())) if length(f) > FUNCTION_LINES}
    assert not long


@every_file
def test_modules_say_what_they_are(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said and len(said.split()) >= 3


@every_file
def test_names_mean_something(path: Path) -> None:
    assert not {part.strip("_") for part in (path.stem, *path.relative_to(SOURCE).parts[:-1])} & VAGUE


@pytest.mark.parametrize("path", [p for p in FILES if "planners" in p.parts], ids=lambda p: str(p.relative_to(SOURCE)))
def test_planners_do_not_read_a_clock(path: Path) -> None:
    """The same problem gives the same plan, however busy the machine is."""
    tree = ast.parse(path.read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not imported & {"time", "timeit", "datetime"}
    assert "time_limit" not in path.read_text()  # nor let a solver read one


@pytest.mark.parametrize("path", [p for p in FILES if "cli" not in p.parts], ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_library_never_prints(path: Path) -> None:
    calls = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert not [call.lineno for call in calls if call.func.id == "print"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name: str) -> None:
    module = {"tilegrad": tilegrad, "tilegrad.ops": tilegrad.ops}[name]
    names = [n for n in dir(module) if not n.startswith("_")]  # tilegrad's own are imported when they are used
    found = {n for n in names if not isinstance(getattr(module, n), ModuleType)}
    assert found == PUBLIC[name]
