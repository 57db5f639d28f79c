"""The HTML report of a planning: complete, self-contained, inert whatever names say, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilegrad.errors import InputError
from tilegrad.ir import Graph, Input, Kind, Node, Phase, Role, TensorType, Value, check_graph
from tilegrad.planners import Effort
from tilegrad.report.plan_html import BIRTHS, STEPS, format_plan_html, save_plan_html
from tilegrad.schedule.steps import Fetch, Free, Offload, Run
from tilegrad.search import Candidate, Planning, Steps, plan_step
from tilegrad.sim.machine import find_machine
from tilegrad.sim.memory import Alive, Memory

HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\u2029\u202e&lt;{data}%s\\u003c'\"\x00\ud800"
VOID = {"meta", "input"}
FILES = Path(__file__).parents[3] / "src" / "tilegrad" / "report"

Rename = Callable[[str], str]


def chain(count: int = 12, name: Rename = str, title: str = "chain") -> Graph:
    """Nodes in a row, each of whose outputs backward reads."""
    values, nodes = [Value(name("x"), TensorType((2**18,)), Kind.INPUT)], list[Node]()
    for i in range(count):
        values.append(Value(name(f"v{i}"), TensorType((2**18 * (1 + i % 3),))))
        reads, makes = (Input("input", values[i].name),), (values[-1].name,)
        nodes.append(Node(name(f"f{i}"), "relu", reads, makes, time_s=1e-3 * (1 + i % 4)))
    for i in reversed(range(count)):
        inputs = [Input("result", name(f"v{i}"), Role.RETAINED_OUTPUT)]
        inputs += [Input("grad", name(f"g{i}"), Role.GRADIENT)] if i < count - 1 else []
        values.append(Value(name(f"g{i - 1}"), TensorType((2**18,)), Kind.GRADIENT))
        makes = (values[-1].name,)
        nodes.append(Node(name(f"b{i}"), "back", tuple(inputs), makes, phase=Phase.BACKWARD, time_s=2e-3))
    graph = Graph(tuple(values), tuple(nodes), (name("g-1"),), (), title)
    check_graph(graph)
    return graph


def plan_chain(share: float = 0.6, planner: str = "auto", **options: Any) -> Planning:
    steps = Steps(chain(**options), find_machine("v100"), Effort(exact_s=0.0, heuristic_s=0.5))
    return plan_step(steps, None, int(steps.keep.peak_bytes * share), planner=planner)


def tiled(planning: Planning, memory: Memory | None) -> Planning:
    """As if tiles had been chosen: no times, no addresses, with or without bytes tile by tile."""
    plain = planning.plain
    chosen = Candidate("tile", "stream, 2 along h", object(), plain.peak_bytes // 2, plain.time_s * 1.5, memory=memory)  # type: ignore[arg-type]
    return replace(planning, candidates=(plain, chosen), chosen=chosen)


def instant(plan: Candidate) -> Candidate:
    """As on a machine that takes no time."""
    assert plan.time is not None
    time = replace(plan.time, total_s=0.0, compute_s=0.0, stall_s=0.0, starts=tuple(0.0 for _ in plan.time.starts))
    return replace(plan, time_s=0.0, time=time)


@pytest.fixture(scope="module")
def offloaded() -> Planning:
    return plan_chain(planner="offload")


@pytest.fixture(scope="module")
def recomputed() -> Planning:
    return plan_chain(planner="recompute")


class Page(HTMLParser):
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


def test_it_is_one_file_that_loads_nothing(offloaded: Planning) -> None:
    text = format_plan_html(offloaded)
    page = Page(text)
    assert "http" not in text and not re.search(r"https?:|[^a-z0-9+/]//[a-z]|url\(|@import", text, re.IGNORECASE)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if {"src", "href", "style"} & set(attrs)]
    assert not [attrs for _, attrs in page.tags if any(key.startswith("on") for key in attrs)]
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == ["application/json", None]


def test_the_policy_names_the_script_and_the_style_alone(offloaded: Planning) -> None:
    """Rule H2."""
    page = Page(format_plan_html(offloaded))
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (page.scripts[1], page.styles[0])]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_identifiers_are_unique_and_labels_lead_somewhere(offloaded: Planning) -> None:
    page = Page(format_plan_html(offloaded))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = [attrs[key] for _, attrs in page.tags for key in ("aria-labelledby", "aria-describedby") if key in attrs]
    assert labels and {part for label in labels for part in (label or "").split()} <= set(ids)
    assert set(re.findall(r'byId\("([^"]*)"\)', page.scripts[1])) <= set(ids)


@pytest.mark.parametrize("name", ["plan_report.js", "plan_report_charts.js", "plan_report_map.js"])
def test_the_script_makes_no_markup(name: str) -> None:
    """Rule H1."""
    text = (FILES / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|\bon[a-z]+ ?=", text)
    assert "</" not in text and "<!--" not in text
    assert len(text.splitlines()) <= 400 and max(map(len, text.splitlines())) <= 120


# -- names -------------------------------------------------------------------------------------------------------------


def test_hostile_names_are_inert() -> None:
    """Rule H1."""
    planning = plan_chain(planner="offload", name=lambda s: s + HOSTILE, title=HOSTILE)
    planning = replace(planning, machine=SimpleNamespace(name="m" + HOSTILE))  # no machine may be called that
    plain = Page(format_plan_html(plan_chain(planner="offload")))
    text = format_plan_html(planning)
    page = Page(text)
    assert page.tags == plain.tags and page.scripts[1] == plain.scripts[1]
    assert not set("<>&\u2028\u2029") & set(page.scripts[0]) and page.scripts[0].isascii()
    assert text.count("alert(1)") == page.scripts[0].count("alert(1)") > 0
    assert page.figures()["network"] == HOSTILE and "v3" + HOSTILE in page.figures()["texts"]


def test_a_hostile_plan_can_be_written(tmp_path: Path) -> None:
    """Half a surrogate pair cannot be encoded: it must be escaped."""
    save_plan_html(plan_chain(planner="offload", name=lambda s: s + HOSTILE, title=HOSTILE), tmp_path / "p.html")
    assert Page((tmp_path / "p.html").read_text(encoding="utf-8")).figures()["network"] == HOSTILE


# -- figures -----------------------------------------------------------------------------------------------------------


def test_candidates_are_all_there() -> None:
    planning = plan_chain(0.7)
    found = Page(format_plan_html(planning)).figures()
    figures = planning.to_json()
    assert (found["network"], found["machine"], found["budget_bytes"]) == ("chain", "v100", planning.budget)
    assert len(found["candidates"]) == len(planning.candidates) > 3
    for row, expected in zip(found["candidates"], figures["candidates"], strict=True):
        assert {key: row[key] for key in row if key not in ("chosen", "plain")}.items() <= expected.items()
    assert [row["chosen"] for row in found["candidates"]] == [c is planning.chosen for c in planning.candidates]
    assert [row["plain"] for row in found["candidates"]] == [c is planning.plain for c in planning.candidates]


@pytest.mark.parametrize("which", ["offloaded", "recomputed"])
def test_steps_and_bytes_are_those_of_the_plan(which: str, request: pytest.FixtureRequest) -> None:
    planning = request.getfixturevalue(which)
    found = Page(format_plan_html(planning)).figures()
    for key, plan in (("chosen", planning.chosen), ("plain", planning.plain)):
        memory, time, steps, texts = plan.memory, plan.time, found[key]["steps"], found["texts"]
        assert memory is not None and time is not None
        assert found[key]["peak_bytes"] == plan.peak_bytes == found[key]["memory"]["peak_bytes"]
        assert found[key]["time_s"] == plan.time_s == found[key]["time"]["total_s"]
        assert steps["device_bytes"] == list(memory.device) and steps["host_bytes"] == list(memory.host)
        assert steps["start_s"] == list(time.starts)
        assert [(texts[a], b, texts[c]) for a, b, c in found[key]["alive"]] == [
            (a.value, a.bytes, a.source) for a in memory.alive
        ]
        kinds = [STEPS[kind] for kind in steps["kind"]]
        names = {"free": Free, "offload": Offload, "fetch": Fetch}
        assert [names.get(kind, Run) for kind in kinds] == [type(step) for step in plan.schedule.steps]
        runs = [texts[w] for w, kind in zip(steps["what"], kinds, strict=True) if kind not in names]
        assert runs == [plan.schedule.graph.node[name].describe() for name in plan.schedule.runs]
        assert kinds.count("again") == len(runs) - len(set(runs))
    assert found["step_kinds"] == list(STEPS) and found["births"] == list(BIRTHS)


@pytest.mark.parametrize("which", ["offloaded", "recomputed"])
def test_addresses_are_those_of_the_plan(which: str, request: pytest.FixtureRequest) -> None:
    chosen = request.getfixturevalue(which).chosen
    found = Page(format_plan_html(request.getfixturevalue(which))).figures()
    rows, texts, layout = found["chosen"]["addresses"], found["texts"], chosen.layout
    lives = chosen.memory.lifetimes
    assert rows["offset"] == list(layout.offsets) and rows["range_bytes"] == layout.range_bytes
    assert [texts[i] for i in rows["value"]] == [life.name for life in lives]
    assert list(zip(rows["bytes"], rows["start"], rows["stop"], strict=True)) == [
        (life.bytes, life.start, life.stop) for life in lives
    ]
    steps = chosen.schedule.steps
    for life, birth, copied in zip(lives, rows["birth"], rows["copied"], strict=True):
        again = isinstance(steps[life.start], Run) and steps[life.start] in steps[: life.start]
        expected = "fetch" if isinstance(steps[life.start], Fetch) else "again" if again else BIRTHS[birth]
        assert BIRTHS[birth] == expected
        assert (copied is not None) == (Offload(life.name) in steps[life.start : life.stop])
        assert copied is None or steps[copied] == Offload(life.name)
    special = {"offloaded": "fetch", "recomputed": "again"}[which]
    assert BIRTHS.index(special) in rows["birth"]


def test_plain_is_not_told_twice() -> None:
    planning = plan_chain(2.0)
    assert planning.chosen is planning.plain
    assert Page(format_plan_html(planning)).figures()["plain"] is None


@pytest.mark.parametrize("time_s", [0.0, float("inf"), float("nan")])
def test_times_that_json_cannot_say(offloaded: Planning, time_s: float) -> None:
    plain = replace(offloaded.plain, time_s=time_s)
    found = Page(format_plan_html(replace(offloaded, plain=plain))).figures()
    assert found["plain"]["time_s"] in (0.0, None) and found["chosen"]["extra_time"] in (None, -1.0)


def test_tiles_without_memory(offloaded: Planning) -> None:
    found = Page(format_plan_html(tiled(offloaded, None))).figures()
    assert [found["chosen"][key] for key in ("memory", "time", "steps", "addresses")] == [None] * 4
    assert found["chosen"]["peak_bytes"] == offloaded.plain.peak_bytes // 2 and found["plain"]["steps"] is not None


TILES = Memory((5, 9, 7), (0, 1, 0), 9, 1, 4, 1, (Alive("(the tile itself)", 5, "tile (1,)"),), (), ("a", "b", "c"))


def test_tiles_with_memory(offloaded: Planning) -> None:
    found = Page(format_plan_html(tiled(offloaded, TILES))).figures()
    steps = found["chosen"]["steps"]
    assert steps["start_s"] is None and found["chosen"]["addresses"] is None
    assert [found["texts"][i] for i in steps["what"]] == ["a", "b", "c"] and steps["device_bytes"] == [5, 9, 7]


# -- writing -----------------------------------------------------------------------------------------------------------


def test_it_is_written_and_written_again(offloaded: Planning, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text("old")
    save_plan_html(offloaded, path)
    assert path.read_text(encoding="utf-8") == format_plan_html(offloaded)
    assert os.listdir(tmp_path) == ["plan.html"]


def test_a_link_stays_a_link(offloaded: Planning, tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    save_plan_html(offloaded, str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink() and "plan-data" in (tmp_path / "real.html").read_text(encoding="utf-8")


def test_a_folder_that_is_not_there(offloaded: Planning, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the report cannot be written: there is no folder .*none\n.*plan\.html"):
        save_plan_html(offloaded, tmp_path / "none" / "plan.html")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["folder", "x" * 300 + ".html", "a\0b.html", "file/plan.html"])
def test_paths_that_cannot_be(offloaded: Planning, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="the report cannot be written"):
        save_plan_html(offloaded, f"{tmp_path}/{name}")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and not os.listdir(tmp_path / "folder")


def test_a_device_is_left_alone(offloaded: Planning) -> None:
    with pytest.raises(InputError, match="a folder or a device"):
        save_plan_html(offloaded, os.devnull)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_behind(
    offloaded: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    (tmp_path / "plan.html").write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((InputError, KeyboardInterrupt), match=r"No space left|^$"):
        save_plan_html(offloaded, tmp_path / "plan.html")
    assert os.listdir(tmp_path) == ["plan.html"] and (tmp_path / "plan.html").read_text() == "old"


# -- the page, run by node without a browser ---------------------------------------------------------------------------

BROWSER = Path(__file__).parent / "plan_page.js"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def run_page(planning: Planning, tmp_path: Path) -> dict[str, Any]:
    """What the page says: texts by identifier, hidden parts, the lines of charts as they are walked through."""
    page = Page(format_plan_html(planning))
    ids = {attrs["id"]: [tag, "hidden" in attrs] for tag, attrs in page.tags if "id" in attrs}
    for name, text in (("data.json", page.scripts[0]), ("script.js", page.scripts[1]), ("ids.json", json.dumps(ids))):
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(["node", BROWSER], cwd=tmp_path, capture_output=True, timeout=60, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def plans(offloaded: Planning, recomputed: Planning) -> dict[str, Planning]:
    bare = replace(offloaded.plain, memory=None, time=None)
    return {
        "offloaded": offloaded,
        "recomputed": recomputed,
        "plain": plan_chain(2.0),
        "roomy": plan_chain(50.0, count=2),
        "instant": replace(offloaded, plain=instant(offloaded.plain), chosen=instant(offloaded.chosen)),
        "tiles": tiled(offloaded, TILES),
        "bare tiles": tiled(offloaded, None),
        "nothing known": replace(offloaded, plain=bare, chosen=bare, candidates=(bare,)),
        "hostile": plan_chain(planner="offload", name=lambda s: s + HOSTILE, title=HOSTILE),
    }


@needs_node
def test_the_page_shows_what_is_known(plans: dict[str, Planning], tmp_path: Path) -> None:
    shown = {name: run_page(planning, tmp_path) for name, planning in plans.items()}
    parts = {"curve", "map", "peak"}
    hidden = {name: parts & set(found["hidden"]) for name, found in shown.items()}
    some = {"tiles": {"map"}, "bare tiles": {"map", "peak"}, "nothing known": parts}
    assert hidden == {name: some.get(name, set()) for name in plans}
    for name, planning in plans.items():
        assert all(c.detail in shown[name]["texts"]["candidates"] for c in planning.candidates)
        walked = len(shown[name]["walked"].get("map-chart", []))
        lives = planning.chosen.memory.lifetimes if planning.chosen.memory else ()
        assert walked == len([life for life in lives if life.bytes and life.start < life.stop])


@needs_node
def test_every_step_can_be_reached_with_keys(offloaded: Planning, tmp_path: Path) -> None:
    found = run_page(offloaded, tmp_path)
    memory = offloaded.chosen.memory
    assert memory is not None
    for line, count in zip(found["walked"]["curve-chart"], memory.device, strict=True):
        assert f"({count:,} bytes)" in line
    fetches = [step for step in offloaded.chosen.schedule.steps if isinstance(step, Fetch)]  # type: ignore[union-attr]
    assert sum("comes back from the host" in line for line in found["walked"]["map-chart"]) == len(fetches) > 0
    assert "MiB" in found["texts"]["facts"] and "KiB" not in json.dumps(found)


@needs_node
def test_candidates_are_sorted_by_keys_of_their_columns(tmp_path: Path) -> None:
    planning = plan_chain(0.7)
    found = run_page(planning, tmp_path)
    peaks = sorted(c.peak_bytes for c in planning.candidates)
    assert found["peaks"] == [[f"{p:,}" for p in peaks], [f"{p:,}" for p in reversed(peaks)]]
