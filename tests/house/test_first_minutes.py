"""A stranger's first ten minutes: every command and every Python block of the README, in a clean clone, with the wheel
installed where nothing else of ours is. What they print is what the README shows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from clean_room import CleanRoom
from pages import Command, blocks, lines_of, missing

README = Path(__file__).parents[2] / "README.md"
COMMANDS = [command for block in blocks(README) if block.info == "console" for command in block.commands()]
MARK = "\x00\n"


def test_python(clean_room: CleanRoom) -> None:
    """All blocks are one program, as one would type them one after another."""
    code, shown = list[str](), dict[int, str]()
    for block in blocks(README):
        if block.info == "python":
            code.append(block.text)
        elif block.info == "text output":
            shown[len(code) - 1] = block.text
    program = clean_room.clone / "first.py"
    program.write_text(f"print({MARK!r}, end='')\n".join(code))
    done = clean_room.run("python", program.name)
    assert done.returncode == 0, done.stdout
    printed = done.stdout.split(MARK)
    assert shown and all(lines_of(printed[at]) == lines_of(text) for at, text in shown.items()), done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words[:3]))
def test_command(command: Command, clean_room: CleanRoom) -> None:
    words = command.words
    if words[:2] == ["pip", "install"]:
        assert words[2:] == ["tilegrad"]  # has been done: from the wheel
        return
    done = clean_room.run(*words)
    assert done.returncode == 0, done.stdout
    assert not missing(command.shown, done.stdout), "\n".join(missing(command.shown, done.stdout))
    for page in [word for flag, word in pairwise(words) if flag == "--html"]:
        assert "</html>" in (clean_room.clone / page).read_text()


def test_targets_of_make(clean_room: CleanRoom) -> None:
    """What the README says to `make` is there; what it does is tested by itself."""
    text = README.read_text()
    for target in ("demo", "demo-large", "test"):
        assert f"`make {target}`" in text
        done = clean_room.run("make", "--dry-run", target)
        assert done.returncode == 0 and ".venv/bin/python" in done.stdout, done.stdout
