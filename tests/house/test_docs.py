"""The documentation is true: its Python runs and prints what is shown, its commands parse, its links lead somewhere.

A block fenced ```python is run, all blocks of a page in one namespace. One that cannot be run here is fenced
```python no-run, and the line after it begins with "Not run:" and says why. A block fenced ```text output shows what
the Python block before it prints; numbers may differ, words may not. To run a page by hand, no-run blocks included:

    python tests/house/test_docs.py docs/memory.md
"""

from __future__ import annotations

import contextlib
import gc
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilegrad.cli import _parser
from tilegrad.execution.stores import stores
from tilegrad.images import formats
from tilegrad.kernels import kernels
from tilegrad.ops import registered, registry

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$(?=\n*([^\n]*))", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?(?: ?(?:B|[KMG]iB)\b)?")
FORBIDDEN = ("/work", "helper")

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


@dataclass(frozen=True)
class Block:
    """A fenced block: what follows the fence, where it begins, its text, and the line after it."""

    info: str
    line: int
    text: str
    after: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(found[1].strip(), text.count("\n", 0, found.start()) + 2, found[2], found[3])


def execute(block: Block, page: Path, names: dict[str, Any]) -> None:
    # Blank lines in front, so that a traceback names the line of the page.
    exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A page's namespace. Operators, stores, formats and kernels that it adds are gone with it."""
    registered(), stores(), kernels(), formats()  # all of ours first
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    found: dict[str, Any] = {"__name__": "page"}
    yield found
    found.clear()
    stores.cache_clear()
    kernels.cache_clear()
    formats.cache_clear()
    gc.collect()


@every_page
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, Any]) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    for block in blocks(page):
        if block.info == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                execute(block, page, names)
        elif block.info == "text output":
            assert wording(printed.getvalue()) == wording(block.text), (
                f"{page.name}:{block.line} is not what is printed"
            )


def wording(text: str) -> list[str]:
    """Lines without their numbers and bytes."""
    return [NUMBER.sub("#", line).rstrip() for line in text.strip().splitlines()]


@every_page
def test_python_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        if block.language != "python":
            continue
        assert block.info in ("python", "python no-run"), f"line {block.line}: ```{block.info}"
        if block.info == "python no-run":
            assert block.after.startswith("Not run:"), f"line {block.line}: the line after it must say why"


@every_page
def test_commands_parse(page: Path) -> None:
    for block in blocks(page):
        for command in re.findall(r"^\$ tilegrad (.+)$", block.text, re.MULTILINE) if block.info == "console" else ():
            try:
                words = shlex.split(command, comments=True)
                _parser(words[0]).parse_args(words)
            except SystemExit as stop:  # argparse has printed what is wrong; --help and --version end with 0
                if stop.code:
                    pytest.fail(f"line {block.line}: tilegrad {command}")


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        place, _, anchor = "".join(target).partition("#")
        if place.startswith(("http://", "https://", "mailto:")):
            continue
        found = page.parent / place if place else page
        assert found.exists(), f"{page.name}: {place}"
        if anchor:
            assert anchor in anchors(found), f"{page.name}: {found.name} has no heading #{anchor}"


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|bench|examples)/[\w./-]*\w/?)`", page.read_text())
    assert not [name for name in named if not (ROOT / name).exists()]


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_nothing_private_is_mentioned(page: Path) -> None:
    text = page.read_text().lower()
    assert not [word for word in FORBIDDEN if word in text]


def test_every_operator_is_in_the_table() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    listed = set(re.findall(r"`(\w+)`", text))
    assert not set(registered()) - listed, "add these to docs/operators.md"


def main(page: str) -> None:
    """Run every Python block of a page here and now."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(Path(page)):
        if block.language == "python":
            execute(block, Path(page), names)


if __name__ == "__main__":
    main(sys.argv[1])
