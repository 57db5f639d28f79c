"""The bench of whole slides against patches, on next to nothing; and its slides, which hide the label from a patch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]

from slides import CLASSES, RADIUS, Slide, make_set  # noqa: E402

import far  # noqa: E402
import tilegrad  # noqa: E402


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--size", "128", "--budget", "1MiB", "--slides", "4", "--test", "2", "--updates", "2", "--batch", "2"]
    monkeypatch.setattr(sys, "argv", ["far.py", *words, "--json", str(tmp_path / "far.json")])
    far.main()
    out = capsys.readouterr().out
    assert "whole    2 updates" in out and "patches  2 updates" in out
    assert (tmp_path / "far.json").exists()


def test_a_mark_says_nothing_of_the_label() -> None:
    """Of either direction, on either side, as many slides are of one class as of the other."""
    slides = [Slide(256, seed) for seed in range(2000)]
    for side in (0, 1):
        for columns in (False, True):
            labels = [slide.label for slide in slides if slide.marks[side].columns == columns]
            assert labels.count(CLASSES[0]) / len(labels) == pytest.approx(0.5, abs=0.06)
    distances = [slide.marks[1].column - slide.marks[0].column for slide in slides]
    assert min(distances) >= 256 // 2 > far.PATCH


def test_stripes_are_gone_in_a_smaller_slide() -> None:
    slide = Slide(256, 3)
    mark = slide.marks[0]
    inner = slice(mark.row - RADIUS // 2, mark.row + RADIUS // 2), slice(mark.column - 8, mark.column + 8)
    pixels = slide.pixels()[inner].mean(-1)
    means = pixels.reshape(4, 4, 4, 4).mean((1, 3))
    assert pixels.std() > 3 * means.std()


def test_tiff_and_zarr_are_the_same_slide(tmp_path: Path) -> None:
    for seed, (path, label) in enumerate(make_set(tmp_path, 256, 2)):
        image = tilegrad.open(path, scale=1.0)
        assert np.array_equal(image.read()[0].movedim(0, -1).numpy(), Slide(256, seed).pixels())
        assert CLASSES[label] == Slide(256, seed).label
