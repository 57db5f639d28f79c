"""Figures for papers: what is written, and what is said where that cannot be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from profile_samples import sample_profile
from tilegrad.errors import InputError
from tilegrad.profile import Block, BlockKind, Profile
from tilegrad.report.plots import save_memory_plot

BLOCKS = (
    Block("w", 2**20, 0, 3, BlockKind.WEIGHT, device="d", owned=False),
    Block("a", 3 * 2**20, 1, 2, BlockKind.ACTIVATION, device="d"),
    Block("elsewhere", 1, 0, 3, BlockKind.GRADIENT, device="e"),
)
PROFILE = Profile("costs $5 & <more>", "recorded", (), BLOCKS, (0.0, 0.001, 0.002))


@pytest.mark.parametrize(
    ("ending", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG"), ("SVG", b"<?xml")]
)
def test_the_ending_says_the_format(ending: str, start: bytes, tmp_path: Path) -> None:
    save_memory_plot(PROFILE, tmp_path / f"memory.{ending}")
    assert (tmp_path / f"memory.{ending}").read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"memory.{ending}"]  # no draft is left


def test_an_svg_has_the_kinds_of_its_device(tmp_path: Path) -> None:
    save_memory_plot(PROFILE, tmp_path / "memory.svg")
    text = (tmp_path / "memory.svg").read_text()
    ElementTree.fromstring(text)
    colours = {"weight": "#999999", "activation": "#56b4e9", "gradient": "#009e73", "workspace": "#e69f00"}
    assert {kind for kind, colour in colours.items() if colour in text} == {"weight", "activation"}


def test_odd_names_are_drawn(tmp_path: Path) -> None:
    save_memory_plot(replace(PROFILE, name=r"$\frac{" + "</svg><script>alert(1)</script>"), tmp_path / "a.svg")
    assert "<script>" not in (tmp_path / "a.svg").read_text()


def test_one_moment_is_enough(tmp_path: Path) -> None:
    save_memory_plot(Profile("p", "recorded", (), (Block("a", 8, 0, 1),), (5.0,)), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("name", ["memory.gif", "memory", "memory.svg.gz"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a plot cannot be written as"):
        save_memory_plot(PROFILE, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_without_memory_there_is_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no memory to plot"):
        save_memory_plot(replace(PROFILE, blocks=()), tmp_path / "a.svg")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"plots need matplotlib.*\n.*pip install 'tilegrad\[plot\]'"):
        save_memory_plot(PROFILE, tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_a_profile_with_everything(tmp_path: Path) -> None:
    save_memory_plot(replace(sample_profile(), name="all kinds"), tmp_path / "a.svg")
    assert "all kinds" in (tmp_path / "a.svg").read_text()


def test_a_name_no_font_can_draw(tmp_path: Path) -> None:
    save_memory_plot(sample_profile(), tmp_path / "a.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the plot cannot be written: there is no folder"):
        save_memory_plot(PROFILE, tmp_path / "no" / "a.svg")
