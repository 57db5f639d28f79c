"""The HTML file of any page: one file, self-contained, inert whatever names say, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tilegrad.errors import InputError
from tilegrad.profile import Block, Operator, Profile, Span
from tilegrad.report.html import SCRIPTS, format_page, save_page
from tilegrad.report.page import Column, Drawn, Fact, Page, Table

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\u2029\u202e&lt;{data}%s\\u003c'\"\x00\ud800"
CLEAN = "</script><script>alert(1)</script><!--<script>\ufffd\ufffd\ufffd&lt;{data}%s\\u003c'\"\ufffd\ufffd"
VOID = {"meta", "input"}
FILES = Path(__file__).parents[3] / "src" / "tilegrad" / "report"


def page_of(name: str) -> Page:
    operator = Operator(name, name, name, device=Span(0.0, 1.0), stream=name, module=name, kernel=name)
    profile = Profile(name, name, (operator,), (Block(name, 5, 0, 1, device=name, maker=0, address=3),), (0.0,))
    table = Table(name, (Column(name), Column(name, "bytes")), ((name, 1),), frozenset({0}), name, name)
    return Page(name, name, (Fact(name, name, name),), (name,), (table,), (Drawn(name, profile), Drawn(name, profile)))


class Parsed(HTMLParser):
    """Elements with their attributes, the texts of scripts, and whether all that opens closes."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += text
        if self.open and self.open[-1] == "style":
            self.styles[-1] += text

    def figures(self) -> dict[str, Any]:
        found = json.loads(self.scripts[0])
        assert isinstance(found, dict)
        return found


# -- the file ----------------------------------------------------------------------------------------------------------


def test_it_is_one_file_that_loads_nothing() -> None:
    text = format_page(page_of("a"))
    page = Parsed(text)
    assert "http" not in text and not re.search(r"https?:|[^a-z0-9+/]//[a-z]|url\(|@import", text, re.IGNORECASE)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if {"src", "href", "style"} & set(attrs)]
    assert not [attrs for _, attrs in page.tags if any(key.startswith("on") for key in attrs)]
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == ["application/json", None]


def test_the_policy_names_the_script_and_the_style_alone() -> None:
    """Rule H2."""
    page = Parsed(format_page(page_of("a")))
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (page.scripts[1], page.styles[0])]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_identifiers_are_unique_and_labels_lead_somewhere() -> None:
    page = Parsed(format_page(page_of("a")))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = [attrs[key] for _, attrs in page.tags for key in ("aria-labelledby", "aria-describedby") if key in attrs]
    assert labels and {part for label in labels for part in (label or "").split()} <= set(ids)
    assert set(re.findall(r'byId\("([^"]*)"\)', page.scripts[1])) <= set(ids)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_makes_no_markup_and_says_what_it_does(name: str) -> None:
    """Rule H1."""
    text = (FILES / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|\bon[a-z]+ ?=", text)
    assert "</" not in text and "<!--" not in text and text.startswith("// ")
    assert len(text.splitlines()) <= 400 and max(map(len, text.splitlines())) <= 120


def test_no_script_is_forgotten() -> None:
    assert {path.name for path in FILES.glob("*.js")} == set(SCRIPTS)


# -- names -------------------------------------------------------------------------------------------------------------


def test_hostile_names_are_inert() -> None:
    """Rule H1."""
    text, plain = format_page(page_of(HOSTILE)), Parsed(format_page(page_of("a")))
    page = Parsed(text)
    assert page.tags == plain.tags and page.scripts[1] == plain.scripts[1]
    assert not set("<>&\u2028\u2029") & set(page.scripts[0]) and page.scripts[0].isascii()
    assert text.count("alert(1)") == page.scripts[0].count("alert(1)") > 0
    assert page.figures()["title"] == CLEAN and CLEAN in page.figures()["texts"]


def test_a_hostile_page_can_be_written(tmp_path: Path) -> None:
    """Half a surrogate pair cannot be encoded."""
    save_page(page_of(HOSTILE), tmp_path / "p.html")
    assert Parsed((tmp_path / "p.html").read_text(encoding="utf-8")).figures()["title"] == CLEAN


# -- writing -----------------------------------------------------------------------------------------------------------


def test_it_is_written_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    save_page(page_of("a"), path)
    assert path.read_text(encoding="utf-8") == format_page(page_of("a"))
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    save_page(page_of("a"), str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink() and "page-data" in (tmp_path / "real.html").read_text(encoding="utf-8")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the report cannot be written: there is no folder .*none\n.*page\.html"):
        save_page(page_of("a"), tmp_path / "none" / "page.html")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["folder", "x" * 300 + ".html", "a\0b.html", "file/page.html"])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="the report cannot be written"):
        save_page(page_of("a"), f"{tmp_path}/{name}")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and not os.listdir(tmp_path / "folder")


def test_a_device_is_left_alone() -> None:
    with pytest.raises(InputError, match="a folder or a device"):
        save_page(page_of("a"), os.devnull)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    (tmp_path / "page.html").write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((InputError, KeyboardInterrupt), match=r"No space left|^$"):
        save_page(page_of("a"), tmp_path / "page.html")
    assert os.listdir(tmp_path) == ["page.html"] and (tmp_path / "page.html").read_text() == "old"
