"""The documentation is true: its Python and its commands run and print what is shown, its links lead somewhere.

A block fenced ```python is run, all blocks of a page in one namespace; where the page says "Save this as `net.py`:" it
is saved, too. One that cannot be run here is fenced ```python no-run, and the line after it begins with "Not run:" and
says why. A block fenced ```text output shows what the Python block before it prints. Of a block fenced ```console each
`tilegrad` command is run if something is shown below it, again unless it is no-run; of its output as many lines are
shown as one likes. What is compared, and what is not: `pages.py`. The README is run by
`test_first_minutes.py`. To put in the figures that are printed now, and to run a page by hand, no-run blocks included:

    python tests/house/test_docs.py --update [PAGES]
    python tests/house/test_docs.py docs/memory.md
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import FENCE, PAGES, ROOT, Block, as_printed, blocks, lines_of, missing

from tilegrad.cli import _parser, main
from tilegrad.execution.stores import stores
from tilegrad.images import formats
from tilegrad.kernels import kernels
from tilegrad.ops import registered, registry

# Words that mean nothing to a stranger: whose machine, which source?
FORBIDDEN = re.compile(r"/work\b|/root\b|\bsources? 00\d|\b(our|shared) machine|worktree|\bhelpers?\b", re.IGNORECASE)
TREE = [path for name in ("src", "tests", "bench", "examples", ".ci") for path in sorted((ROOT / name).rglob("*.*"))]
FILES = [
    path for path in TREE if path.suffix in (".py", ".js", ".css", ".html", ".toml") and path.parent.name != "house"
]
README = ROOT / "README.md"

every_page = pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])


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


def printed_by(page: Path, names: dict[str, Any]) -> Iterator[tuple[Block, list[str], str]]:
    """Run a page in this folder: each block that shows something, the lines that it shows, and what is printed. Of
    commands some lines are shown, of Python all."""
    said = io.StringIO()
    for block in blocks(page):
        if block.info == "python":
            said = io.StringIO()
            if block.saved:
                Path(block.saved).write_text(block.text)
            with contextlib.redirect_stdout(said):
                execute(block, page, names)
        elif block.info == "text output":
            yield block, block.text.splitlines(), said.getvalue()
        elif block.info == "console":
            for words, shown, file in block.commands():
                if words[0] == "tilegrad" and file:
                    Path(file).write_text(run_command(words[1:]))
                elif words[0] == "tilegrad" and shown:
                    yield block, shown, run_command(words[1:])


def run_command(words: list[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main(words)
    return said.getvalue()


def link_data(folder: Path) -> None:
    """Pages name files of the tests as if one stood in the clone."""
    (folder / "tests").symlink_to(ROOT / "tests")


@pytest.mark.parametrize("page", [p for p in PAGES if p != README], ids=lambda page: page.name)
def test_what_is_shown_is_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # tables as wide as they are
    link_data(tmp_path)
    for block, shown, printed in printed_by(page, names):
        where = f"{page.name}:{block.line}: python tests/house/test_docs.py --update"
        if block.language == "console":
            assert not missing(shown, printed), where
        else:
            assert lines_of(printed) == lines_of(block.text), where


@every_page
def test_what_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        if block.language not in ("python", "console"):
            continue
        assert block.info.removeprefix(block.language) in ("", " no-run"), f"line {block.line}: ```{block.info}"
        if block.info.endswith("no-run"):
            assert block.after.startswith("Not run:"), f"line {block.line}: the line after it must say why"


@every_page
def test_commands_parse(page: Path) -> None:
    for block in blocks(page):
        for words, *_ in block.commands() if block.language == "console" else ():
            if words[0] != "tilegrad":
                continue
            try:
                _parser(words[1]).parse_args(words[1:])
            except SystemExit as stop:  # argparse has printed what is wrong; --help and --version end with 0
                if stop.code:
                    pytest.fail(f"line {block.line}: {' '.join(words)}")


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
def test_no_word_that_only_we_know(page: Path) -> None:
    assert not FORBIDDEN.findall(page.read_text())


def test_nor_in_the_code() -> None:
    assert not {str(path.relative_to(ROOT)) for path in FILES if FORBIDDEN.search(path.read_text())}


def test_every_operator_is_in_the_table() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    listed = set(re.findall(r"`(\w+)`", text))
    assert not set(registered()) - listed, "add these to docs/operators.md"


def update(page: Path) -> None:
    """Put in the figures that are printed here and now."""
    text, changes = page.read_text(), list[tuple[str, str]]()
    for block, shown, printed in printed_by(page, {"__name__": "page"}):
        if block.language == "console":
            changes += [("\n".join(shown), "\n".join(as_printed(shown, printed)))] if missing(shown, printed) else []
        elif lines_of(printed) != lines_of(block.text):
            changes.append((block.text, printed.strip("\n") + "\n"))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    page.write_text(text)


def run_by_hand(words: list[str]) -> None:
    os.environ["TILEGRAD_CACHE"] = "off"
    os.environ.pop("COLUMNS", None)
    if words[0] != "--update":
        names: dict[str, Any] = {"__name__": "page"}
        for block in blocks(Path(words[0])):
            if block.language == "python":
                execute(block, Path(words[0]), names)
        return
    pages = [Path(name).resolve() for name in words[1:]] or PAGES
    if len(pages) > 1:  # each by itself: planners and operators that one defines are no others'
        for page in pages:
            subprocess.run([sys.executable, __file__, "--update", str(page)], check=True)
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        link_data(Path(folder))
        update(pages[0])


if __name__ == "__main__":
    run_by_hand(sys.argv[1:])
