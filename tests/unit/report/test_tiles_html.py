"""`tilegrad tiles --html`: a page beside what is printed, for tiles and not for workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilegrad.cli import main

NET = ["tiles", "unet(depth=2, width=0.0625)", "--input", "1x1x64x64"]


def test_the_page_is_written_and_the_table_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "tiles.html"
    assert main([*NET, "--grid", "2x2", "--html", str(page)]) == 0
    assert "work against untiled" in capsys.readouterr().out and '"mode":"stream"' in page.read_text()


def test_workers_have_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NET, "--mesh", "2x2", "--html", str(tmp_path / "tiles.html")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "GridError: a page shows tiles, not workers",
        "  try  --grid 2x2 with --html",
    ]


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NET, "--grid", "2x2", "--html", str(tmp_path / "no" / "tiles.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err
