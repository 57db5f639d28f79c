"""The reader of scanned drawings: other nets and workers, more damage, and what it must refuse."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from rect_damage import content, damage, draw
from tilegrad.errors import FormatError
from tilegrad.importers.rects import Repair, load_drawing, sniff_drawing
from tilegrad.importers.rects.drawing import LARGEST_FILE
from tilegrad.importers.rects.drawing_text import fold
from tilegrad.ir import Graph
from tilegrad.rects import training_step
from tilegrad.rects.step import edges

SCAN = Path(__file__).parents[2] / "data" / "rect_drawing.txt"
TEXT = SCAN.read_text()
SIZES: dict[str, Any] = {"batch": 16, "image": (35, 30), "channels": 3, "classes": 150}


def read(tmp_path: Path, text: str) -> tuple[Graph, tuple[Repair, ...]]:
    path = tmp_path / "drawing.txt"
    path.write_text(text)
    return load_drawing(path)


@pytest.fixture(scope="module")
def source() -> Graph:
    return load_drawing(SCAN)[0]


@pytest.mark.parametrize("gain", ["a*(x+b)", "a*x+b"])
@pytest.mark.parametrize("layers", [[(5, 8)], [(5, 8), ((3, 4), 10)], [(2, 3)] * 4])
@pytest.mark.parametrize("workers", [(1, 1), (2, 2)])
def test_clean_drawings_need_no_repair(tmp_path: Path, layers: Any, workers: tuple[int, int], gain: Any) -> None:
    for graph in training_step(**SIZES, layers=layers, workers=workers, gain=gain):
        found, repairs = read(tmp_path, draw(graph))
        assert content(found) == content(graph)
        assert repairs == ()
        for node in found.nodes:
            assert node.attrs["evidence"] == {port: "seen" for _, _, port in edges(found, node)}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_drawings_of_one_worker_of_many(tmp_path: Path, seed: int) -> None:
    graph = training_step(**SIZES, layers=[(5, 8), (3, 10)], workers=(2, 3))[seed + 1]
    found, repairs = read(tmp_path, damage(draw(graph), 0.02, seed))
    assert content(found) == content(graph) and repairs


@pytest.mark.parametrize("seed", range(25))
def test_light_damage_is_repaired(tmp_path: Path, source: Graph, seed: int) -> None:
    found, repairs = read(tmp_path, damage(TEXT, 0.01, seed))
    assert content(found) == content(source)
    assert set(repairs) - set(load_drawing(SCAN)[1])


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.3, 0.6, 0.9])
def test_heavy_damage_is_repaired_or_refused(tmp_path: Path, source: Graph, rate: float) -> None:
    for seed in range(5):
        try:
            found, _ = read(tmp_path, damage(TEXT, rate, seed))
        except FormatError as error:
            assert error.where
        else:
            assert content(found) == content(source)


def test_one_wrong_digit_is_outvoted_or_refused(tmp_path: Path, source: Graph) -> None:
    rng = random.Random(3)
    places = [found.start() for found in re.finditer(r"[0-9]", TEXT)]
    for _ in range(80):
        at, digit = rng.choice(places), rng.choice("0123456789")
        try:
            found, _ = read(tmp_path, TEXT[:at] + digit + TEXT[at + 1 :])
        except FormatError as error:
            assert error.where
        else:
            assert content(found) == content(source)


def test_a_dim_against_its_rects(tmp_path: Path) -> None:
    graph = training_step(**SIZES, layers=[(5, 8)])[0]
    text = draw(graph)
    assert text.count("dim=[16 1 1 1]") == 1
    for wrong in ("18 1 1 1", "15 1 1 1", "16 1 1", "1 1 1 1 6"):
        changed = text.replace("dim=[16 1 1 1]", f"dim=[{wrong}]")
        try:
            found, repairs = read(tmp_path, changed)
        except FormatError as error:
            assert "drawing.txt:" in str(error.where)
        else:
            assert content(found) == content(graph)
            assert [r.taken for r in repairs] == ["dim=[16 1 1 1]"]


def test_an_outvoted_copy_is_reported(tmp_path: Path) -> None:
    graph = training_step(**SIZES, layers=[(5, 8)])[0]
    text = draw(graph).replace("result_dim=[8 1 1 3 5 5 31 26]", "result_dim=[8 1 1 3 5 5 37 26]")
    found, repairs = read(tmp_path, text)
    assert content(found) == content(graph)
    assert [(r.read, r.taken) for r in repairs] == [
        ("result_dim=[8 1 1 3 5 5 37 26]", "result_dim=[8 1 1 3 5 5 31 26]")
    ]
    assert text.splitlines()[repairs[0].line - 1] == repairs[0].read


def test_copies_that_say_quite_different_things(tmp_path: Path) -> None:
    text = draw(training_step(**SIZES, layers=[(5, 8)])[0])
    with pytest.raises(FormatError, match="and also"):
        read(tmp_path, text.replace("result_dim=[8 1 1 3 5 5 31 26]", "result_dim=[9 1 1 3 5 6 31 26]"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "no layer"),
        (lambda text: text.replace("L0.filterNL.output\n", "\n"), "nodes here that have it|no 'L0.filterNL.output'"),
        (lambda text: text.replace("write_rect=None", "write_rect=Rect(array([0]), array([1]))", 1), "must not have"),
        (lambda text: text + "weird=[1 2 3]\n", "is nothing that a node has"),
        (lambda text: text + "dim=[1]\n", "times 'dim'"),
        (lambda text: text + "some.other.operator.entirely\n", "cannot be read|like no name"),
        (lambda text: "x" * 30_000 + text, "a line of 30"),
        (lambda text: text + "word " * 2000, "words that are no names"),
        (lambda text: text + "some words\n" * 2000, "too much"),
        (lambda text: text.replace("L0.", "L5."), "some are missing"),
        (lambda text: re.sub(r"=Rect.*16, 1, 1, 1.*", "", text), "cannot be read, nor any copy"),
        (lambda text: text.replace("->b\n", "\n"), "does the gradient of the gain read b"),
    ],
)
def test_refused(tmp_path: Path, change: Any, message: str) -> None:
    text = draw(training_step(**SIZES, layers=[(5, 8)])[0])
    with pytest.raises(FormatError, match=message) as error:
        read(tmp_path, change(text))
    assert "drawing.txt" in str(error.value.where)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        load_drawing(tmp_path / "none.txt")
    with pytest.raises(FormatError, match="folder"):
        load_drawing(tmp_path)
    path = tmp_path / "large.txt"
    path.write_bytes(b" " * (LARGEST_FILE + 1))
    with pytest.raises(FormatError, match="more than"):
        load_drawing(path)
    path.write_bytes(b"data\n\xff\n")
    with pytest.raises(FormatError, match="not UTF-8") as error:
        load_drawing(path)
    assert error.value.where == "large.txt:2"


def test_sniff() -> None:
    assert sniff_drawing(SCAN.read_bytes()[:4096])
    assert not sniff_drawing(b"{" + SCAN.read_bytes()[:4096])
    assert not sniff_drawing(b"graph x\n") and not sniff_drawing(b"")


def test_look_alikes_are_one() -> None:
    assert fold("LO.fiIter") == fold("L0.filter") == fold("l0 FILTER")
    assert fold("§ — >") == ""
