"""Names that want to be more than text: nothing of them runs, all of them are shown as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_pages import BLOCKS, CLOCK, OPERATORS, PROFILE, small_page
from tabs import Open, tip

from tilegrad.profile import Profile
from tilegrad.report.page import Bar, Bars, Column, Drawn, Fact, Page, Table, TiledValue, TileMap

HOSTILE = {
    "script": "<script>window.hit = 1; alert(1)</script>",
    "end of script": "</script><script>window.hit = 1; alert(1)</script>",
    "comment": "<!--<script>window.hit = 1</script>-->",
    "image": '"><img src=x onerror="window.hit = 1">',
    "template": "${window.hit = 1}`${alert(1)}`{data}{{7*7}}%s%n",
    "entity": "&lt;b&gt; &amp; &#x3c;script&#x3e;",
    "backslash": "\\u003cscript\\u003e\\\\\\'\"\\n",
    "turned": "abc\u202edef\u2066ghi\u200fjkl\u061c",
    "control": "nul\x00bell\x07line\nreturn\rtab\tdelete\x7fseparator\u2028\u2029",
    "half": "high \ud800 low \udfff",
    "prototype": "__proto__",
    "constructor": "constructor",
    "link": "javascript:alert(1)",
    "long": "<b>" + "x" * 10_000,
    "wide": "😀漢字é" * 20,
    "empty": "",
}


def hostile_profile(name: str) -> Profile:
    operators = tuple(
        replace(op, name=name + op.name, type=name, module=name, kernel=name, thread=name, stream=name)
        for op in OPERATORS
    )
    blocks = tuple(replace(block, name=name, device=name) for block in BLOCKS)
    return Profile(name, name, operators, blocks, CLOCK, facts={name: name}, notes=(name,))


def hostile_page(name: str) -> Page:
    table = Table(name, (Column(name), Column(name, "bytes")), ((name, 1), (name, 2)), frozenset({0}), name, name)
    other = replace(PROFILE, blocks=tuple(replace(block, device=name) for block in BLOCKS))
    drawn = (Drawn(name, hostile_profile(name)), Drawn(name, other))
    cut = {"h": [0, 1, 1, 2]}
    value = TiledValue(name, name, {"h": 2, "w": 2}, cut, cut, cut, cut, [(0, cut)])
    tiles = TileMap("stream", ("h",), (2,), ("h", "w"), (value, value))
    bars = (Bars(name, "seconds", (Bar(name, 1.0, None),), name),)
    facts = (Fact(name, name, name),)
    return Page(name, name, facts, (name,), (table,), drawn, 10**9, tiles=tiles, bars=bars)


def shown(name: str, most: int = 500) -> str:
    """As the page has it: one line, cut, without what acts on other text."""
    cut = name if len(name) <= most else f"{name[:most]}… ({len(name):,} characters)"
    bad = {*map(chr, range(32)), *map(chr, range(127, 160)), *"\u2028\u2029\u202e\u2066\u200f\u061c\ud800\udfff"}
    return "".join("\ufffd" if c in bad else c for c in cut)


@pytest.mark.parametrize("which", HOSTILE)
def test_it_is_text(open_page: Open, which: str) -> None:
    """The fixture finds every error, dialog and request, the policy's complaints among them."""
    name = HOSTILE[which]
    tab = open_page(hostile_page(name))
    for place in ("h1", "#facts dt", "#facts small", "#tables h2", "#tables .pill"):
        assert tab.locator(place).text_content() == shown(name) if name or place == "h1" else True
    assert tab.locator("#notes li").text_content() == shown(name, 2000)
    assert tab.locator("#operators tbody td").first.text_content() == (shown(name, 120) or "–")
    for chart in ("memory", "map", "timeline"):
        tab.locator(f"#{chart}-chart").focus()
        tab.keyboard.press("Home")
        assert tip(tab, chart)
    assert tip(tab, "timeline")[0].startswith(shown(name)[:400])
    tab.locator("#operators input").fill(name[:30])
    assert tab.evaluate("window.hit") is None and tab.locator("body img").count() == 0
    assert tab.locator("script").count() == 2 and tab.evaluate("document.documentElement.scrollWidth") <= 1400


def test_all_of_them_at_once(open_page: Open) -> None:
    everything = "".join(HOSTILE.values())[-3000:] + "".join(list(HOSTILE.values())[:9])
    tab = open_page(small_page(title=everything, profiles=(Drawn(everything, hostile_profile(everything)),)))
    assert tab.evaluate("window.hit") is None and tab.locator("script").count() == 2
